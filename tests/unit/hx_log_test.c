// hx_log_test - the line of a record, levels, sinks, and lines of many threads.

#include "tensor/hx_log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// 2026-01-31T12:34:56.789Z
#define WALL (HX_SEC(1769862896) + HX_MS(789))

static char path[64];

static void make_path(void)
{
    snprintf(path, sizeof path, "/tmp/hx_log_test_%d", (int)getpid());
}

static void drop_path(void)
{
    hx_log_close();
    unlink(path);
}

static size_t read_file(const char *name, char *text, size_t size)
{
    FILE *const file = fopen(name, "r");
    cr_assert_not_null(file);
    const size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    fclose(file);
    return length;
}

Test(hx_log, a_line_holds_time_level_name_and_text)
{
    char line[HX_LOG_LINE_MAX];
    const size_t length = hx_log_format(line, sizeof line, WALL, HX_LOG_WARN, "shard-2", "dropped");
    cr_assert_str_eq(line, "2026-01-31T12:34:56.789Z warn  shard-2: dropped\n");
    cr_assert_eq(length, strlen(line));
}

Test(hx_log, control_characters_are_escaped)
{
    char line[HX_LOG_LINE_MAX];
    hx_log_format(line, sizeof line, WALL, HX_LOG_INFO, "n\n", "a\rb\x1b[0m\x7f\xc2\x9b z\xc3\xa9");
    cr_assert_str_eq(line, "2026-01-31T12:34:56.789Z info  n\\x0a: a\\x0db\\x1b[0m\\x7f\\xc2\\x9b z"
                           "\xc3\xa9\n");
}

Test(hx_log, long_texts_are_cut_aloud)
{
    char line[128];
    char text[1000];
    for (size_t length = 0; length < sizeof text; length++) {
        memset(text, length % 2 ? '\n' : 'x', sizeof text);
        text[length] = '\0';
        const size_t got = hx_log_format(line, sizeof line, WALL, HX_LOG_DEBUG, "node", text);
        cr_assert_lt(got, sizeof line);
        cr_assert_eq(got, strlen(line));
        cr_assert_eq(line[got - 1], '\n');
        cr_assert_eq(strchr(line, '\n'), line + got - 1, "one line");
    }
    cr_assert_str_eq(line + strlen(line) - 4, "...\n");
}

Test(hx_log, level_follows_v_and_q)
{
    cr_assert_eq(hx_log_level_of(0, 0), HX_LOG_INFO);
    cr_assert_eq(hx_log_level_of(1, 0), HX_LOG_DEBUG);
    cr_assert_eq(hx_log_level_of(9, 0), HX_LOG_DEBUG);
    cr_assert_eq(hx_log_level_of(0, 1), HX_LOG_WARN);
    cr_assert_eq(hx_log_level_of(0, 9), HX_LOG_ERROR);
}

Test(hx_log, file_gets_what_the_level_lets_through, .init = make_path, .fini = drop_path)
{
    char text[1000];
    hx_fault_t fault;
    const hx_log_conf_t conf = {.name = "lead", .level = HX_LOG_WARN, .quiet = true, .file = path};
    cr_assert_eq(hx_log_open(&conf, &fault), HX_OK);
    cr_assert(hx_log_wants(HX_LOG_ERROR) && hx_log_wants(HX_LOG_WARN));
    cr_assert_not(hx_log_wants(HX_LOG_INFO));
    hx_log_info("not this");
    hx_log_warn("round %d", 7);
    hx_log_set_level(HX_LOG_DEBUG);
    hx_log_set_name("worker-1");
    hx_log_debug("that");
    hx_log_set_name(NULL);
    hx_log_error("last");
    read_file(path, text, sizeof text);
    cr_assert_null(strstr(text, "not this"));
    cr_assert_not_null(strstr(text, "Z warn  lead: round 7\n"));
    cr_assert_not_null(strstr(text, "Z debug worker-1: that\n"));
    cr_assert_not_null(strstr(text, "Z error lead: last\n"));
}

// Standard error is put into a file for the time of the test.
Test(hx_log, quiet_leaves_errors_on_standard_error, .init = make_path, .fini = drop_path)
{
    char text[1000];
    const int saved = dup(STDERR_FILENO);
    const int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(file, STDERR_FILENO);
    const hx_log_conf_t conf = {.name = "n", .level = HX_LOG_DEBUG, .quiet = true};
    const hx_err_t err = hx_log_open(&conf, NULL);
    hx_log_warn("hidden");
    hx_log_error("shown");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    cr_assert_eq(err, HX_OK);
    read_file(path, text, sizeof text);
    cr_assert_null(strstr(text, "hidden"));
    cr_assert_not_null(strstr(text, "error n: shown\n"));
}

Test(hx_log, a_file_that_cannot_be_opened_is_a_fault_and_changes_nothing)
{
    hx_fault_t fault;
    const hx_log_conf_t conf = {.name = "x", .level = HX_LOG_DEBUG, .file = "/nowhere/at/all"};
    cr_assert_eq(hx_log_open(&conf, &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, "/nowhere/at/all"));
    cr_assert_not(hx_log_wants(HX_LOG_DEBUG));
}

enum { THREADS = 4, LINES = 300 };

static void *write_lines(void *name)
{
    hx_log_set_name(name);
    for (int line = 0; line < LINES; line++) {
        hx_log_info("line %d of this thread, and some words to make it longer", line);
    }
    return NULL;
}

Test(hx_log, lines_of_threads_stay_whole, .init = make_path, .fini = drop_path)
{
    static char text[THREADS * LINES * 200];
    char names[THREADS][16];
    pthread_t threads[THREADS];
    const hx_log_conf_t conf = {.level = HX_LOG_INFO, .quiet = true, .file = path};
    cr_assert_eq(hx_log_open(&conf, NULL), HX_OK);
    for (int at = 0; at < THREADS; at++) {
        snprintf(names[at], sizeof names[at], "t%d", at);
        cr_assert_eq(pthread_create(&threads[at], NULL, write_lines, names[at]), 0);
    }
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
    }
    read_file(path, text, sizeof text);
    int lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int thread = -1;
        int number = -1;
        const int read = sscanf(line, "%*s info  t%d: line %d of this", &thread, &number);
        cr_assert_eq(read, 2, "%s", line);
        cr_assert_str_eq(line + strlen(line) - 6, "longer");
        lines++;
    }
    cr_assert_eq(lines, THREADS * LINES);
}
