// lead_grant - leases: who gets which rows, who is done, and what becomes of those who are not.
//
// Every lease has an attempt number that is never used twice. Whatever arrives for an attempt that
// is not open is answered CLOSED and changes nothing; that one rule makes late, doubled and lost
// messages harmless.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMOOTHING 0.2        // Of measured times: the weight of the newest.
#define PREDICTED_MAX 1.0e6  // Seconds; a plan that predicts more is not believed.

static double seconds_of(hx_time_t time)
{
    return (double)time / 1e9;
}

// ---- the list

lease_t *lead_lease_find(lead_t *self, uint64_t attempt)
{
    uint32_t low = 0;
    uint32_t high = self->leases_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (self->leases[middle].attempt < attempt) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const bool found = low < self->leases_count && self->leases[low].attempt == attempt;
    return found ? &self->leases[low] : NULL;
}

uint64_t lead_next_attempt(const lead_t *self)
{
    return (self->incarnation << LEAD_ATTEMPT_SHIFT) | (self->counter + 1);
}

uint64_t lead_floor(const lead_t *self, bool without_round)
{
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        if (!lease->eval && !(without_round && lease->state == LEASE_IN_ROUND)) {
            return lease->attempt;
        }
    }
    return lead_next_attempt(self);
}

uint32_t lead_count(const lead_t *self, lease_state_t state)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->leases_count; at++) {
        count += !self->leases[at].eval && self->leases[at].state == state;
    }
    return count;
}

uint32_t lead_evals_count(const lead_t *self, uint32_t pipeline)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->leases_count; at++) {
        count += self->leases[at].eval && self->leases[at].pipeline == pipeline;
    }
    return count;
}

// Every lease may end on the list of closed attempts, which has to fit into a PREPARE.
bool lead_lease_room(const lead_t *self)
{
    return self->leases_count < LEAD_LEASES_MAX &&
           self->closed_count + self->leases_count < PAYLOAD_CLOSED_MAX;
}

// The oldest lease that a pipeline has not finished is the one that it works on: its time runs.
void lead_start_first(lead_t *self, uint32_t pipeline, hx_time_t now)
{
    for (uint32_t at = 0; at < self->leases_count; at++) {
        lease_t *const lease = &self->leases[at];
        if (lease->pipeline == pipeline && lease->state == LEASE_OPEN) {
            if (lease->started_at == HX_TIME_NEVER) {
                lease->started_at = now;
            }
            return;
        }
    }
}

void lead_lease_remove(lead_t *self, lease_t *lease)
{
    const uint32_t at = (uint32_t)(lease - self->leases);
    HX_ASSERT(at < self->leases_count);
    free(lease->ready);
    memmove(&self->leases[at], &self->leases[at + 1],
            (self->leases_count - at - 1) * sizeof *lease);
    self->leases_count--;
}

// ---- the policy's view

uint64_t lead_rows_left(const lead_t *self)
{
    return self->ending ? 0 : cursor_left(&self->cursor);
}

uint32_t lead_live_count(const lead_t *self)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        count += self->pipelines[at].live;
    }
    return count;
}

// Puts an announced lease where its announcement belongs.
static void view_contribution(lead_t *self, const lease_t *lease, uint64_t *orders, uint32_t count)
{
    uint32_t at = count;
    while (at > 0 && orders[at - 1] > lease->order) {
        orders[at] = orders[at - 1];
        self->view_contributions[at] = self->view_contributions[at - 1];
        at--;
    }
    orders[at] = lease->order;
    self->view_contributions[at] = (ssaw_contribution_t){
        .pipeline = lease->pipeline,
        .rows = lease->rows.end - lease->rows.first,
        .tokens = lease->tokens,
        .oldest = lease->oldest,
        .agreement = 1,
        .frequency = 1,
        .announced_at = lease->announced_at,
    };
}

ssaw_view_t lead_policy_view(lead_t *self)
{
    uint64_t orders[LEAD_LEASES_MAX];
    uint32_t contributions = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        self->view_pipelines[at] = (ssaw_pipeline_t){
            .live = self->pipelines[at].live,
            .base = UINT64_MAX,
            .clock = self->pipelines[at].clock,
            .wait = self->pipelines[at].wait,
        };
    }
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        if (lease->eval) {
            continue;
        }
        ssaw_pipeline_t *const pipeline = &self->view_pipelines[lease->pipeline];
        pipeline->outstanding++;
        if (lease->state == LEASE_OPEN) {
            pipeline->in_flight++;
            pipeline->in_flight_rows += lease->rows.end - lease->rows.first;
            pipeline->base = HX_MIN(pipeline->base, lease->base);
        } else if (lease->state == LEASE_ANNOUNCED) {
            view_contribution(self, lease, orders, contributions++);
        }
    }
    return (ssaw_view_t){
        .version = self->version,
        .prepare_out = self->round.state != ROUND_NONE,
        .rows_left = lead_hold_full(self) ? 0 : lead_rows_left(self),
        .step_mean = (hx_time_t)(self->step_mean * 1e9),
        .pipelines = self->view_pipelines,
        .pipelines_count = self->plan.pipelines_count,
        .contributions = self->view_contributions,
        .contributions_count = contributions,
    };
}

// ---- granting

void lead_to_members(const lead_t *self, uint32_t pipeline, const wire_msg_t *msg, step_out_t *out)
{
    const lead_pipeline_t *const each = &self->pipelines[pipeline];
    for (uint32_t at = 0; at < each->seats_count; at++) {
        const lead_seat_t *const seat = &self->seats[each->seat_first + at];
        if (!seat->lost) {
            step_send(out, seat->node, msg, NULL);
        }
    }
}

// How long a lease of so many rows may take.
static hx_time_t limit_of(const lead_t *self, const lead_pipeline_t *pipeline, uint64_t rows)
{
    const double measured = pipeline->row_mean * (double)rows;
    const double planned = pipeline->step_planned * (double)rows / (double)pipeline->rows;
    const double predicted = fmin(fmax(measured, planned), PREDICTED_MAX);
    const double limit = self->conf.lease_factor * predicted;
    return HX_MAX((hx_time_t)(limit * 1e9), self->conf.lease_min);
}

lease_t *lead_lease_add(lead_t *self, uint32_t pipeline, row_range_t rows, uint64_t base, bool eval,
                        hx_time_t now, step_out_t *out)
{
    HX_ASSERT(lead_lease_room(self));
    lead_pipeline_t *const own = &self->pipelines[pipeline];
    lease_t *const lease = &self->leases[self->leases_count++];
    *lease = (lease_t){
        .attempt = lead_next_attempt(self),
        .pipeline = pipeline,
        .step = eval ? 0 : own->steps++,
        .eval = eval,
        .state = LEASE_OPEN,
        .rows = rows,
        .base = base,
        .oldest = UINT64_MAX,
        .granted_at = now,
        .started_at = HX_TIME_NEVER,
        .limit = limit_of(self, own, rows.end - rows.first),
        .ready = hx_new(own->seats_count, sizeof *lease->ready),
    };
    self->counter++;
    lead_start_first(self, pipeline, now);
    uint32_t queue = 0;
    for (uint32_t at = 0; at < self->leases_count; at++) {
        queue += self->leases[at].pipeline == pipeline && self->leases[at].state == LEASE_OPEN;
    }
    const wire_msg_t msg = {
        .kind = WIRE_GRANT,
        .attempt = lease->attempt,
        .row_first = rows.first,
        .rows = (uint32_t)(rows.end - rows.first),
        .version = base,
        .epoch = self->plan.epoch,
        .flags = eval ? 1 : 0,
        .seconds = seconds_of(lease->limit) * queue,
        .tokens = (rows.end - rows.first) * self->context,
    };
    lead_to_members(self, pipeline, &msg, out);
    step_note(out, STEP_DEBUG,
              "pipeline %" PRIu32 " is granted %srows %" PRIu64 " to %" PRIu64
              " from version %" PRIu64,
              pipeline, eval ? "held-out " : "", rows.first, rows.end, base);
    return lease;
}

static bool grant_one(lead_t *self, const ssaw_view_t *view, uint32_t pipeline, hx_time_t now,
                      step_out_t *out)
{
    if (self->pipelines[pipeline].draining) {
        return false;
    }
    const uint64_t allowed = ssaw_may_grant(&self->conf.ssaw, view, pipeline);
    row_range_t rows;
    const uint32_t queue = view->pipelines[pipeline].outstanding + lead_evals_count(self, pipeline);
    if (allowed == 0 || queue >= LEAD_QUEUE_MAX || !lead_lease_room(self) ||
        !lead_hold_room(self, view, pipeline) ||
        !cursor_lease(&self->cursor, HX_MIN(allowed, self->pipelines[pipeline].rows), &rows)) {
        return false;
    }
    if (self->train_started_at == HX_TIME_NEVER) {
        self->train_started_at = now;
        self->committed_at = now;
    }
    lead_lease_add(self, pipeline, rows, ssaw_base(view), false, now, out);
    return true;
}

// In the order of the plan: where all pipelines are free at one instant, as after each commit with
// staleness 0, each gets the same rows of the round in every run.
void lead_grant(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (self->phase != LEAD_TRAIN || self->ending) {
        return;
    }
    ssaw_view_t view = lead_policy_view(self);
    bool granted = true;
    while (granted) {
        granted = false;
        for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
            if (grant_one(self, &view, at, now, out)) {
                view = lead_policy_view(self);
                granted = true;
            }
        }
    }
}

// ---- READY

static double smooth(double mean, double value)
{
    return mean > 0 ? mean + SMOOTHING * (value - mean) : value;
}

static void measure(lead_t *self, const lease_t *lease, hx_time_t now)
{
    lead_pipeline_t *const pipeline = &self->pipelines[lease->pipeline];
    const hx_time_t from = HX_MIN(lease->started_at, now);
    const double seconds = seconds_of(now - HX_MAX(from, lease->granted_at));
    const double rows = (double)(lease->rows.end - lease->rows.first);
    pipeline->row_mean = smooth(pipeline->row_mean, seconds / rows);
    self->step_mean = smooth(self->step_mean, seconds);
    // Mean and variance with one weight: D. Finch, Incremental calculation of weighted mean and
    // variance, 2009, section 9.
    const double full = seconds / rows * pipeline->rows;
    const double apart = pipeline->lease_mean > 0 ? full - pipeline->lease_mean : 0;
    pipeline->lease_mean = smooth(pipeline->lease_mean, full);
    pipeline->lease_variance =
        (1 - SMOOTHING) * (pipeline->lease_variance + SMOOTHING * apart * apart);
}

static void announce(lead_t *self, lease_t *lease, hx_time_t now, step_out_t *out)
{
    const uint32_t pipeline = lease->pipeline;
    lease->state = LEASE_ANNOUNCED;
    lease->announced_at = now;
    if (lease->eval) {
        lead_on_eval_announced(self, lease, out);
    } else {
        measure(self, lease, now);
        lease->order = ++self->orders;
        self->pipelines[pipeline].clock++;
        const uint64_t lag = self->version > lease->oldest ? self->version - lease->oldest : 0;
        step_note(out, STEP_DEBUG, "pipeline %" PRIu32 " announces a step of lag %" PRIu64,
                  pipeline, lag);
    }
    lead_start_first(self, pipeline, now);
}

static lead_seat_t *seat_find(lead_t *self, node_id_t node)
{
    for (uint32_t at = 0; at < self->seats_count; at++) {
        if (self->seats[at].node == node) {
            return &self->seats[at];
        }
    }
    return NULL;
}

// What is wrong with this READY of an open lease; NULL: nothing.
static const char *ready_fault(const lead_t *self, const lease_t *lease, const lead_seat_t *seat,
                               const wire_msg_t *msg)
{
    const uint64_t newest = self->version + (self->round.state == ROUND_APPLYING ? 1 : 0);
    if (seat->pipeline != lease->pipeline) {
        return "the lease is another pipeline's";
    }
    if (msg->epoch != self->plan.epoch) {
        return "another plan epoch";
    }
    if (msg->version < lease->base || msg->version > newest ||
        (lease->eval && msg->version != lease->base)) {
        return "a version that cannot have been used";
    }
    const uint64_t tokens_max = (lease->rows.end - lease->rows.first) * self->context;
    if (seat->last && msg->tokens > tokens_max - lease->tokens) {
        return "more tokens than the lease has";
    }
    return NULL;
}

void lead_on_ready(lead_t *self, const step_in_t *in, step_out_t *out)
{
    lead_seat_t *const seat = seat_find(self, in->peer);
    if (!seat) {
        member_refuse(&self->member, in, out, "its sender is in no pipeline");
        return;
    }
    lease_t *const lease = lead_lease_find(self, in->msg.attempt);
    if (!lease) {
        const wire_msg_t msg = {
            .kind = WIRE_CLOSED, .attempt = in->msg.attempt, .count = WIRE_CLOSED_UNKNOWN};
        step_send(out, in->peer, &msg, NULL);
        step_note(out, STEP_DEBUG, "ready from pipeline %" PRIu32 " dropped: no such lease",
                  seat->pipeline);
        return;
    }
    const uint32_t member =
        (uint32_t)(seat - self->seats) - self->pipelines[seat->pipeline].seat_first;
    if (seat->pipeline == lease->pipeline && (lease->ready[member] || lease->state != LEASE_OPEN)) {
        return;  // It says so again until it hears OUTCOME or CLOSED.
    }
    const char *const fault = ready_fault(self, lease, seat, &in->msg);
    if (fault) {
        member_refuse(&self->member, in, out, "%s", fault);
        return;
    }
    // Of an evaluation it is the answer; of training the gradients are not to be used.
    if (seat->last && !lease->eval && !isfinite(in->msg.loss)) {
        lead_close(self, lease, WIRE_CLOSED_NONFINITE, in->now, out);
        return;
    }
    lease->ready[member] = true;
    lease->ready_count++;
    lease->oldest = HX_MIN(lease->oldest, in->msg.version);
    if (seat->last) {
        lease->tokens += in->msg.tokens;
        lease->loss += in->msg.loss;
    }
    if (lease->ready_count == self->pipelines[lease->pipeline].seats_count) {
        announce(self, lease, in->now, out);
    }
}

void lead_send_outcome(lead_t *self, const lease_t *lease, uint64_t version, step_out_t *out)
{
    const wire_msg_t msg = {.kind = WIRE_OUTCOME, .attempt = lease->attempt, .version = version};
    lead_to_members(self, lease->pipeline, &msg, out);
}
