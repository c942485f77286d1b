// lead - its start, its end, and which event goes where: see lead.h and lead_internal.h.
//
//     IDLE --plan--> GATHER --shards, keeper, journal--> PROMISE --all promised--> WORKERS
//     --all there--> FIRST --evaluated--> TRAIN --nothing left--> FINAL --evaluated, saved--> OVER
//
// A failure leads to OVER from anywhere. What each phase waits for is said every few seconds.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- small things

const char *lead_node_name(const lead_t *self, node_id_t node)
{
    const uint32_t at = plan_node_of(&self->plan, node);
    return at == UINT32_MAX ? "?" : self->plan.nodes[at].name;
}

const char *lead_shard_name(const lead_t *self, uint32_t shard)
{
    return lead_node_name(self, self->shards[shard].node);
}

void lead_to_shards(const lead_t *self, const wire_msg_t *msg, blob_t *blob, bool missing_only,
                    step_out_t *out)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (!missing_only || !self->shards[at].answered) {
            step_send(out, self->shards[at].node, msg, blob);
        }
    }
}

void lead_end(lead_t *self, int status, step_out_t *out, const char *format, ...)
{
    if (self->ending || self->phase == LEAD_OVER) {
        return;
    }
    self->ending = true;
    self->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(self->reason, sizeof self->reason, format, args);
    va_end(args);
    step_note(out, status == 0 ? STEP_INFO : STEP_WARN, "no more leases: %s", self->reason);
}

void lead_finish(lead_t *self, hx_time_t now, step_out_t *out)
{
    HX_ASSERT(self->phase != LEAD_OVER);
    self->phase = LEAD_OVER;
    lead_live_end(self, out);
    wire_msg_t msg = {.kind = WIRE_DONE, .count = (uint32_t)self->status, .version = self->version};
    snprintf(msg.text, sizeof msg.text, "%s", self->reason);
    blob_t *totals = lead_totals_json(self, now);
    step_send(out, NODE_SCHEDULER, &msg, totals);
    blob_release(&totals);
    step_note(out, self->status == 1 ? STEP_ERROR : STEP_INFO, "the run is over: %s", self->reason);
}

void lead_fail(lead_t *self, hx_time_t now, step_out_t *out, const char *format, ...)
{
    if (self->phase == LEAD_OVER) {
        return;
    }
    self->status = 1;
    va_list args;
    va_start(args, format);
    vsnprintf(self->reason, sizeof self->reason, format, args);
    va_end(args);
    lead_finish(self, now, out);
}

void lead_job_failed(lead_t *self, const step_in_t *in, step_out_t *out)
{
    const char *const text = in->blob ? blob_data(in->blob) : NULL;
    if (text) {
        lead_fail(self, in->now, out, "the journal failed: %.*s",
                  (int)HX_MIN(blob_size(in->blob), 400), text);
    } else {
        lead_fail(self, in->now, out, "the journal failed: %s", hx_strerror(in->error));
    }
}

// ---- life

lead_t *lead_new(const lead_conf_t *conf)
{
    HX_ASSERT(conf->member.role == PLAN_LEAD && conf->member.model);
    HX_ASSERT(conf->ssaw.batch_rows > 0);
    lead_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->conf.lease_factor = conf->lease_factor > 0 ? conf->lease_factor : 5;
    self->conf.lease_min = conf->lease_min > 0 ? conf->lease_min : HX_SEC(10);
    self->conf.nonfinite_limit = conf->nonfinite_limit > 0 ? conf->nonfinite_limit : 30;
    self->conf.local_steps = HX_MAX(conf->local_steps, 1u);
    self->conf.stop_grace = conf->stop_grace > 0 ? conf->stop_grace : HX_SEC(5);
    self->conf.start_timeout = conf->start_timeout > 0 ? conf->start_timeout : HX_SEC(60);
    self->context = model_conf(conf->member.model)->context;
    self->leases = hx_new(LEAD_LEASES_MAX, sizeof *self->leases);
    self->view_contributions = hx_new(LEAD_LEASES_MAX, sizeof *self->view_contributions);
    self->early = hx_new(PLAN_NODES_MAX, sizeof *self->early);
    self->stop_at = HX_TIME_NEVER;
    self->train_started_at = HX_TIME_NEVER;
    member_init(&self->member, &conf->member);
    blocks_make(conf->member.model, conf->block_size, &self->blocks);
    cursor_init(&self->cursor, 0);
    lead_report_init(self);
    lead_live_init(self);
    return self;
}

void lead_destroy(lead_t **self_p)
{
    lead_t *const self = *self_p;
    if (!self) {
        return;
    }
    *self_p = NULL;
    lead_round_clear(self);
    for (uint32_t at = 0; at < self->leases_count; at++) {
        free(self->leases[at].ready);
    }
    member_clear(&self->member);
    plan_destroy(&self->plan);
    blocks_destroy(&self->blocks);
    cursor_clear(&self->cursor);
    record_destroy(&self->resume);
    blob_release(&self->resume_blob);
    blob_release(&self->record);
    blob_release(&self->pin.record);
    free(self->seats);
    free(self->pipelines);
    free(self->shards);
    lead_live_clear(self);
    free(self->arrivals);
    free(self->view_pipelines);
    free(self->view_contributions);
    free(self->leases);
    free(self->early);
    free(self);
}

lead_view_t lead_view(const lead_t *self)
{
    return (lead_view_t){
        .version = self->version,
        .tokens = self->tokens,
        .live = lead_live_count(self),
        .in_flight = lead_count(self, LEASE_OPEN),
        .announced = lead_count(self, LEASE_ANNOUNCED) + lead_count(self, LEASE_IN_ROUND),
        .rows_left = lead_rows_left(self),
        .committed_rows = self->cursor.rows[CURSOR_COMMITTED],
        .skipped_rows = self->cursor.rows[CURSOR_SKIPPED],
        .open_rows = self->cursor.rows[CURSOR_OPEN],
        .returned_rows = self->cursor.rows[CURSOR_RETURNED],
        .next_row = self->cursor.next,
        .dropped = lead_dropped(self),
        .nonsense = self->member.refused,
        .books_hold = cursor_check(&self->cursor),
        .done = self->phase == LEAD_OVER,
        .ssaw = self->conf.ssaw,
        .lr = self->conf.schedule.lr,
    };
}

// ---- goals and the end

static void check_goals(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (self->conf.seconds > 0 && self->train_started_at != HX_TIME_NEVER && !self->ending) {
        const hx_time_t until =
            self->train_started_at + (hx_time_t)(fmin(self->conf.seconds, 1e9) * 1e9);
        if (now >= until) {
            lead_end(self, 0, out, "train.seconds, %g s, are over", self->conf.seconds);
        } else {
            step_wake(out, until);
        }
    }
    if (now >= self->stop_at) {
        lead_close_open(self, false, now, out);
    } else {
        step_wake(out, self->stop_at);
    }
    if (self->ending) {
        lead_close_partial(self, now, out);
    }
    if (self->aborting) {
        lead_pin_abort_eval(self, now, out);
    }
}

// After the last commit: one more look at it, and a checkpoint.
static void final_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (!self->pin.active && !self->final_asked) {
        self->final_asked = true;
        const bool save = self->version > self->saved_version;
        const bool known =
            !isnan(self->totals.valid_loss) && self->totals.valid_version == self->version;
        const bool evaluate = self->conf.valid_rows > 0 && !known && !self->aborting;
        lead_pin_start(self, self->final_pinned, save, evaluate, out);
    }
    lead_pin_step(self, now, out);
    if (!self->pin.active && self->final_asked) {
        if (!self->ending && self->status == 0) {
            snprintf(self->reason, sizeof self->reason, "all %" PRIu64 " tokens are trained on",
                     self->conf.tokens);
        }
        lead_finish(self, now, out);
    }
}

static bool training_over(const lead_t *self)
{
    return self->round.state == ROUND_NONE && lead_rows_left(self) == 0 &&
           lead_count(self, LEASE_OPEN) == 0 && lead_count(self, LEASE_ANNOUNCED) == 0;
}

// All that follows from the state and the time: after every event.
static void run_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_deadlines(self, now, out);
    lead_live_step(self, now, out);
    check_goals(self, now, out);
    lead_pin_step(self, now, out);
    if (self->phase == LEAD_FIRST && !self->pin.active) {
        self->phase = LEAD_TRAIN;
    }
    if (self->phase == LEAD_TRAIN) {
        do {
            lead_grant(self, now, out);
        } while (lead_round_try(self, now, out));
        lead_round_resend(self, now, out);
    }
    if (self->phase == LEAD_TRAIN && training_over(self)) {
        self->phase = LEAD_FINAL;
    }
    if (self->phase == LEAD_FINAL) {
        final_step(self, now, out);
    }
    lead_status_step(self, now, out);
    // New leases have deadlines too.
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        if (lease->state == LEASE_OPEN && lease->started_at != HX_TIME_NEVER) {
            step_wake(out, lease->started_at + lease->limit);
        }
    }
}

static void on_stop_ask(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->peer != NODE_SCHEDULER) {
        member_refuse(&self->member, in, out, "only the scheduler may ask");
        return;
    }
    if (self->phase == LEAD_OVER) {
        return;
    }
    const int status = (int)in->msg.count;
    if (!self->aborting) {
        // A stop outweighs a goal that is being wound up, but keeps its reason.
        lead_end(self, status, out, "%s", in->msg.text[0] ? in->msg.text : "a stop was asked for");
        self->aborting = true;
        self->stop_at = in->now + self->conf.stop_grace;
    } else {
        self->stop_at = in->now;  // Asked twice: now.
    }
    if (self->phase < LEAD_FIRST) {
        lead_finish(self, in->now, out);
    }
}

// ---- peers

static void on_worker_gone(lead_t *self, node_id_t node, const char *how, hx_time_t now,
                           step_out_t *out)
{
    for (uint32_t at = 0; at < self->seats_count; at++) {
        lead_seat_t *const seat = &self->seats[at];
        if (seat->node == node && !seat->lost) {
            char why[160];
            snprintf(why, sizeof why, "%s %s", lead_node_name(self, node), how);
            seat->lost = true;
            lead_give_up(self, seat->pipeline, WIRE_CLOSED_DEAD, why, now, out);
        }
    }
}

static void on_lost(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->phase == LEAD_IDLE || self->phase == LEAD_OVER) {
        return;
    }
    const plan_t *const plan = &self->plan;
    bool vital = in->peer == plan->nodes[plan->keeper].id;
    for (uint32_t at = 0; at < plan->shards_count; at++) {
        vital = vital || self->shards[at].node == in->peer;
    }
    if (vital) {
        lead_fail(
            self, in->now, out,
            "%s is gone: nothing was heard of it for too long; the newest checkpoint is there "
            "to resume from",
            lead_node_name(self, in->peer));
        return;
    }
    on_worker_gone(self, in->peer, "is gone", in->now, out);
}

static void on_message(lead_t *self, const step_in_t *in, step_out_t *out)
{
    switch (in->msg.kind) {
    case WIRE_PLAN_ACK:
        lead_on_ack(self, in, out);
        break;
    case WIRE_RESUME:
        lead_on_resume(self, in, out);
        break;
    case WIRE_PROMISED:
        lead_on_promised(self, in, out);
        break;
    case WIRE_READY:
        lead_on_ready(self, in, out);
        break;
    case WIRE_VOTE:
        lead_on_vote(self, in, out);
        break;
    case WIRE_APPLIED:
        lead_on_applied(self, in, out);
        break;
    case WIRE_SAVED:
        lead_on_saved(self, in, out);
        break;
    case WIRE_STOP_ASK:
        on_stop_ask(self, in, out);
        break;
    case WIRE_ORDER:
        lead_on_order(self, in, out);
        break;
    case WIRE_LEAVE:
        on_worker_gone(self, in->peer, "leaves", in->now, out);
        break;
    default:
        member_refuse(&self->member, in, out, "the lead has no use for it");
        break;
    }
}

// Before there is a plan only its forerunners mean anything; after DONE nothing does.
static bool welcome_now(const lead_t *self, const step_in_t *in)
{
    if (in->kind != STEP_MESSAGE) {
        return self->phase != LEAD_OVER;
    }
    if (self->phase == LEAD_IDLE) {
        return in->msg.kind == WIRE_PLAN_ACK || in->msg.kind == WIRE_RESUME;
    }
    return self->phase != LEAD_OVER;
}

static void on_event(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (!welcome_now(self, in)) {
        return;
    }
    switch (in->kind) {
    case STEP_MESSAGE:
        on_message(self, in, out);
        break;
    case STEP_JOB:
        if (in->job.kind == LEAD_JOB_OPEN) {
            lead_on_open(self, in, out);
        } else {
            lead_on_journal(self, in, out);
        }
        break;
    case STEP_LOST:
        on_lost(self, in, out);
        break;
    default:
        break;
    }
}

void lead_step(void *self_p, const step_in_t *in, step_out_t *out)
{
    lead_t *const self = self_p;
    switch (member_step(&self->member, in, out)) {
    case MEMBER_ENDING:
        if (self->member.stopping) {
            member_stopped(&self->member, out, NULL);
        }
        return;
    case MEMBER_PLAN:
        lead_on_plan(self, in->now, out);
        break;
    case MEMBER_OTHER:
        on_event(self, in, out);
        break;
    default:
        break;
    }
    if (self->phase >= LEAD_GATHER && self->phase < LEAD_FIRST) {
        lead_start_step(self, in->now, out);
    }
    if (self->phase >= LEAD_FIRST && self->phase < LEAD_OVER) {
        run_step(self, in->now, out);
    }
}
