// bench_transport_test - harmony-bench net and ps, for moments: what they print, and that every row
// was really measured. No timing is judged.

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tensor/hx.h"
#include "tests/support/run.h"

// What the topic prints on standard output, and its exit status.
static json_t *bench(const char *arguments, int *status)
{
    char command[512];
    snprintf(command, sizeof command, "timeout 120 '%s' %s", run_program("harmony-bench"),
             arguments);
    FILE *const out = popen(command, "r");
    cr_assert_not_null(out);
    json_error_t error;
    json_t *const object = json_loadf(out, 0, &error);
    *status = WEXITSTATUS(pclose(out));
    return object;
}

static double number(const json_t *row, const char *key)
{
    const json_t *const value = json_object_get(row, key);
    cr_assert(json_is_number(value), "%s is there", key);
    return json_number_value(value);
}

static const char *text(const json_t *row, const char *key)
{
    const char *const value = json_string_value(json_object_get(row, key));
    cr_assert_not_null(value, "%s is there", key);
    return value;
}

static void check_measured(const json_t *row)
{
    const double ratio = number(row, "goodput") / number(row, "raw");
    cr_assert_gt(number(row, "goodput"), 0);
    cr_assert_gt(number(row, "raw"), 0);
    cr_assert_float_eq(number(row, "ratio"), ratio, 1e-3 * ratio);
    cr_assert_gt(number(row, "cpu"), 0);
    cr_assert_gt(number(row, "raw_cpu"), 0);
}

Test(bench_transport, net_measures_every_size_over_both_transports)
{
    int status = -1;
    json_t *const object =
        bench("net --json --sizes 4K,100000 --seconds 0.05 --repeats 1", &status);
    cr_assert_eq(status, 0);
    const json_t *const rows = json_object_get(object, "rows");
    cr_assert_eq(json_array_size(rows), 4);
    for (size_t at = 0; at < 4; at++) {
        const json_t *const row = json_array_get(rows, at);
        check_measured(row);
        cr_assert_str_eq(text(row, "transport"), at < 2 ? "tcp" : "ipc");
        cr_assert_eq(number(row, "bytes"), at % 2 == 0 ? 4096 : 100000);
        cr_assert(json_is_false(json_object_get(row, "curve")));
        cr_assert_gt(number(row, "round_trip"), 0);
    }
    json_decref(object);
}

Test(bench_transport, ps_measures_with_and_without_an_optimizer)
{
    int status = -1;
    json_t *const object = bench(
        "ps --json --sizes 64K --transport tcp --workers 2 --shards 2 --seconds 0.05 --repeats 1",
        &status);
    cr_assert_eq(status, 0);
    const json_t *const rows = json_object_get(object, "rows");
    cr_assert_eq(json_array_size(rows), 2);
    for (size_t at = 0; at < 2; at++) {
        const json_t *const row = json_array_get(rows, at);
        check_measured(row);
        cr_assert_str_eq(text(row, "optimizer"), at == 0 ? "none" : "adamw");
        cr_assert_eq(number(row, "workers"), 2);
        cr_assert_eq(number(row, "shards"), 2);
        cr_assert_gt(number(row, "apply_seconds"), 0);
    }
    json_decref(object);
}

Test(bench_transport, what_cannot_be_measured_is_refused)
{
    static const char *const wrong[] = {
        "net --sizes 4Q 2>/dev/null",     "net --repeats 33 2>/dev/null",
        "ps --transport udp 2>/dev/null", "ps --shards 17 2>/dev/null",
        "ps --optimizer sgd 2>/dev/null", "ps --sizes 1K 2>/dev/null",
    };
    for (size_t at = 0; at < HX_COUNT(wrong); at++) {
        int status = -1;
        cr_assert_null(bench(wrong[at], &status));
        cr_assert_eq(status, 2, "%s", wrong[at]);
    }
}
