// lead_close - how leases end without a commit: closed for a reason, their rows returned.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <stdio.h>

static const char *reason_name(wire_closed_t reason)
{
    static const char *const names[LEAD_DROPS_COUNT] = {
        [WIRE_CLOSED_UNKNOWN] = "unknown",
        [WIRE_CLOSED_LATE] = "late",
        [WIRE_CLOSED_DEAD] = "dead",
        [WIRE_CLOSED_LOST] = "lost",
        [WIRE_CLOSED_NONFINITE] = "not finite",
        [WIRE_CLOSED_CANCELLED] = "cancelled",
    };
    return names[reason];
}

// Below the floor shards close everything by themselves.
static void remember_closed(lead_t *self, uint64_t attempt)
{
    HX_ASSERT(self->closed_count < PAYLOAD_CLOSED_MAX);
    uint32_t at = self->closed_count++;
    while (at > 0 && self->closed[at - 1] > attempt) {
        self->closed[at] = self->closed[at - 1];
        at--;
    }
    self->closed[at] = attempt;
}

// The range of a contribution that was not finite goes out again, but not for ever.
static void return_bad_rows(lead_t *self, row_range_t rows, hx_time_t now, step_out_t *out)
{
    if (cursor_strikes(&self->cursor, rows) + 1 < LEAD_STRIKES_MAX) {
        cursor_return(&self->cursor, rows, true);
    } else if (cursor_skips_left(&self->cursor) > 0) {
        cursor_skip(&self->cursor, rows);
        step_note(out, STEP_WARN,
                  "rows %" PRIu64 " to %" PRIu64 " are skipped: not finite %u times", rows.first,
                  rows.end, LEAD_STRIKES_MAX);
    } else {
        cursor_return(&self->cursor, rows, false);
        lead_fail(self, now, out, "too many ranges of data gave gradients that are not finite");
    }
    if (++self->nonfinite_run >= self->conf.nonfinite_limit) {
        lead_fail(self, now, out,
                  "training diverged: %" PRIu32 " contributions in a row were not finite "
                  "(train.nonfinite_limit); lower train.lr, or set train.clip",
                  self->nonfinite_run);
    }
}

void lead_close(lead_t *self, lease_t *lease, wire_closed_t reason, hx_time_t now, step_out_t *out)
{
    const lease_t gone = *lease;
    const wire_msg_t msg = {
        .kind = WIRE_CLOSED, .attempt = gone.attempt, .count = (uint32_t)reason};
    lead_to_members(self, gone.pipeline, &msg, out);
    lead_lease_remove(self, lease);
    lead_start_first(self, gone.pipeline, now);
    if (gone.eval) {
        lead_eval_return(self, gone.pipeline, gone.rows);
        return;
    }
    step_note(out, STEP_DEBUG,
              "pipeline %" PRIu32 ": rows %" PRIu64 " to %" PRIu64 " are returned: %s",
              gone.pipeline, gone.rows.first, gone.rows.end, reason_name(reason));
    self->totals.dropped[reason]++;
    remember_closed(self, gone.attempt);
    if (reason == WIRE_CLOSED_NONFINITE) {
        return_bad_rows(self, gone.rows, now, out);
    } else {
        cursor_return(&self->cursor, gone.rows, false);
    }
}

// Closes the leases of one pipeline (UINT32_MAX: of all) that are open, of either kind.
static void close_leases(lead_t *self, uint32_t pipeline, bool train, bool eval,
                         wire_closed_t reason, hx_time_t now, step_out_t *out)
{
    uint32_t at = 0;
    while (at < self->leases_count) {
        lease_t *const lease = &self->leases[at];
        if (lease->state == LEASE_OPEN && (lease->eval ? eval : train) &&
            (pipeline == UINT32_MAX || lease->pipeline == pipeline)) {
            lead_close(self, lease, reason, now, out);
        } else {
            at++;
        }
    }
}

void lead_close_partial(lead_t *self, hx_time_t now, step_out_t *out)
{
    const ssaw_conf_t *const ssaw = &self->conf.ssaw;
    const bool whole_only = ssaw->staleness == 0 && ssaw->quorum_rows == ssaw->batch_rows;
    if (!whole_only || self->round.state != ROUND_NONE || cursor_left(&self->cursor) == 0 ||
        lead_count(self, LEASE_OPEN) > 0) {
        return;
    }
    uint64_t rows = 0;
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        const bool counts = lease->state == LEASE_ANNOUNCED && !lease->eval;
        rows += counts ? lease->rows.end - lease->rows.first : 0;
    }
    for (uint32_t at = 0; rows < ssaw->batch_rows && at < self->leases_count;) {
        lease_t *const lease = &self->leases[at];
        if (lease->state == LEASE_ANNOUNCED && !lease->eval) {
            lead_close(self, lease, WIRE_CLOSED_CANCELLED, now, out);
        } else {
            at++;
        }
    }
}

uint64_t lead_drain(lead_t *self, uint32_t pipeline, hx_time_t now, step_out_t *out)
{
    lead_pipeline_t *const own = &self->pipelines[pipeline];
    uint64_t rows = 0;
    own->draining = true;
    for (uint32_t at = 0; at < self->leases_count;) {
        lease_t *const lease = &self->leases[at];
        if (lease->pipeline == pipeline && lease->state == LEASE_OPEN &&
            lease->started_at == HX_TIME_NEVER) {
            rows += lease->eval ? 0 : lease->rows.end - lease->rows.first;
            lead_close(self, lease, WIRE_CLOSED_CANCELLED, now, out);
        } else {
            at++;
        }
    }
    lead_eval_return(self, pipeline, own->eval_rows);
    own->eval_rows = (row_range_t){0, 0};
    return rows;
}

void lead_close_late(lead_t *self, hx_time_t now, step_out_t *out)
{
    for (uint32_t at = 0; at < self->leases_count;) {
        lease_t *const lease = &self->leases[at];
        if (!lease->eval && lease->state != LEASE_IN_ROUND) {
            lead_close(self, lease, WIRE_CLOSED_CANCELLED, now, out);
        } else {
            at++;
        }
    }
}

void lead_close_open(lead_t *self, bool eval, hx_time_t now, step_out_t *out)
{
    close_leases(self, UINT32_MAX, !eval, eval, WIRE_CLOSED_CANCELLED, now, out);
}

bool lead_too_small(const lead_t *self)
{
    // At worst the smallest pipelines fill the list of leases. Half of it and of each queue are
    // counted, since returned ranges may have been cut, and evaluations take places too.
    uint32_t smallest[LEAD_LEASES_MAX / LEAD_QUEUE_MAX];
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        uint32_t rows = self->pipelines[at].rows;
        if (!self->pipelines[at].live) {
            continue;
        }
        for (uint32_t place = 0; place < count; place++) {
            const uint32_t other = smallest[place];
            smallest[place] = HX_MIN(rows, other);
            rows = HX_MAX(rows, other);
        }
        if (count < HX_COUNT(smallest)) {
            smallest[count++] = rows;
        }
    }
    uint64_t rows = 0;
    for (uint32_t place = 0; place < count; place++) {
        rows += smallest[place];
    }
    return rows * (LEAD_QUEUE_MAX / 2) < self->conf.ssaw.quorum_rows;
}

void lead_give_up(lead_t *self, uint32_t pipeline, wire_closed_t reason, const char *why,
                  hx_time_t now, step_out_t *out)
{
    lead_pipeline_t *const own = &self->pipelines[pipeline];
    if (!own->live) {
        return;
    }
    own->live = false;
    self->totals.given_up++;
    step_note(out, STEP_WARN,
              "pipeline %" PRIu32 " is given up: %s; %" PRIu32 " of %" PRIu32 " go on", pipeline,
              why, lead_live_count(self), self->plan.pipelines_count);
    close_leases(self, pipeline, true, true, reason, now, out);
    lead_eval_return(self, pipeline, own->eval_rows);
    own->eval_rows = (row_range_t){0, 0};
    if (lead_live_count(self) == 0) {
        lead_end(self, 1, out, "no pipeline is left: the last one was given up: %s", why);
        self->aborting = true;
    } else if (self->phase < LEAD_FINAL && lead_too_small(self)) {
        lead_end(self, 1, out,
                 "the pipelines that are left hold too few rows for a round of %" PRIu64
                 ": the last one was given up: %s",
                 self->conf.ssaw.quorum_rows, why);
        self->aborting = true;
        self->stop_at = now;
    }
}

void lead_deadlines(lead_t *self, hx_time_t now, step_out_t *out)
{
    uint32_t at = 0;
    while (at < self->leases_count) {
        const lease_t *const lease = &self->leases[at];
        if (lease->state != LEASE_OPEN || lease->started_at == HX_TIME_NEVER) {
            at++;
        } else if (now - lease->started_at >= lease->limit) {
            char why[128];
            snprintf(why, sizeof why, "a lease is not done after %.1f s",
                     (double)(now - lease->started_at) / 1e9);
            lead_give_up(self, lease->pipeline, WIRE_CLOSED_LATE, why, now, out);
            at = 0;
        } else {
            step_wake(out, lease->started_at + lease->limit);
            at++;
        }
    }
}
