// sched_run - while the run goes: progress, losses, the end.

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/sched_internal.h"

static node_id_t lead_of(const sched_t *self)
{
    return self->plan.epoch > 0 ? self->plan.nodes[self->plan.lead].id : NODE_NONE;
}

void sched_on_ack(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase != SCHED_READY || in->peer != lead_of(self) ||
        in->msg.epoch != self->plan.epoch) {
        return;  // It comes again until the lead hears something.
    }
    self->version = in->msg.version;
    self->run_at = in->now;
    sched_phase(self, SCHED_RUN, HX_TIME_NEVER, in->now);
    step_note(out, STEP_INFO, "every node is ready: the run begins at version %" PRIu64,
              in->msg.version);
}

// ---- Progress ----

void sched_on_progress(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase < SCHED_READY || self->phase > SCHED_STOP || in->peer != lead_of(self)) {
        step_note(out, STEP_DEBUG, "progress dropped: not of this run's lead");
        return;
    }
    if (blob_size(in->blob) > 0) {
        step_run(out, &(step_job_t){.kind = SCHED_JOB_METRICS, .blob = in->blob});
    }
    self->seconds = in->msg.seconds;
    if (in->msg.flags & 1) {
        self->valid_first = isnan(self->valid_first) ? in->msg.loss : self->valid_first;
        self->valid = in->msg.loss;
        step_note(out, STEP_INFO, "version %" PRIu64 ": validation loss %.4f", in->msg.version,
                  in->msg.loss);
        return;
    }
    self->version = in->msg.version;
    self->commit_at = in->now;
    self->tokens = in->msg.tokens;
    self->loss = in->msg.loss;
    sched_read_metrics(self, in->blob, in->now);
    if (in->now >= self->line_at) {
        char line[256];
        sched_progress_line(self, in->now, line, sizeof line);
        step_note(out, STEP_INFO, "%s", line);
        self->line_at = in->now + SCHED_LINE_EVERY;
    }
}

// ---- Losses ----

static void lose_early(sched_t *self, const roster_entry_t *entry, const char *how, hx_time_t now,
                       step_out_t *out)
{
    step_note(out, STEP_WARN, "%s %s before the start", entry->node.name, how);
    roster_drop(&self->roster, entry->node.id);
    if (self->phase == SCHED_GATHER) {
        return;
    }
    sched_forget_lines(self);
    if (sched_complete(self)) {
        sched_phase(self, SCHED_PROFILE, now + self->conf.join_timeout, now);
        sched_gathered(self, now, out);
    } else {
        sched_phase(self, SCHED_GATHER, now + self->conf.join_timeout, now);
    }
}

static bool all_stopped(const sched_t *self)
{
    for (uint32_t at = 0; at < self->roster.count; at++) {
        if (!self->roster.entries[at].gone && !self->roster.entries[at].stopped) {
            return false;
        }
    }
    return true;
}

static bool seated(const sched_t *self, node_id_t id)
{
    return plan_node_of(&self->plan, id) != UINT32_MAX;
}

void sched_on_gone(sched_t *self, node_id_t id, const char *how, hx_time_t now, step_out_t *out)
{
    roster_entry_t *const entry = roster_find(&self->roster, id);
    if (!entry || entry->gone) {
        return;
    }
    const bool lost = !how;
    how = lost ? "is gone: nothing was heard of it for too long," : how;
    if (self->phase <= SCHED_MEASURE) {
        lose_early(self, entry, lost ? "was lost" : how, now, out);
        return;
    }
    entry->gone = true;
    if (self->phase >= SCHED_STOP) {
        if (self->phase == SCHED_STOP && all_stopped(self)) {
            sched_sum(self, now, out);
        }
        return;
    }
    if (entry->leaving) {
        return;
    }
    if (!seated(self, id)) {
        step_note(out, STEP_WARN, "%s, which had no part in the plan, %s", entry->node.name,
                  lost ? "was lost" : how);
        return;
    }
    self->failures += lost ? 1 : 0;
    if (entry->node.role == PLAN_WORKER) {
        step_note(out, STEP_WARN, "%s (a worker) %s the run goes on without its pipeline",
                  entry->node.name, how);
        return;
    }
    sched_end(self, 1, now, out,
              "%s (%s) %s the run cannot go on; start all nodes again to resume from the newest "
              "checkpoint",
              entry->node.name, plan_role_name(entry->node.role), how);
}

// ---- The end ----

void sched_on_stop_ask(sched_t *self, int status, const char *text, hx_time_t now, step_out_t *out)
{
    if (self->phase >= SCHED_STOP || self->stop_asked) {
        return;
    }
    if (self->phase < SCHED_READY) {
        sched_end(self, status, now, out, "%s", text);
        return;
    }
    self->stop_asked = true;
    self->status = status;
    snprintf(self->reason, sizeof self->reason, "%s", text);
    wire_msg_t msg = {.kind = WIRE_STOP_ASK, .count = (uint32_t)status};
    snprintf(msg.text, sizeof msg.text, "%s", text);
    step_send(out, lead_of(self), &msg, NULL);
    step_note(out, STEP_INFO, "stopping: %s; the newest state will be saved", text);
    sched_phase(self, SCHED_RUN, now + self->conf.stop_timeout, now);
}

void sched_on_done(sched_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->peer != lead_of(self) || self->phase < SCHED_READY || self->phase > SCHED_STOP) {
        step_note(out, STEP_DEBUG, "DONE dropped: not of this run's lead");
        return;
    }
    if (!self->totals && blob_size(in->blob) > 0) {
        self->totals = json_loadb(blob_data(in->blob), blob_size(in->blob), 0, NULL);
        if (!json_is_object(self->totals)) {
            step_note(out, STEP_WARN, "the lead's totals are no JSON object");
            json_decref(self->totals);
            self->totals = NULL;
        }
    }
    self->version = in->msg.version;
    sched_end(self, (int)in->msg.count, in->now, out, "%s", in->msg.text);
}

void sched_end(sched_t *self, int status, hx_time_t now, step_out_t *out, const char *format, ...)
{
    if (self->phase >= SCHED_STOP) {
        return;
    }
    char reason[WIRE_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    memcpy(self->reason, reason, sizeof reason);
    self->status = status;
    // The driver says the reason itself, at the level that the status deserves, when the role ends.
    step_note(out, STEP_INFO, SCHED_ENDING "%s", self->reason);
    sched_phase(self, SCHED_STOP, now + SCHED_STOPPED_TIMEOUT, now);
    wire_msg_t msg = {.kind = WIRE_STOP, .count = (uint32_t)status};
    snprintf(msg.text, sizeof msg.text, "%s", self->reason);
    for (uint32_t at = 0; at < self->roster.count; at++) {
        if (!self->roster.entries[at].gone) {
            step_send(out, self->roster.entries[at].node.id, &msg, NULL);
        }
    }
    if (all_stopped(self)) {
        sched_sum(self, now, out);
    }
}

static void run_trace(sched_t *self, const roster_entry_t *entry, blob_t *events, step_out_t *out)
{
    const uint32_t index = (uint32_t)(entry - self->roster.entries);
    blob_t *name = blob_copy(entry->node.name, strlen(entry->node.name));
    const step_job_t first = {.kind = SCHED_JOB_TRACE, .index = index, .flags = 1, .blob = name};
    step_run(out, &first);
    blob_release(&name);
    const step_job_t second = {.kind = SCHED_JOB_TRACE, .index = index, .blob = events};
    step_run(out, &second);
}

void sched_on_stopped(sched_t *self, const step_in_t *in, step_out_t *out)
{
    roster_entry_t *const entry = roster_find(&self->roster, in->peer);
    if (!entry || entry->stopped || (self->phase != SCHED_STOP && !entry->leaving)) {
        return;
    }
    entry->stopped = true;
    if (blob_size(in->blob) > 0) {
        sched_count_bytes(self, entry, in->blob);
        run_trace(self, entry, in->blob, out);
    }
    if (self->phase == SCHED_STOP && all_stopped(self)) {
        sched_sum(self, in->now, out);
    }
}

void sched_sum(sched_t *self, hx_time_t now, step_out_t *out)
{
    HX_ASSERT(self->phase == SCHED_STOP);
    sched_phase(self, SCHED_SUM, HX_TIME_NEVER, now);
    if (self->conf.plan_only) {
        self->phase = SCHED_OVER;
        step_stop(out, self->status, "%s", self->reason);
        return;
    }
    self->summary = sched_summary_json(self, now);
    blob_t *blob = blob_copy(self->summary, strlen(self->summary));
    const step_job_t job = {.kind = SCHED_JOB_SUMMARY, .blob = blob};
    step_run(out, &job);
    blob_release(&blob);
}
