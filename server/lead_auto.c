// lead_auto - what is measured of rounds: how long the lag bound alone kept them open, and what
// quorum and bound follow from that where they are automatic.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>

#define SMOOTHING 0.2
#define OVERDUE 0.05  // Of its mean: what is left of a lease that takes longer than that.

static double smooth(double mean, double value)
{
    return mean > 0 ? mean + SMOOTHING * (value - mean) : value;
}

// ---- forced waits

// Is it a lease of this pipeline that condition 3 waits for?
static bool binds(const lead_t *self, uint32_t pipeline)
{
    const ssaw_pipeline_t *const view = &self->view_pipelines[pipeline];
    return view->live && view->in_flight > 0 &&
           self->version + 1 - view->base > self->conf.ssaw.staleness;
}

static void wait_for(lead_pipeline_t *pipeline, bool waits, hx_time_t now)
{
    if (waits && pipeline->forced_since == HX_TIME_NEVER) {
        pipeline->forced_since = now;
        pipeline->forced++;
    } else if (!waits && pipeline->forced_since != HX_TIME_NEVER) {
        pipeline->forced_time += now - pipeline->forced_since;
        pipeline->forced_since = HX_TIME_NEVER;
    }
}

void lead_auto_wait(lead_t *self, ssaw_verdict_t verdict, hx_time_t now)
{
    const bool waits = verdict == SSAW_WAIT_LAG;
    if (!waits && self->forced_since == HX_TIME_NEVER) {
        return;
    }
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        wait_for(&self->pipelines[at], waits && binds(self, at), now);
    }
    if (waits && self->forced_since == HX_TIME_NEVER) {
        self->forced_since = now;
    } else if (!waits) {
        self->forced_time += now - self->forced_since;
        self->forced_since = HX_TIME_NEVER;
    }
}

// ---- what follows

// Seconds until the next contribution of a pipeline is announced, and its rows.
static ssaw_arrival_t arrival_of(const lead_t *self, uint32_t pipeline, hx_time_t now)
{
    const lead_pipeline_t *const own = &self->pipelines[pipeline];
    const double mean = own->lease_mean > 0 ? own->lease_mean : fmax(own->step_planned, 0);
    ssaw_arrival_t arrival = {.seconds = mean, .rows = own->rows, .lag = own->lag_mean};
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        if (lease->eval || lease->pipeline != pipeline || lease->state == LEASE_IN_ROUND) {
            continue;
        }
        arrival.rows = lease->rows.end - lease->rows.first;
        if (lease->state == LEASE_ANNOUNCED) {
            arrival.seconds = 0;
        } else if (lease->started_at != HX_TIME_NEVER) {
            const double passed = (double)(now - lease->started_at) / 1e9;
            arrival.seconds = fmax(mean - passed, OVERDUE * mean);
        }
        break;
    }
    return arrival;
}

static void choose_quorum(lead_t *self, hx_time_t now, step_out_t *out)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        if (self->pipelines[at].live && !self->pipelines[at].draining) {
            self->arrivals[count++] = arrival_of(self, at, now);
        }
    }
    if (count == 0) {
        return;
    }
    ssaw_quorum(&self->conf.ssaw, &self->automatic, self->arrivals, count, self->commit_mean);
    if (self->conf.ssaw.quorum_rows != self->automatic.quorum_rows) {
        self->conf.ssaw.quorum_rows = self->automatic.quorum_rows;
        step_note(out, STEP_DEBUG, "quorum of round %" PRIu64 ": %" PRIu64 " rows",
                  self->version + 1, self->conf.ssaw.quorum_rows);
    }
}

static void move_bound(lead_t *self, double seconds, hx_time_t now, step_out_t *out)
{
    const uint32_t before = self->conf.ssaw.staleness;
    ssaw_observe(&self->conf.ssaw, &self->automatic, lead_live_count(self), seconds,
                 (double)self->forced_time / 1e9);
    if (self->automatic.staleness != before) {
        self->conf.ssaw.staleness = self->automatic.staleness;
        step_note(out, STEP_INFO, "staleness bound is %" PRIu32 " from round %" PRIu64 " on",
                  self->automatic.staleness, self->version + 1);
        lead_live_bound(self, now, out);
    }
}

void lead_auto_commit(lead_t *self, hx_time_t now, step_out_t *out)
{
    const record_t *const record = &self->round.record;
    for (uint32_t at = 0; at < record->members_count; at++) {
        lead_pipeline_t *const pipeline = &self->pipelines[record->members[at].pipeline];
        pipeline->lag_mean += SMOOTHING * (record->members[at].lag - pipeline->lag_mean);
    }
    self->commit_mean = smooth(self->commit_mean, (double)(now - self->round.closed_at) / 1e9);
    if (self->conf.ssaw.staleness_auto) {
        move_bound(self, (double)(now - self->committed_at) / 1e9, now, out);
    }
    if (self->conf.ssaw.quorum_auto) {
        choose_quorum(self, now, out);
    }
    self->forced_time = 0;
}
