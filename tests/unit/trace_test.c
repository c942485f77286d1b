// trace: a ring that keeps the newest, and lines that are JSON.

#include "worker/trace.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void add(trace_t *trace, trace_kind_t kind, uint32_t micro, hx_time_t begin, hx_time_t end)
{
    trace_add(trace, &(trace_span_t){kind, micro, 5, begin, end});
}

Test(trace, keeps_the_newest_and_counts_the_rest)
{
    trace_t *trace = trace_new(3);
    for (uint32_t micro = 0; micro < 5; micro++) {
        add(trace, TRACE_FORWARD, micro, micro, micro + 1);
    }
    cr_assert_eq(trace_count(trace), 3);
    cr_assert_eq(trace_forgotten(trace), 2);
    for (uint32_t index = 0; index < 3; index++) {
        cr_assert_eq(trace_at(trace, index)->micro, index + 2);
    }
    trace_destroy(&trace);
    cr_assert_null(trace);
}

Test(trace, span_never_ends_before_it_begins)
{
    trace_t *trace = trace_new(1);
    add(trace, TRACE_SEND, 0, HX_US(7), HX_US(6));
    cr_assert_eq(trace_at(trace, 0)->end, HX_US(7));
    trace_destroy(&trace);
}

Test(trace, without_spans_there_is_nothing_to_write)
{
    trace_t *trace = trace_new(4);
    cr_assert_null(trace_write(trace, "east/fast"));
    trace_destroy(&trace);
}

Test(trace, every_line_is_an_event)
{
    trace_t *trace = trace_new(100);
    for (uint32_t kind = 0; kind < TRACE_KINDS_COUNT; kind++) {
        for (uint32_t micro = 0; micro < 10; micro++) {
            add(trace, (trace_kind_t)kind, micro, HX_MS(kind), HX_MS(kind) + HX_US(1500));
        }
    }
    const char name[] = "ea\"st\\fa\nst";
    blob_t *blob = trace_write(trace, name);
    char *const text = strndup(blob_data(blob), blob_size(blob));
    uint32_t lines = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *const event = json_loads(line, 0, NULL);
        cr_assert_not_null(event, "not JSON: %s", line);
        const uint32_t kind = lines / 10;
        cr_assert_str_eq(json_string_value(json_object_get(event, "name")),
                         trace_kind_name((trace_kind_t)kind));
        cr_assert_str_eq(json_string_value(json_object_get(event, "ph")), "X");
        cr_assert_str_eq(json_string_value(json_object_get(event, "pid")), name);
        cr_assert_str_eq(json_string_value(json_object_get(event, "tid")), name);
        cr_assert_float_eq(json_number_value(json_object_get(event, "ts")), 1000.0 * kind, 1e-6);
        cr_assert_float_eq(json_number_value(json_object_get(event, "dur")), 1500, 1e-6);
        const json_t *const args = json_object_get(event, "args");
        cr_assert_eq(json_integer_value(json_object_get(args, "attempt")), 5);
        cr_assert_eq(
            json_integer_value(json_object_get(args, kind == TRACE_PUSH ? "block" : "micro")),
            lines % 10);
        json_decref(event);
        lines++;
    }
    cr_assert_eq(lines, TRACE_KINDS_COUNT * 10);
    free(text);
    blob_release(&blob);
    trace_destroy(&trace);
}

Test(trace, longest_name_still_makes_json)
{
    char name[4096];
    memset(name, '\n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    trace_t *trace = trace_new(1);
    trace_add(trace, &(trace_span_t){TRACE_PULL, UINT32_MAX, INT64_MAX, 0, INT64_MAX / 2});
    blob_t *blob = trace_write(trace, name);
    json_t *const event = json_loadb(blob_data(blob), blob_size(blob), 0, NULL);
    cr_assert_not_null(event);
    json_decref(event);
    blob_release(&blob);
    trace_destroy(&trace);
}
