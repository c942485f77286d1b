// lead_start - from the plan to the first lease: who has to be there, and from which version the
// run goes on.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAMES_MAX 4u                // In a line that says for whom it waits.
#define INCARNATION_MAX (1u << 23)  // Attempts have room for more.

// ---- the plan

static uint64_t rows_limit(const lead_t *self)
{
    const uint64_t tokens = self->conf.tokens;
    return tokens > 0 ? (tokens + self->context - 1) / self->context : CURSOR_ROWS_MAX;
}

static void take_seats(lead_t *self, uint32_t pipeline)
{
    const plan_t *const plan = &self->plan;
    const plan_pipeline_t *const planned = &plan->pipelines[pipeline];
    lead_pipeline_t *const own = &self->pipelines[pipeline];
    *own = (lead_pipeline_t){
        .live = true,
        .seat_first = self->seats_count,
        .rows = planned->rows * self->conf.local_steps,
        .step_planned = planned->step_seconds * self->conf.local_steps,
        .forced_since = HX_TIME_NEVER,
    };
    for (uint32_t at = 0; at < planned->stages_count; at++) {
        const plan_stage_t *const stage = plan_stage(plan, pipeline, at);
        for (uint32_t member = 0; member < stage->members_count; member++) {
            self->seats[self->seats_count++] = (lead_seat_t){
                .node = plan->nodes[plan->members[stage->member_first + member].node].id,
                .pipeline = pipeline,
                .last = at + 1 == planned->stages_count,
            };
        }
    }
    own->seats_count = self->seats_count - own->seat_first;
}

static void take_plan(lead_t *self)
{
    plan_copy(&self->member.plan, &self->plan);
    const plan_t *const plan = &self->plan;
    self->seats = hx_new(plan->members_count, sizeof *self->seats);
    self->pipelines = hx_new(plan->pipelines_count, sizeof *self->pipelines);
    self->view_pipelines = hx_new(plan->pipelines_count, sizeof *self->view_pipelines);
    self->arrivals = hx_new(plan->pipelines_count, sizeof *self->arrivals);
    self->shards = hx_new(plan->shards_count, sizeof *self->shards);
    double seconds = 0;
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        take_seats(self, at);
        seconds += fmax(0, plan->pipelines[at].step_seconds);
    }
    self->step_mean = seconds / plan->pipelines_count;
    for (uint32_t at = 0; at < plan->shards_count; at++) {
        self->shards[at].node = plan_shard_node(plan, at)->id;
    }
    for (uint32_t at = 0; at < self->blocks.count; at++) {
        self->shards[plan->group_shard[self->blocks.blocks[at].group]].blocks_count++;
    }
}

static void ask_journal(lead_t *self, step_out_t *out)
{
    const step_job_t job = {
        .kind = LEAD_JOB_OPEN, .version = self->version, .attempt = self->history};
    self->journal_asked = true;
    step_run(out, &job);
}

static void count_ack(lead_t *self, node_id_t node, uint64_t version, hx_time_t now,
                      step_out_t *out)
{
    const uint64_t start = self->plan.resume == PLAN_RESUME_NONE ? 0 : self->plan.resume;
    const plan_t *const plan = &self->plan;
    const bool keeper = node == plan->nodes[plan->keeper].id;
    self->keeper_acked = self->keeper_acked || keeper;
    for (uint32_t at = 0; at < plan->shards_count; at++) {
        if (self->shards[at].node != node) {
            continue;
        }
        self->shards[at].acked = true;
        if (version != start) {
            lead_fail(self, now, out,
                      "%s has version %" PRIu64 " of the parameters, the plan starts from %" PRIu64,
                      lead_shard_name(self, at), version, start);
        }
    }
    for (uint32_t at = 0; at < self->seats_count; at++) {
        if (self->seats[at].node == node) {
            self->seats[at].acked = true;
        }
    }
}

static void forget_resume(lead_t *self)
{
    record_destroy(&self->resume);
    blob_release(&self->resume_blob);
}

// The keeper's record is where this run goes on.
static void adopt_resume(lead_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->plan;
    record_t *const record = &self->resume;
    if (!self->resume_blob) {
        return;
    }
    if (record->version != plan->resume || record->incarnation >= INCARNATION_MAX) {
        lead_fail(self, now, out,
                  "the checkpoint of version %" PRIu64 " has the record of version %" PRIu64
                  ": it is damaged, choose another (run.resume)",
                  plan->resume, record->version);
        return;
    }
    cursor_clear(&self->cursor);
    if (cursor_load(&self->cursor, rows_limit(self), record) != HX_OK) {
        lead_fail(self, now, out,
                  "the books of the checkpoint of version %" PRIu64 " contradict themselves",
                  plan->resume);
        return;
    }
    self->history = record->history;
    self->version = record->version;
    self->tokens = record->tokens;
    self->step = record->step;
    self->dropped_base = record->dropped;
    self->saved_version = record->version;
    self->record = blob_retain(self->resume_blob);
    self->automatic = (ssaw_auto_t){
        .quorum_rows = record->auto_quorum,
        .staleness = record->auto_staleness,
        .forced = record->auto_forced,
        .calm = record->auto_calm,
    };
    lead_live_adopt(self, record, out);
    if (isfinite(record->step_mean) && record->step_mean > 0) {
        self->step_mean = record->step_mean;
    }
    self->lookahead = record->lookahead;
    step_note(out, STEP_INFO, "goes on from version %" PRIu64 ", %" PRIu64 " tokens", self->version,
              self->tokens);
    ask_journal(self, out);
}

void lead_on_plan(lead_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    if (self->phase != LEAD_IDLE) {
        step_note(out, STEP_WARN, "plan of epoch %" PRIu32 " ignored: a run keeps its plan",
                  plan->epoch);
        return;
    }
    if (plan->nodes[plan->lead].id != self->conf.member.id) {
        return;
    }
    take_plan(self);
    self->phase = LEAD_GATHER;
    self->planned_at = now;
    self->word_at = now + LEAD_WORD_EVERY;
    hx_fault_t fault = {{0}};
    if (ssaw_check(&self->conf.ssaw, plan->pipelines_count, &fault) != HX_OK) {
        lead_fail(self, now, out, "%s", fault.text);
        return;
    }
    if (lead_hold_plan(self, &fault) != HX_OK) {
        lead_fail(self, now, out, "%s", fault.text);
        return;
    }
    if (lead_too_small(self)) {
        lead_fail(self, now, out,
                  "the leases of this plan are too small for a quorum of %" PRIu64
                  " rows: use a smaller train.global_batch, or more rows a pipeline",
                  self->conf.ssaw.quorum_rows);
        return;
    }
    for (uint32_t at = 0; at < self->early_count; at++) {
        if (self->early[at].epoch == plan->epoch) {
            count_ack(self, self->early[at].node, self->early[at].version, now, out);
        }
    }
    // What came before the plan may have come from anybody.
    if (plan->resume == PLAN_RESUME_NONE || self->resume_peer != plan->nodes[plan->keeper].id) {
        forget_resume(self);
    }
    if (plan->resume == PLAN_RESUME_NONE) {
        self->cursor.limit = HX_MIN(rows_limit(self), CURSOR_ROWS_MAX);
        ask_journal(self, out);
    } else {
        adopt_resume(self, now, out);
    }
}

// ---- before the first grant

void lead_on_ack(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase == LEAD_IDLE) {
        // Messages of two peers have no order between them: this one may overtake the plan.
        if (self->early_count < PLAN_NODES_MAX) {
            self->early[self->early_count++] = (lead_early_t){
                .node = in->peer, .epoch = in->msg.epoch, .version = in->msg.version};
        }
    } else if (in->msg.epoch != self->plan.epoch) {
        member_refuse(&self->member, in, out, "another plan epoch");
    } else if (self->phase < LEAD_FIRST) {
        count_ack(self, in->peer, in->msg.version, in->now, out);
    }
}

void lead_on_resume(lead_t *self, const step_in_t *in, step_out_t *out)
{
    record_t record = {0};
    const bool planned = self->phase != LEAD_IDLE;
    if ((planned && in->peer != self->plan.nodes[self->plan.keeper].id) || self->journal_asked ||
        payload_record_decode(in->blob, &record) != HX_OK) {
        member_refuse(&self->member, in, out, "no record that this run could go on from");
        return;
    }
    forget_resume(self);
    self->resume = record;
    self->resume_blob = blob_copy(blob_data(in->blob), blob_size(in->blob));
    self->resume_peer = in->peer;
    if (planned) {
        adopt_resume(self, in->now, out);
    }
}

// Commits above the version that the run starts from are void: the journal says so by a record of
// that version with a newer history.
static void mark_rollback(lead_t *self, uint64_t history, step_out_t *out)
{
    step_note(out, STEP_WARN,
              "the journal has commits above version %" PRIu64 ", where this run starts: they are "
              "void from here on",
              self->version);
    record_t record = {0};
    record_copy(&self->resume, &record);
    record.history = self->history = history;
    record.version = self->version;
    lead_live_record(self, &record);
    blob_t *blob = payload_record_encode(&record);
    const step_job_t job = {.kind = LEAD_JOB_JOURNAL, .version = self->version, .blob = blob};
    step_run(out, &job);
    blob_release(&blob);
    record_destroy(&record);
}

void lead_on_open(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->error != HX_OK) {
        lead_job_failed(self, in, out);
        return;
    }
    self->journal_open = true;
    record_t newest;
    if (self->plan.resume != PLAN_RESUME_NONE && in->blob &&
        payload_record_decode(in->blob, &newest) == HX_OK) {
        lead_live_adopt(self, &newest, out);
        record_destroy(&newest);
    }
    if (in->job.attempt > self->history) {
        mark_rollback(self, in->job.attempt, out);
    }
}

static void ask_promises(lead_t *self, uint64_t incarnation, hx_time_t now, step_out_t *out)
{
    self->phase = LEAD_PROMISE;
    if (incarnation != self->incarnation) {
        self->incarnation = incarnation;
        for (uint32_t at = 0; at < self->plan.shards_count; at++) {
            self->shards[at].promised = false;
        }
    }
    const wire_msg_t msg = {.kind = WIRE_PROMISE, .incarnation = incarnation};
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (!self->shards[at].promised) {
            step_send(out, self->shards[at].node, &msg, NULL);
        }
    }
    self->resend_at = now + self->member.conf.request_timeout;
}

static bool all_promised(const lead_t *self)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (!self->shards[at].promised) {
            return false;
        }
    }
    return true;
}

void lead_on_promised(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase != LEAD_PROMISE) {
        return;
    }
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        lead_shard_t *const shard = &self->shards[at];
        if (shard->node != in->peer) {
            continue;
        }
        if (in->msg.incarnation > self->incarnation && in->msg.incarnation < INCARNATION_MAX) {
            // An earlier lead had this number or a higher one.
            ask_promises(self, in->msg.incarnation + 1, in->now, out);
        } else if (in->msg.version != self->version) {
            lead_fail(self, in->now, out,
                      "%s has version %" PRIu64 " of the parameters, the run starts from %" PRIu64,
                      lead_shard_name(self, at), in->msg.version, self->version);
        } else if (in->msg.incarnation == self->incarnation) {
            shard->promised = true;
        }
        return;
    }
    member_refuse(&self->member, in, out, "its sender is no shard");
}

static bool gathered(const lead_t *self)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (!self->shards[at].acked) {
            return false;
        }
    }
    return self->keeper_acked && self->journal_open;
}

static bool workers_there(const lead_t *self)
{
    for (uint32_t at = 0; at < self->seats_count; at++) {
        if (!self->seats[at].acked && !self->seats[at].lost) {
            return false;
        }
    }
    return true;
}

// Appends a name to a line, the first few of them.
static void add_name(char *text, size_t size, uint32_t *count, const char *name)
{
    const size_t used = strlen(text);
    if (*count < NAMES_MAX) {
        snprintf(text + used, size - used, "%s%s", *count > 0 ? ", " : "", name);
    } else if (*count == NAMES_MAX) {
        snprintf(text + used, size - used, ", ...");
    }
    *count += 1;
}

// For whom the start waits.
static void missing_names(const lead_t *self, char *text, size_t size)
{
    uint32_t count = 0;
    text[0] = '\0';
    if (!self->journal_open && self->phase == LEAD_GATHER) {
        add_name(text, size, &count,
                 self->journal_asked ? "the journal" : "the record of the checkpoint");
    }
    if (!self->keeper_acked) {
        add_name(text, size, &count, self->plan.nodes[self->plan.keeper].name);
    }
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        const lead_shard_t *const shard = &self->shards[at];
        if (!shard->acked || (self->phase == LEAD_PROMISE && !shard->promised)) {
            add_name(text, size, &count, lead_shard_name(self, at));
        }
    }
    for (uint32_t at = 0; at < self->seats_count; at++) {
        if (!self->seats[at].acked && !self->seats[at].lost) {
            add_name(text, size, &count, lead_node_name(self, self->seats[at].node));
        }
    }
}

static void begin_run(lead_t *self, hx_time_t now, step_out_t *out)
{
    self->phase = LEAD_FIRST;
    member_ready(&self->member, self->version, now, out);
    step_note(out, STEP_INFO, "the run begins at version %" PRIu64 " with %" PRIu32 " pipelines",
              self->version, lead_live_count(self));
    lead_live_tell(self, out);
    if (lead_live_count(self) > 0) {
        lead_pin_start(self, false, false, self->conf.valid_rows > 0, out);
    }
}

// Workers that never came leave their pipelines; without shards and keeper there is no run.
static void start_late(lead_t *self, hx_time_t now, step_out_t *out)
{
    char names[256];
    missing_names(self, names, sizeof names);
    if (self->phase != LEAD_WORKERS) {
        lead_fail(self, now, out, "no acknowledgement of the plan after %" PRId64 " s from %s",
                  self->conf.start_timeout / HX_SEC(1), names);
        return;
    }
    for (uint32_t at = 0; at < self->seats_count; at++) {
        lead_seat_t *const seat = &self->seats[at];
        if (!seat->acked && !seat->lost) {
            char why[160];
            snprintf(why, sizeof why, "%s did not acknowledge the plan",
                     lead_node_name(self, seat->node));
            seat->lost = true;
            lead_give_up(self, seat->pipeline, WIRE_CLOSED_DEAD, why, now, out);
        }
    }
}

void lead_start_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (self->phase == LEAD_GATHER && gathered(self)) {
        ask_promises(self, self->resume.incarnation + 1, now, out);
    }
    if (self->phase == LEAD_PROMISE && all_promised(self)) {
        self->phase = LEAD_WORKERS;
    }
    const hx_time_t until = self->planned_at + self->conf.start_timeout;
    if (now >= until && !(self->phase == LEAD_WORKERS && workers_there(self))) {
        start_late(self, now, out);
    }
    if (self->phase == LEAD_WORKERS && workers_there(self)) {
        begin_run(self, now, out);
    }
    if (self->phase >= LEAD_FIRST) {
        return;
    }
    if (self->phase == LEAD_PROMISE && now >= self->resend_at) {
        ask_promises(self, self->incarnation, now, out);
    }
    if (now >= self->word_at) {
        char names[256];
        missing_names(self, names, sizeof names);
        step_note(out, STEP_INFO, "waits for %s", names);
        self->word_at = now + LEAD_WORD_EVERY;
    }
    step_wake(out, HX_MIN(until, self->word_at));
    if (self->phase == LEAD_PROMISE) {
        step_wake(out, self->resend_at);
    }
}
