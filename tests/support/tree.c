// tree - see the header.

#include "tests/support/tree.h"

#include "tensor/hx.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const FOLDERS[] = {
    "tensor", "model",      "net",       "server",    "worker",     "scheduler",     "bench",
    "tests",  "tests/unit", "tests/sim", "tests/e2e", "tests/fuzz", "tests/support",
};

char *tree_text(const char *path)
{
    FILE *const file = fopen(path, "rb");
    struct stat status;
    if (!file || fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode)) {
        if (file) {
            fclose(file);
        }
        return NULL;
    }
    char *const text = hx_new(1, (size_t)status.st_size + 1);
    const size_t size = fread(text, 1, (size_t)status.st_size, file);
    text[size] = '\0';
    fclose(file);
    return text;
}

static bool is_source(const char *name)
{
    const char *const dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".c") == 0 || strcmp(dot, ".h") == 0 || strcmp(dot, ".cu") == 0);
}

static void split(tree_file_t *file, char *text)
{
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        if (!rest && !*line) {
            break;  // What follows the last end of line.
        }
        file->lines = hx_grow(file->lines, file->lines_count + 1, sizeof *file->lines);
        file->lines[file->lines_count] = strdup(line);
        HX_ASSERT(file->lines[file->lines_count]);
        file->lines_count++;
    }
}

static void add(tree_t *self, const char *root, const char *folder, const char *name)
{
    char path[512];
    char full[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(full, sizeof full, "%s/%s", root, path);
    char *const text = tree_text(full);
    HX_ASSERT(text);
    self->files = hx_grow(self->files, self->files_count + 1, sizeof *self->files);
    tree_file_t *const file = &self->files[self->files_count++];
    *file = (tree_file_t){.path = strdup(path)};
    HX_ASSERT(file->path);
    snprintf(file->folder, sizeof file->folder, "%.*s", (int)strcspn(folder, "/"), folder);
    snprintf(file->stem, sizeof file->stem, "%.*s", (int)(strrchr(name, '.') - name), name);
    file->header = strcmp(strrchr(name, '.'), ".h") == 0;
    split(file, text);
    free(text);
}

tree_t tree_read(const char *root)
{
    tree_t self = {0};
    for (size_t folder = 0; folder < HX_COUNT(FOLDERS); folder++) {
        char path[1024];
        struct dirent **entries = NULL;
        snprintf(path, sizeof path, "%s/%s", root, FOLDERS[folder]);
        const int count = scandir(path, &entries, NULL, alphasort);
        HX_ASSERT(count >= 0);
        for (int index = 0; index < count; index++) {
            if (is_source(entries[index]->d_name)) {
                add(&self, root, FOLDERS[folder], entries[index]->d_name);
            }
            free(entries[index]);
        }
        free(entries);
    }
    return self;
}

void tree_destroy(tree_t *self)
{
    for (size_t file = 0; file < self->files_count; file++) {
        for (size_t line = 0; line < self->files[file].lines_count; line++) {
            free(self->files[file].lines[line]);
        }
        free(self->files[file].lines);
        free(self->files[file].path);
    }
    free(self->files);
    *self = (tree_t){0};
}

const tree_file_t *tree_find(const tree_t *self, const char *path)
{
    for (size_t file = 0; file < self->files_count; file++) {
        if (strcmp(self->files[file].path, path) == 0) {
            return &self->files[file];
        }
    }
    return NULL;
}

bool tree_command(const char *command, void (*each)(const char *line, void *self), void *self)
{
    char line[4096];
    FILE *const pipe = popen(command, "r");
    if (!pipe) {
        return false;
    }
    while (fgets(line, sizeof line, pipe)) {
        line[strcspn(line, "\n")] = '\0';
        each(line, self);
    }
    return pclose(pipe) == 0;
}
