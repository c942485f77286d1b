// lead_status - how every pipeline does, as JSON for the scheduler, who shows it.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "tensor/hx_text.h"

static void add_number(hx_text_t *text, const char *name, double value)
{
    if (isfinite(value)) {
        hx_text_add(text, ", \"%s\": %.6g", name, value);
    } else {
        hx_text_add(text, ", \"%s\": null", name);
    }
}

// What the lead counts at one pipeline: leases held by shards, in flight, and the oldest base.
typedef struct {
    uint32_t held;
    uint32_t in_flight;
    uint64_t base;
} counts_t;

static counts_t *count_leases(const lead_t *self)
{
    counts_t *const counts = hx_new(HX_MAX(self->plan.pipelines_count, 1u), sizeof *counts);
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        counts[at].base = self->version;
    }
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        counts_t *const own = &counts[lease->pipeline];
        if (lease->eval) {
            continue;
        }
        own->held += lease->state != LEASE_OPEN;
        own->in_flight += lease->state == LEASE_OPEN;
        own->base = HX_MIN(own->base, lease->base);
    }
    return counts;
}

static void add_pipeline(const lead_t *self, uint32_t at, const counts_t *counts, hx_time_t now,
                         hx_text_t *text)
{
    const lead_pipeline_t *const own = &self->pipelines[at];
    const bool measured = own->lease_mean > 0;
    const hx_time_t running = own->forced_since == HX_TIME_NEVER ? 0 : now - own->forced_since;
    hx_text_add(text,
                "%s{\"pipeline\": %" PRIu32 ", \"state\": \"%s\", \"base\": %" PRIu64
                ", \"lag\": %" PRIu64 ", \"held\": %" PRIu32 ", \"in_flight\": %" PRIu32,
                at > 0 ? ", " : "", at + 1,
                !own->live      ? "given up"
                : own->draining ? "leaving"
                                : "live",
                counts->base, self->version - counts->base, counts->held, counts->in_flight);
    hx_text_add(text, ", \"steps\": %" PRIu64, own->clock);
    add_number(text, "lag_mean", own->clock > 0 ? own->lag_mean : NAN);
    add_number(text, "step_seconds", measured ? own->lease_mean : NAN);
    add_number(text, "step_spread", measured ? sqrt(own->lease_variance) : NAN);
    hx_text_add(text, ", \"forced_waits\": %" PRIu32, own->forced);
    add_number(text, "forced_seconds", (double)(own->forced_time + running) / 1e9);
    hx_text_add(text, "}");
}

static void add_values(const lead_t *self, hx_text_t *text)
{
    const ssaw_conf_t *const ssaw = &self->conf.ssaw;
    add_number(text, "quorum", (double)ssaw->quorum_rows / (double)ssaw->batch_rows);
    add_number(text, "staleness",
               ssaw->staleness == SSAW_LAG_UNBOUNDED ? NAN : (double)ssaw->staleness);
    add_number(text, "grace", ssaw->grace);
    add_number(text, "alpha", ssaw->alpha);
    add_number(text, "lr", self->conf.schedule.lr);
    hx_text_add(text, ", \"set\": {");
    for (uint32_t at = 0; at < self->live.settings_count; at++) {
        hx_text_add(text, "%s\"%s\": \"%s\"", at > 0 ? ", " : "", self->live.settings[at].key,
                    self->live.settings[at].value);
    }
    hx_text_add(text, "}");
}

blob_t *lead_status_json(lead_t *self, hx_time_t now)
{
    hx_text_t text = {0};
    counts_t *const counts = count_leases(self);
    const bool voting = self->round.state != ROUND_NONE;
    const char *const waits = self->phase != LEAD_TRAIN ? ""
                              : voting                  ? "the shards"
                                                        : ssaw_verdict_name(self->verdict_noted);
    hx_text_add(&text, "{\"version\": %" PRIu64 ", \"waits_for\": \"%s\"", self->version, waits);
    add_values(self, &text);
    hx_text_add(&text, ", \"dropped\": %" PRIu64 ", \"nonfinite\": %" PRIu64, lead_dropped(self),
                self->totals.dropped[WIRE_CLOSED_NONFINITE]);
    hx_text_add(&text, ", \"nonsense\": %" PRIu64 ", \"lags\": [", self->member.refused);
    for (uint32_t at = 0; at < LEAD_LAGS_COUNT; at++) {
        hx_text_add(&text, "%s%" PRIu64, at > 0 ? ", " : "", self->totals.lags[at]);
    }
    hx_text_add(&text, "], \"pipelines\": [");
    for (uint32_t at = 0; at < self->plan.pipelines_count; at++) {
        add_pipeline(self, at, &counts[at], now, &text);
    }
    hx_text_add(&text, "]}");
    free(counts);
    blob_t *const blob = blob_copy(text.bytes, text.size);
    free(text.bytes);
    return blob;
}

// At most one in `status_every`, and the last news of a burst too.
void lead_status_step(lead_t *self, hx_time_t now, step_out_t *out)
{
    const hx_time_t every = self->conf.status_every;
    if (every == 0 || self->phase == LEAD_OVER) {
        return;
    }
    if (now < self->status_at) {
        step_wake(out, self->status_at);
        return;
    }
    self->status_at = now + every;
    blob_t *blob = lead_status_json(self, now);
    const wire_msg_t msg = {.kind = WIRE_LEAD_STATUS, .version = self->version};
    step_send(out, NODE_SCHEDULER, &msg, blob);
    blob_release(&blob);
}
