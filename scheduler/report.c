// report - tables by columns of fixed width; JSON through jansson.

#include "scheduler/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_text.h"

#define AGE_MAX 3.0   // Seconds after which the lead's word is called old.
#define BAR_MAX 40.0  // Characters of the longest bar.

void report_count(double value, char *out, size_t out_size)
{
    if (!isfinite(value)) {
        snprintf(out, out_size, "-");
    } else if (value >= 9.995e8) {
        snprintf(out, out_size, "%.2fG", value / 1e9);
    } else if (value >= 9.995e5) {
        snprintf(out, out_size, "%.2fM", value / 1e6);
    } else if (value >= 9.995e3) {
        snprintf(out, out_size, "%.1fk", value / 1e3);
    } else {
        snprintf(out, out_size, "%.0f", value);
    }
}

void report_duration(double seconds, char *out, size_t out_size)
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e9) {
        snprintf(out, out_size, "-");
        return;
    }
    const uint64_t whole = (uint64_t)llround(seconds);
    if (whole >= 3600) {
        snprintf(out, out_size, "%" PRIu64 ":%02u:%02u", whole / 3600, (unsigned)(whole / 60 % 60),
                 (unsigned)(whole % 60));
    } else {
        snprintf(out, out_size, "%" PRIu64 ":%02u", whole / 60, (unsigned)(whole % 60));
    }
}

json_t *report_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void put(json_t *object, const char *key, json_t *value)
{
    const int failed = json_object_set_new(object, key, value);  // NULL fails too.
    HX_ASSERT(!failed);
}

static void append(json_t *array, json_t *value)
{
    const int failed = json_array_append_new(array, value);
    HX_ASSERT(!failed);
}

// Names come from peers: what is no UTF-8 becomes "?".
static json_t *text_json(const char *text)
{
    json_t *const value = json_string(text);
    return value ? value : json_string("?");
}

static uint32_t blocks_of(const plan_stage_t *stage, const model_t *model)
{
    uint32_t blocks = 0;
    for (uint32_t layer = stage->layer_first; layer < stage->layer_end; layer++) {
        blocks += model_layer(model, layer)->kind == LAYER_BLOCK ? 1 : 0;
    }
    return blocks;
}

static uint64_t rows_of(const plan_t *plan)
{
    uint64_t rows = 0;
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        rows += plan->pipelines[at].rows;
    }
    return rows;
}

static double speed_of(const plan_t *plan, const model_t *model)
{
    const double tokens = (double)rows_of(plan) * model_conf(model)->context;
    return plan->step_seconds > 0 ? tokens / plan->step_seconds : NAN;
}

static uint64_t shard_params(const plan_t *plan, const model_t *model, uint32_t shard)
{
    uint64_t params = 0;
    for (uint32_t group = 0; group < plan->groups_count; group++) {
        params += plan->group_shard[group] == shard ? model_group(model, group)->size : 0;
    }
    return params;
}

// "embedding + blocks 1-3 + head"
static void layers_text(const plan_stage_t *stage, const model_t *model, char *out, size_t out_size)
{
    const bool embed = model_layer(model, stage->layer_first)->kind == LAYER_EMBED;
    const bool head = model_layer(model, stage->layer_end - 1)->kind == LAYER_HEAD;
    const uint32_t blocks = blocks_of(stage, model);
    const uint32_t first = embed ? 1 : stage->layer_first;
    char middle[48] = {0};
    if (blocks == 1) {
        snprintf(middle, sizeof middle, "block %" PRIu32, first);
    } else if (blocks > 1) {
        snprintf(middle, sizeof middle, "blocks %" PRIu32 "-%" PRIu32, first, first + blocks - 1);
    }
    snprintf(out, out_size, "%s%s%s%s%s", embed ? "embedding" : "", embed && blocks ? " + " : "",
             middle, head && stage->layer_end - stage->layer_first > 1 ? " + " : "",
             head ? "head" : "");
}

static void stage_text(const plan_t *plan, const model_t *model, uint32_t pipeline, uint32_t stage,
                       hx_text_t *text)
{
    const plan_stage_t *const at = plan_stage(plan, pipeline, stage);
    char layers[96];
    layers_text(at, model, layers, sizeof layers);
    for (uint32_t member = 0; member < at->members_count; member++) {
        const plan_node_t *const node = plan_member_node(plan, pipeline, stage, member);
        hx_text_add(text,
                    "    stage %-3" PRIu32
                    " %-24s %-32s %8.2f ms forward %8.2f ms backward  depth %" PRIu32 "\n",
                    stage + 1, node->name, layers, at->forward_seconds * 1e3,
                    at->backward_seconds * 1e3, at->depth);
    }
}

char *report_plan_text(const plan_t *plan, const model_t *model)
{
    hx_text_t text = {0};
    char speed[32];
    report_count(speed_of(plan, model), speed, sizeof speed);
    hx_text_add(&text,
                "plan %" PRIu32 ": %" PRIu32 " pipeline%s, %" PRIu32 " stage%s, %" PRIu32
                " shard%s; predicted %.4f s a step, %s tokens/s\n",
                plan->epoch, plan->pipelines_count, plan->pipelines_count == 1 ? "" : "s",
                plan->stages_count, plan->stages_count == 1 ? "" : "s", plan->shards_count,
                plan->shards_count == 1 ? "" : "s", plan->step_seconds, speed);
    for (uint32_t pipeline = 0; pipeline < plan->pipelines_count; pipeline++) {
        const plan_pipeline_t *const at = &plan->pipelines[pipeline];
        hx_text_add(&text,
                    "  pipeline %" PRIu32 ": %" PRIu32 " of %" PRIu64
                    " rows in microbatches of %" PRIu32 ", %s, %.4f s\n",
                    pipeline + 1, at->rows, rows_of(plan), at->microbatch,
                    schedule_kind_name(at->schedule), at->step_seconds);
        for (uint32_t stage = 0; stage < at->stages_count; stage++) {
            stage_text(plan, model, pipeline, stage, &text);
        }
    }
    for (uint32_t shard = 0; shard < plan->shards_count; shard++) {
        char params[32];
        report_count((double)shard_params(plan, model, shard), params, sizeof params);
        hx_text_add(&text, "  shard %-3" PRIu32 " %-26s %s parameters\n", shard + 1,
                    plan_shard_node(plan, shard)->name, params);
    }
    return text.bytes;
}

static json_t *stage_json(const plan_t *plan, const model_t *model, uint32_t pipeline,
                          uint32_t stage)
{
    const plan_stage_t *const at = plan_stage(plan, pipeline, stage);
    json_t *const object = json_object();
    json_t *const layers = json_array();
    append(layers, json_integer(at->layer_first));
    append(layers, json_integer(at->layer_end));
    put(object, "layers", layers);
    put(object, "blocks", json_integer(blocks_of(at, model)));
    put(object, "depth", json_integer(at->depth));
    put(object, "forward_seconds", report_number(at->forward_seconds));
    put(object, "backward_seconds", report_number(at->backward_seconds));
    json_t *const members = json_array();
    for (uint32_t member = 0; member < at->members_count; member++) {
        const plan_node_t *const node = plan_member_node(plan, pipeline, stage, member);
        json_t *const one = json_object();
        put(one, "name", text_json(node->name));
        put(one, "site", text_json(node->site));
        put(one, "share", report_number(plan->members[at->member_first + member].share));
        append(members, one);
    }
    put(object, "members", members);
    return object;
}

json_t *report_plan_json(const plan_t *plan, const model_t *model)
{
    json_t *const object = json_object();
    put(object, "epoch", json_integer(plan->epoch));
    put(object, "step_seconds", report_number(plan->step_seconds));
    put(object, "tokens_per_second", report_number(speed_of(plan, model)));
    json_t *const pipelines = json_array();
    for (uint32_t pipeline = 0; pipeline < plan->pipelines_count; pipeline++) {
        const plan_pipeline_t *const at = &plan->pipelines[pipeline];
        json_t *const one = json_object();
        put(one, "rows", json_integer(at->rows));
        put(one, "share", report_number((double)at->rows / (double)rows_of(plan)));
        put(one, "microbatch", json_integer(at->microbatch));
        put(one, "schedule", json_string(schedule_kind_name(at->schedule)));
        put(one, "step_seconds", report_number(at->step_seconds));
        json_t *const stages = json_array();
        for (uint32_t stage = 0; stage < at->stages_count; stage++) {
            append(stages, stage_json(plan, model, pipeline, stage));
        }
        put(one, "stages", stages);
        append(pipelines, one);
    }
    put(object, "pipelines", pipelines);
    json_t *const shards = json_array();
    for (uint32_t shard = 0; shard < plan->shards_count; shard++) {
        json_t *const one = json_object();
        put(one, "name", text_json(plan_shard_node(plan, shard)->name));
        put(one, "site", text_json(plan_shard_node(plan, shard)->site));
        put(one, "parameters", json_integer((json_int_t)shard_params(plan, model, shard)));
        append(shards, one);
    }
    put(object, "shards", shards);
    put(object, "lead", text_json(plan->nodes[plan->lead].name));
    put(object, "keeper", text_json(plan->nodes[plan->keeper].name));
    return object;
}

// ---- Status ----

static const char *text_of(const json_t *object, const char *key)
{
    const char *const text = json_string_value(json_object_get(object, key));
    return text ? text : "-";
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *const value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void number_text(double value, int digits, char *out, size_t out_size)
{
    char text[32];
    snprintf(text, sizeof text, "%.*f", digits, value);
    snprintf(out, out_size, "%s", isfinite(value) ? text : "-");
}

static void node_line(const json_t *node, hx_text_t *text)
{
    char heard[32], pipeline[32], stage[32], step[32], speed[32], lag[32];
    number_text(number_of(node, "heard_seconds"), 1, heard, sizeof heard);
    number_text(number_of(node, "pipeline"), 0, pipeline, sizeof pipeline);
    number_text(number_of(node, "stage"), 0, stage, sizeof stage);
    number_text(number_of(node, "step_seconds"), 3, step, sizeof step);
    report_count(number_of(node, "tokens_per_second"), speed, sizeof speed);
    number_text(number_of(node, "lag"), 1, lag, sizeof lag);
    hx_text_add(text, "%-26s %-9s %-12s %-7s %7s %9s %6s %9s %9s %5s\n", text_of(node, "name"),
                text_of(node, "role"), text_of(node, "site"), text_of(node, "state"), heard,
                pipeline, stage, step, speed, lag);
}

static void pipeline_line(const json_t *pipeline, hx_text_t *text)
{
    char lag[32], mean[32], step[32], spread[32], forced[32];
    number_text(number_of(pipeline, "lag"), 0, lag, sizeof lag);
    number_text(number_of(pipeline, "lag_mean"), 1, mean, sizeof mean);
    number_text(number_of(pipeline, "step_seconds"), 3, step, sizeof step);
    number_text(number_of(pipeline, "step_spread"), 3, spread, sizeof spread);
    number_text(number_of(pipeline, "forced_seconds"), 1, forced, sizeof forced);
    hx_text_add(text, "%-9.0f %-8s %8.0f %4s %9s %5.0f %9.0f %8s %8s %13.0f %9s\n",
                fmax(number_of(pipeline, "pipeline"), 0), text_of(pipeline, "state"),
                fmax(number_of(pipeline, "base"), 0), lag, mean,
                fmax(number_of(pipeline, "held"), 0), fmax(number_of(pipeline, "in_flight"), 0),
                step, spread, fmax(number_of(pipeline, "forced_waits"), 0), forced);
}

// A bar for each lag that was committed, the longest of them BAR_MAX wide.
static void lag_bars(const json_t *lags, hx_text_t *text)
{
    double most = 0;
    size_t last = 0;
    const size_t count = json_array_size(lags);
    for (size_t at = 0; at < count; at++) {
        const double value = json_number_value(json_array_get(lags, at));
        most = fmax(most, value);
        last = value > 0 ? at : last;
    }
    for (size_t at = 0; most > 0 && at <= last; at++) {
        const double value = json_number_value(json_array_get(lags, at));
        const int width = (int)ceil(BAR_MAX * value / most);
        hx_text_add(text, "lag %2zu%s %10.0f ", at, at + 1 == count ? "+" : " ", value);
        for (int dot = 0; dot < width; dot++) {
            hx_text_add(text, "#");
        }
        hx_text_add(text, "\n");
    }
}

// What the lead said of its rounds and pipelines; nothing before it said so.
static void sync_text(const json_t *status, hx_text_t *text)
{
    const json_t *const sync = json_object_get(status, "sync");
    const json_t *const pipelines = json_object_get(sync, "pipelines");
    if (!json_is_array(pipelines)) {
        return;
    }
    char quorum[32], staleness[32], grace[32], alpha[32], rate[32];
    number_text(number_of(sync, "quorum"), 2, quorum, sizeof quorum);
    number_text(number_of(sync, "staleness"), 0, staleness, sizeof staleness);
    number_text(number_of(sync, "grace"), 2, grace, sizeof grace);
    number_text(number_of(sync, "alpha"), 2, alpha, sizeof alpha);
    number_text(number_of(sync, "lr"), 6, rate, sizeof rate);
    hx_text_add(text,
                "\nquorum %s, staleness %s, grace %s, alpha %s, lr %s; the round waits for %s\n",
                quorum, isfinite(number_of(sync, "staleness")) ? staleness : "none", grace, alpha,
                rate, text_of(sync, "waits_for"));
    const double age = number_of(status, "sync_age_seconds");
    if (age > AGE_MAX) {
        hx_text_add(text, "the lead was heard of last %.0f s ago: this is how it stood then\n",
                    age);
    }
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(json_object_get(sync, "set"), key, value)
    {
        const char *const set = json_string_value(value);
        hx_text_add(text, "set while the run is on: %s = %s\n", key, set ? set : "-");
    }
    hx_text_add(text, "%-9s %-8s %8s %4s %9s %5s %9s %8s %8s %13s %9s\n", "pipeline", "state",
                "base", "lag", "mean lag", "held", "in flight", "step s", "spread s",
                "forced waits", "waited s");
    size_t at = 0;
    const json_t *pipeline = NULL;
    json_array_foreach(pipelines, at, pipeline)
    {
        pipeline_line(pipeline, text);
    }
    lag_bars(json_object_get(sync, "lags"), text);
}

hx_err_t report_status_text(const char *json, size_t size, char **out)
{
    json_t *const status = json_loadb(json, size, 0, NULL);
    const json_t *const nodes = json_object_get(status, "nodes");
    if (!json_is_array(nodes)) {
        json_decref(status);
        return HX_E_FORMAT;
    }
    hx_text_t text = {0};
    char tokens[32], speed[32], left[32], seconds[32], loss[32];
    report_count(number_of(status, "tokens"), tokens, sizeof tokens);
    report_count(number_of(status, "tokens_per_second"), speed, sizeof speed);
    report_duration(number_of(status, "seconds_left"), left, sizeof left);
    report_duration(number_of(status, "seconds"), seconds, sizeof seconds);
    number_text(number_of(status, "loss"), 3, loss, sizeof loss);
    hx_text_add(
        &text,
        "run \"%s\": %s, %s; commit %.0f, %s tokens, loss %s, %s tokens/s, since %s, left %s\n",
        text_of(status, "run"), text_of(status, "phase"), text_of(status, "mode"),
        fmax(number_of(status, "version"), 0), tokens, loss, speed, seconds, left);
    if (json_string_length(json_object_get(status, "waiting")) > 0) {
        hx_text_add(&text, "%s\n", text_of(status, "waiting"));
    }
    hx_text_add(&text, "%-26s %-9s %-12s %-7s %7s %9s %6s %9s %9s %5s\n", "node", "role", "site",
                "state", "heard s", "pipeline", "stage", "step s", "tokens/s", "lag");
    size_t at = 0;
    const json_t *node = NULL;
    json_array_foreach(nodes, at, node)
    {
        node_line(node, &text);
    }
    sync_text(status, &text);
    json_decref(status);
    *out = text.bytes;
    return HX_OK;
}
