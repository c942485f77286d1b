// report - plans as text for people and as JSON for programs; progress and status likewise.
//
// Pure. Texts are given back by free().

#ifndef REPORT_H
#define REPORT_H

#include "model/plan.h"

#include <jansson.h>

// The plan as a table: a line a pipeline, a line a stage, a line a shard, ended by newlines.
char *report_plan_text(const plan_t *plan, const model_t *model);
// {"step_seconds", "tokens_per_second", "pipelines": [{"rows", "microbatch", "schedule",
// "step_seconds", "stages": [{"layers": [first, end], "blocks", "depth", "forward_seconds",
// "backward_seconds", "members": [{"name", "site", "share"}]}]}], "shards": [{"name", "site",
// "parameters"}], ...}. The caller owns it.
json_t *report_plan_json(const plan_t *plan, const model_t *model);

// A number, or null where it is none (JSON has no NaN).
json_t *report_number(double value);

// The answer to STATUS_ASK as a table. HX_E_FORMAT: it is not such an answer.
HX_MUST_USE hx_err_t report_status_text(const char *json, size_t size, char **out);

// "1.2M", "45.2k", "980": a count of things.
void report_count(double value, char *out, size_t out_size);
// "0:07", "12:40", "3:02:01".
void report_duration(double seconds, char *out, size_t out_size);

#endif
