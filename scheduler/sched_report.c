// sched_report - what the scheduler tells: a line of progress, the answer to STATUS_ASK, the
// summary.

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/report.h"
#include "scheduler/sched_internal.h"

#define PACE_SMOOTH 0.2  // Weight of the newest in means.

const char *sched_phase_name(sched_phase_t phase)
{
    static const char *const names[] = {
        [SCHED_GATHER] = "gathering nodes",
        [SCHED_PROFILE] = "measuring devices",
        [SCHED_MEASURE] = "measuring lines",
        [SCHED_READY] = "getting ready",
        [SCHED_RUN] = "running",
        [SCHED_STOP] = "stopping",
        [SCHED_SUM] = "summing up",
        [SCHED_OVER] = "over",
    };
    return names[phase];
}

static void put(json_t *object, const char *key, json_t *value)
{
    const int failed = json_object_set_new(object, key, value);  // NULL fails too.
    HX_ASSERT(!failed);
}

static json_t *text_json(const char *text)
{
    json_t *const value = json_string(text);
    return value ? value : json_string("?");
}

static char *dump(json_t *object, size_t flags)
{
    char *const text = json_dumps(object, flags);
    HX_ASSERT(text);
    json_decref(object);
    return text;
}

// ---- Metrics ----

static double smooth(double mean, double value, bool first)
{
    return first ? value : mean + PACE_SMOOTH * (value - mean);
}

static void take_contribution(sched_t *self, const json_t *one, hx_time_t now, double *lags)
{
    const json_int_t pipeline = json_integer_value(json_object_get(one, "pipeline"));
    const json_int_t lag = json_integer_value(json_object_get(one, "lag"));
    *lags += (double)lag;
    if (pipeline < 0 || pipeline >= (json_int_t)self->plan.pipelines_count) {
        return;
    }
    sched_pace_t *const pace = &self->paces[pipeline];
    const double tokens = (double)json_integer_value(json_object_get(one, "tokens"));
    if (pace->at > 0 && now > pace->at) {
        const double seconds = (double)(now - pace->at) / 1e9;
        pace->seconds = smooth(pace->seconds, seconds, pace->seconds <= 0);
    }
    pace->tokens = smooth(pace->tokens, tokens, pace->steps == 0);
    pace->lag = (uint32_t)HX_MAX(lag, 0);
    pace->at = now;
    pace->steps++;
}

void sched_read_metrics(sched_t *self, const blob_t *line, hx_time_t now)
{
    if (blob_size(line) == 0) {
        return;
    }
    json_t *const metrics = json_loadb(blob_data(line), blob_size(line), 0, NULL);
    const json_t *const speed = json_object_get(metrics, "tokens_per_second");
    if (json_is_number(speed)) {
        self->speed = json_number_value(speed);
    }
    const json_t *const list = json_object_get(metrics, "contributions");
    double lags = 0;
    size_t at = 0;
    const json_t *one = NULL;
    json_array_foreach(list, at, one)
    {
        take_contribution(self, one, now, &lags);
    }
    if (json_array_size(list) > 0) {
        self->lag = lags / (double)json_array_size(list);
    }
    json_decref(metrics);
}

// Of the goal that is reached first; NaN: no goal tells.
static double seconds_left(const sched_t *self)
{
    double left = NAN;
    if (self->conf.goal_tokens > 0 && self->speed > 0) {
        const double tokens = (double)self->conf.goal_tokens - (double)self->tokens;
        left = fmax(tokens, 0) / self->speed;
    }
    if (self->conf.goal_seconds > 0) {
        left = fmin(left, fmax(self->conf.goal_seconds - self->seconds, 0));
    }
    return left;
}

void sched_progress_line(const sched_t *self, hx_time_t now, char *out, size_t out_size)
{
    (void)now;
    char tokens[32], speed[32], left[32], goal[64] = {0};
    report_count((double)self->tokens, tokens, sizeof tokens);
    report_count(self->speed, speed, sizeof speed);
    report_duration(seconds_left(self), left, sizeof left);
    if (self->conf.goal_tokens > 0) {
        char all[32];
        report_count((double)self->conf.goal_tokens, all, sizeof all);
        snprintf(goal, sizeof goal, " of %s (%.0f %%)", all,
                 100 * (double)self->tokens / (double)self->conf.goal_tokens);
    }
    snprintf(out, out_size,
             "commit %" PRIu64 "  %s%s tokens  loss %.4f  %s tokens/s  lag %.1f  %s left",
             self->version, tokens, goal, self->loss, speed, self->lag, left);
}

// ---- Status ----

static void put_seat(const sched_t *self, const roster_entry_t *entry, json_t *node)
{
    uint32_t pipeline = 0;
    uint32_t stage = 0;
    uint32_t member = 0;
    if (self->plan.epoch == 0 ||
        !plan_seat_of(&self->plan, entry->node.id, &pipeline, &stage, &member)) {
        return;
    }
    const sched_pace_t *const pace = &self->paces[pipeline];
    put(node, "pipeline", json_integer(pipeline + 1));
    put(node, "stage", json_integer(stage + 1));
    put(node, "step_seconds", report_number(pace->seconds > 0 ? pace->seconds : NAN));
    put(node, "tokens_per_second",
        report_number(pace->seconds > 0 ? pace->tokens / pace->seconds : NAN));
    put(node, "lag", report_number(pace->steps > 0 ? (double)pace->lag : (double)NAN));
}

static json_t *nodes_json(const sched_t *self, hx_time_t now)
{
    json_t *const nodes = json_array();
    for (uint32_t at = 0; at < self->roster.count; at++) {
        const roster_entry_t *const entry = &self->roster.entries[at];
        json_t *const node = json_object();
        put(node, "name", text_json(entry->node.name));
        put(node, "role", json_string(plan_role_name(entry->node.role)));
        put(node, "site", text_json(entry->node.site));
        const bool used =
            self->plan.epoch == 0 || plan_node_of(&self->plan, entry->node.id) != UINT32_MAX;
        put(node, "state",
            json_string(entry->gone      ? "gone"
                        : entry->stopped ? "stopped"
                        : entry->leaving ? "leaving"
                        : used           ? "here"
                                         : "idle"));
        put(node, "heard_seconds", report_number((double)(now - entry->heard_at) / 1e9));
        put_seat(self, entry, node);
        const int failed = json_array_append_new(nodes, node);
        HX_ASSERT(!failed);
    }
    return nodes;
}

char *sched_status_json(const sched_t *self, hx_time_t now)
{
    json_t *const status = json_object();
    char waiting[256];
    sched_waiting(self, waiting, sizeof waiting);
    put(status, "run", text_json(self->conf.run));
    put(status, "mode", text_json(self->conf.mode));
    put(status, "phase",
        json_string(self->stop_asked ? "stopping" : sched_phase_name(self->phase)));
    put(status, "waiting", text_json(waiting));
    put(status, "version", json_integer((json_int_t)self->version));
    put(status, "tokens", json_integer((json_int_t)self->tokens));
    put(status, "loss", report_number(self->loss));
    put(status, "valid_loss", report_number(self->valid));
    put(status, "tokens_per_second", report_number(self->speed));
    put(status, "lag_mean", report_number(self->lag));
    put(status, "seconds", report_number((double)(now - self->started_at) / 1e9));
    put(status, "seconds_left", report_number(seconds_left(self)));
    put(status, "commit_age_seconds",
        report_number(self->commit_at > 0 ? (double)(now - self->commit_at) / 1e9 : NAN));
    put(status, "failures", json_integer(self->failures));
    put(status, "predicted_step_seconds",
        report_number(self->plan.epoch > 0 ? self->plan.step_seconds : NAN));
    put(status, "nodes", nodes_json(self, now));
    put(status, "sync", self->lead_status ? json_incref(self->lead_status) : json_null());
    put(status, "sync_age_seconds",
        report_number(self->lead_status ? (double)(now - self->lead_status_at) / 1e9 : NAN));
    return dump(status, JSON_COMPACT);
}

// ---- Summary ----

void sched_count_bytes(sched_t *self, const roster_entry_t *node, const blob_t *events)
{
    const char *at = blob_data(events);
    size_t left = blob_size(events);
    while (at && left > 0) {
        const char *const end = memchr(at, '\n', left);
        const size_t length = end ? (size_t)(end - at) : left;
        static const char mark[] = "{\"name\":\"bytes_received\"";
        if (length > sizeof mark && memcmp(at, mark, sizeof mark - 1) == 0) {
            json_t *const event = json_loadb(at, length, 0, NULL);
            const char *site = NULL;
            json_t *bytes = NULL;
            json_object_foreach(json_object_get(event, "args"), site, bytes)
            {
                char pair[2 * PLAN_NAME_MAX + 8];
                snprintf(pair, sizeof pair, "%.*s -> %s", PLAN_NAME_MAX - 1, site, node->node.site);
                const json_int_t old = json_integer_value(json_object_get(self->bytes_sent, pair));
                (void)json_object_set_new(self->bytes_sent, pair,
                                          json_integer(old + json_integer_value(bytes)));
            }
            json_decref(event);
        }
        at += length + (end ? 1 : 0);
        left -= length + (end ? 1 : 0);
    }
}

static const char *status_name(int status)
{
    return status == 0 ? "done" : status == 130 ? "interrupted" : "failed";
}

// What the lead's totals would say, where it could not send them.
static void put_own_totals(const sched_t *self, json_t *summary)
{
    put(summary, "version", json_integer((json_int_t)self->version));
    put(summary, "tokens", json_integer((json_int_t)self->tokens));
    put(summary, "tokens_per_second", report_number(self->speed));
    put(summary, "train_loss", report_number(self->loss));
    put(summary, "valid_loss_first", report_number(self->valid_first));
    put(summary, "valid_loss", report_number(self->valid));
    put(summary, "lag_mean", report_number(NAN));
    put(summary, "lag_max", report_number(NAN));
    put(summary, "dropped", json_integer(0));
    put(summary, "measured_step_seconds", report_number(NAN));
}

char *sched_summary_json(const sched_t *self, hx_time_t now)
{
    json_t *const summary = json_object();
    put_own_totals(self, summary);
    if (self->totals) {
        (void)json_object_update(summary, self->totals);
    }
    put(summary, "run", text_json(self->conf.run));
    put(summary, "status", json_string(status_name(self->status)));
    put(summary, "reason", text_json(self->reason));
    put(summary, "seconds", report_number((double)(now - self->started_at) / 1e9));
    put(summary, "mode", text_json(self->conf.mode));
    put(summary, "replans", json_integer(0));
    put(summary, "failures", json_integer(self->failures));
    put(summary, "predicted_step_seconds",
        report_number(self->plan.epoch > 0 ? self->plan.step_seconds : NAN));
    put(summary, "plan",
        self->plan.epoch > 0 ? report_plan_json(&self->plan, self->conf.planner.model)
                             : json_null());
    put(summary, "bytes_sent", json_incref(self->bytes_sent));
    return dump(summary, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
}
