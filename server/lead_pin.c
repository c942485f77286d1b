// lead_pin - evaluations and checkpoints: what needs one version to stay as it is for a while.
//
// A record with `snapshot` makes shards keep that version until UNPIN. Both uses of it run at the
// same time, beside training. At most one version is pinned. The first and the last evaluation need
// no pin: nothing is committed meanwhile.
//
// An evaluation divides the held-out rows among the pipelines in proportion to their leases, so
// that the sum of losses is added in the same order in every run. Rows of a pipeline that is given
// up go to the others.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// ---- evaluation

static void share_rows(lead_t *self)
{
    uint64_t weights = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        const lead_pipeline_t *const pipeline = &self->pipelines[at];
        weights += pipeline->live && !pipeline->draining ? pipeline->rows : 0;
    }
    HX_ASSERT(weights > 0);
    uint64_t sum = 0;
    uint64_t first = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        lead_pipeline_t *const pipeline = &self->pipelines[at];
        sum += pipeline->live && !pipeline->draining ? pipeline->rows : 0;
        // In double: exact far beyond any number of held-out rows, and it cannot overflow.
        const uint64_t end =
            sum == weights
                ? self->conf.valid_rows
                : (uint64_t)floor((double)self->conf.valid_rows * (double)sum / (double)weights);
        pipeline->eval_rows = (row_range_t){first, HX_MAX(first, end)};
        pipeline->eval_tokens = 0;
        pipeline->eval_loss = 0;
        first = pipeline->eval_rows.end;
    }
}

void lead_eval_return(lead_t *self, uint32_t pipeline, row_range_t rows)
{
    lead_pin_t *const pin = &self->pin;
    HX_ASSERT(pipeline < self->plan.pipelines_count);
    if (pin->evaluating && rows.first < rows.end) {
        HX_ASSERT(pin->spare_count < HX_COUNT(pin->spare));
        pin->spare[pin->spare_count++] = rows;
    }
}

void lead_on_eval_announced(lead_t *self, lease_t *lease, step_out_t *out)
{
    lead_pipeline_t *const pipeline = &self->pipelines[lease->pipeline];
    pipeline->eval_tokens += lease->tokens;
    pipeline->eval_loss += lease->loss;
    lead_send_outcome(self, lease, lease->base, out);
    lead_lease_remove(self, lease);
}

// The next rows for a pipeline: of its own share, then of those that lost theirs.
static bool next_rows(lead_t *self, lead_pipeline_t *pipeline, row_range_t *out)
{
    lead_pin_t *const pin = &self->pin;
    row_range_t *from = &pipeline->eval_rows;
    if (from->first == from->end) {
        if (pin->spare_count == 0) {
            return false;
        }
        from = &pin->spare[pin->spare_count - 1];
    }
    out->first = from->first;
    out->end = HX_MIN(from->end, from->first + pipeline->rows);
    from->first = out->end;
    if (from != &pipeline->eval_rows && from->first == from->end) {
        pin->spare_count--;
    }
    return true;
}

static void grant_rows(lead_t *self, hx_time_t now, step_out_t *out)
{
    const uint32_t queue = self->phase == LEAD_TRAIN ? 1 : LEAD_EVAL_QUEUE;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        lead_pipeline_t *const pipeline = &self->pipelines[at];
        row_range_t rows;
        while (pipeline->live && !pipeline->draining && lead_evals_count(self, at) < queue &&
               lead_lease_room(self) && next_rows(self, pipeline, &rows)) {
            lead_lease_add(self, at, rows, self->pin.version, true, now, out);
        }
    }
}

static bool eval_over(const lead_t *self)
{
    if (self->pin.spare_count > 0) {
        return false;
    }
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        const row_range_t rows = self->pipelines[at].eval_rows;
        if (rows.first < rows.end || lead_evals_count(self, at) > 0) {
            return false;
        }
    }
    return true;
}

static void check_target(lead_t *self, step_out_t *out)
{
    const double target = self->conf.target_loss;
    const bool counts = self->phase == LEAD_FIRST || self->conf.valid_every > 0;
    if (target > 0 && counts && self->totals.valid_loss <= target) {
        lead_end(self, 0, out, "the validation loss reached train.target_loss, %g", target);
    }
}

static void end_eval(lead_t *self, hx_time_t now, step_out_t *out)
{
    uint64_t tokens = 0;
    double loss = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        tokens += self->pipelines[at].eval_tokens;
        loss += self->pipelines[at].eval_loss;
    }
    self->pin.evaluating = false;
    lead_totals_t *const totals = &self->totals;
    if (tokens == 0) {
        step_note(out, STEP_WARN, "version %" PRIu64 ": nothing was evaluated", self->pin.version);
        return;
    }
    totals->valid_loss = loss / (double)tokens;
    totals->valid_version = self->pin.version;
    if (isnan(totals->valid_loss_first)) {
        totals->valid_loss_first = totals->valid_loss;
    }
    step_note(out, STEP_INFO, "version %" PRIu64 ": validation loss %.4f", self->pin.version,
              totals->valid_loss);
    lead_report_valid(self, now, out);
    check_target(self, out);
}

void lead_pin_abort_eval(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (!self->pin.evaluating) {
        return;
    }
    self->pin.evaluating = false;
    self->pin.spare_count = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        self->pipelines[at].eval_rows = (row_range_t){0, 0};
    }
    lead_close_open(self, true, now, out);
    step_note(out, STEP_DEBUG, "the evaluation of version %" PRIu64 " is cancelled",
              self->pin.version);
}

// ---- the pin

static void ask_save(const lead_t *self, step_out_t *out)
{
    const wire_msg_t msg = {.kind = WIRE_SAVE, .version = self->pin.version};
    step_send(out, self->plan.nodes[self->plan.keeper].id, &msg, self->pin.record);
}

// The keeper answers each SAVE once it is done, so it is asked until it does.
static void ask_save_again(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_pin_t *const pin = &self->pin;
    if (pin->resend_at == HX_TIME_NEVER) {
        pin->resend_at = now + self->member.conf.request_timeout;
    } else if (now >= pin->resend_at) {
        ask_save(self, out);
        pin->resend_at = now + self->member.conf.request_timeout;
    }
    step_wake(out, pin->resend_at);
}

static void end_pin(lead_t *self, step_out_t *out)
{
    lead_pin_t *const pin = &self->pin;
    pin->active = false;
    blob_release(&pin->record);
    if (pin->pinned) {
        const wire_msg_t msg = {.kind = WIRE_UNPIN, .version = pin->version};
        lead_to_shards(self, &msg, NULL, false, out);
    }
}

void lead_pin_start(lead_t *self, bool pinned, bool save, bool evaluate, step_out_t *out)
{
    lead_pin_t *const pin = &self->pin;
    HX_ASSERT(!pin->active);
    evaluate = evaluate && lead_live_count(self) > 0;
    pin->active = true;
    pin->pinned = pinned;
    pin->saving = save;
    pin->evaluating = evaluate;
    pin->version = self->version;
    pin->tokens = self->tokens;
    pin->spare_count = 0;
    if (evaluate) {
        share_rows(self);
    }
    if (save) {
        HX_ASSERT(self->record);
        pin->record = blob_retain(self->record);
        pin->resend_at = HX_TIME_NEVER;
        ask_save(self, out);
        step_note(out, STEP_DEBUG, "version %" PRIu64 " is to be saved", self->version);
    }
}

void lead_pin_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_pin_t *const pin = &self->pin;
    if (!pin->active) {
        return;
    }
    if (pin->evaluating) {
        grant_rows(self, now, out);
        if (eval_over(self)) {
            end_eval(self, now, out);
        }
    }
    if (pin->saving) {
        ask_save_again(self, now, out);
    } else if (!pin->evaluating) {
        end_pin(self, out);
    }
}

void lead_on_saved(lead_t *self, const step_in_t *in, step_out_t *out)
{
    lead_pin_t *const pin = &self->pin;
    const bool known = in->peer == self->plan.nodes[self->plan.keeper].id;
    if (known && in->msg.version <= self->version &&
        (!pin->saving || in->msg.version < pin->version)) {
        return;  // It was asked twice, and says so twice.
    }
    if (!known || !pin->active || !pin->saving || in->msg.version != pin->version) {
        member_refuse(&self->member, in, out, "nothing like that is being saved");
        return;
    }
    pin->saving = false;
    if (in->msg.flags & 1) {
        self->saved_version = pin->version;
        step_note(out, STEP_INFO, "version %" PRIu64 " is saved", pin->version);
        lead_live_saved(self, pin->version, NULL, out);
        return;
    }
    self->totals.saves_failed++;
    step_note(out, STEP_ERROR, "version %" PRIu64 " was not saved: %s", pin->version, in->msg.text);
    lead_live_saved(self, pin->version, in->msg.text, out);
    if (self->phase == LEAD_FINAL && (self->status == 0 || self->status == 130)) {
        self->status = 1;
        snprintf(self->reason, sizeof self->reason, "the last checkpoint was not written: %.400s",
                 in->msg.text);
    }
}
