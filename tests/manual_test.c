// manual: every program has its page in docs/man, and the page has every option that --help shows.

#include "tests/support/tree.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *program;
    char *page;
    size_t options;
} manual_t;

// "  -s, --site SITE   ..." of a help text: the page must have it too.
static void check_option(const char *line, void *self)
{
    manual_t *const manual = self;
    const char *const start = strstr(line, "--");
    if (line[0] != ' ' || !start || strspn(line, " -abcdefghijklmnopqrstuvwxyz,") < 6 ||
        !islower((unsigned char)start[2])) {
        return;
    }
    char escaped[128] = "";
    size_t used = 0;
    for (const char *at = start; *at == '-' || islower((unsigned char)*at); at++) {
        used +=
            (size_t)snprintf(escaped + used, sizeof escaped - used, *at == '-' ? "\\-" : "%c", *at);
        cr_assert_lt(used, sizeof escaped);
    }
    manual->options++;
    cr_expect(strstr(manual->page, escaped), "docs/man/%s.1 does not have %.*s", manual->program,
              (int)strcspn(start, " "), start);
}

static void check_manual(const tree_file_t *main_file)
{
    char program[128];
    char path[1024];
    char command[1200];
    snprintf(program, sizeof program, "harmony-%.*s",
             (int)(strlen(main_file->stem) - strlen("_main")), main_file->stem);
    snprintf(path, sizeof path, "%s/docs/man/%s.1", HX_SOURCE_DIR, program);
    manual_t manual = {.program = program, .page = tree_text(path)};
    cr_assert(manual.page, "%s has no page in docs/man", program);
    snprintf(command, sizeof command, "'%s/bin/%s' --help", HX_BINARY_DIR, program);
    cr_expect(tree_command(command, check_option, &manual), "%s failed", command);
    cr_expect_geq(manual.options, 1, "%s --help shows %zu options", program, manual.options);
    free(manual.page);
}

Test(manual, every_program_has_a_page_with_its_options)
{
    tree_t tree = tree_read(HX_SOURCE_DIR);
    size_t programs = 0;
    for (size_t index = 0; index < tree.files_count; index++) {
        if (strstr(tree.files[index].path, "_main.c")) {
            check_manual(&tree.files[index]);
            programs++;
        }
    }
    cr_expect_geq(programs, 5, "%zu programs", programs);
    tree_destroy(&tree);
}
