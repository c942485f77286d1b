// tree - the source files of this project as texts and lines, for the tests of the tree's own
// rules.

#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char *path;       // From the root: "net/conf.c".
    char folder[32];  // Its first part: "net"; "" for files of the root.
    char stem[64];    // "conf"; the name up to its last dot.
    bool header;
    char **lines;  // Without their ends.
    size_t lines_count;
} tree_file_t;

typedef struct {
    tree_file_t *files;  // Every *.c, *.h and *.cu, by path.
    size_t files_count;
} tree_t;

// Reads the whole tree under `root`: its source folders and tests. Aborts where that fails.
tree_t tree_read(const char *root);
void tree_destroy(tree_t *self);

const tree_file_t *tree_find(const tree_t *self, const char *path);

// Whole text of a file, zero-terminated, to be freed; NULL if it cannot be read.
char *tree_text(const char *path);

// One output line of a command at a time to `each`; false if the command failed.
bool tree_command(const char *command, void (*each)(const char *line, void *self), void *self);

#endif
