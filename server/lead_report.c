// lead_report - what the lead tells about the run: a line a commit, a line a validation, totals at
// the end.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "tensor/hx_text.h"

// JSON has no infinity: what is not a number is null.
static void add_number(hx_text_t *text, const char *name, double value)
{
    if (isfinite(value)) {
        hx_text_add(text, ", \"%s\": %.9g", name, value);
    } else {
        hx_text_add(text, ", \"%s\": null", name);
    }
}

static blob_t *text_blob(hx_text_t *text)
{
    blob_t *const blob = blob_copy(text->bytes, text->size);
    free(text->bytes);
    return blob;
}

void lead_report_init(lead_t *self)
{
    self->totals = (lead_totals_t){.valid_loss_first = NAN, .valid_loss = NAN};
}

double lead_seconds(const lead_t *self, hx_time_t now)
{
    return self->train_started_at == HX_TIME_NEVER ? 0
                                                   : (double)(now - self->train_started_at) / 1e9;
}

uint64_t lead_dropped(const lead_t *self)
{
    uint64_t dropped = self->dropped_base;
    for (uint32_t reason = 0; reason < LEAD_DROPS_COUNT; reason++) {
        dropped += self->totals.dropped[reason];
    }
    return dropped;
}

double lead_train_loss(const lead_t *self)
{
    uint64_t tokens = 0;
    double loss = 0;
    for (uint32_t at = 0; at < self->totals.window_count; at++) {
        tokens += self->totals.window[at].tokens;
        loss += self->totals.window[at].loss;
    }
    return tokens > 0 ? loss / (double)tokens : NAN;
}

// Over the last commits: from the one before the window's oldest to the newest.
static double recent_speed(const lead_t *self, hx_time_t now)
{
    const lead_totals_t *const totals = &self->totals;
    const uint32_t count = totals->window_count;
    uint64_t tokens = 0;
    for (uint32_t at = 0; at < count; at++) {
        tokens += totals->window[at].tokens;
    }
    hx_time_t from = self->train_started_at;
    if (count == LEAD_WINDOW) {  // The oldest's own time is the start; its tokens came before.
        from = totals->window[totals->window_at].at;
        tokens -= totals->window[totals->window_at].tokens;
    }
    return from < now ? (double)tokens / ((double)(now - from) / 1e9) : NAN;
}

static void send_progress(lead_t *self, double loss, bool valid, uint64_t version, hx_text_t *text,
                          hx_time_t now, step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = WIRE_PROGRESS,
        .version = version,
        .tokens = valid ? self->pin.tokens : self->tokens,
        .loss = loss,
        .seconds = lead_seconds(self, now),
        .count = lead_live_count(self),
        .flags = valid ? 1 : 0,
    };
    blob_t *line = text_blob(text);
    step_send(out, NODE_SCHEDULER, &msg, line);
    blob_release(&line);
}

static void add_contributions(lead_t *self, const record_t *record, hx_text_t *text)
{
    hx_text_add(text, ", \"contributions\": [");
    for (uint32_t at = 0; at < record->members_count; at++) {
        const round_member_t *const member = &record->members[at];
        const lease_t *const lease = lead_lease_find(self, member->attempt);
        HX_ASSERT(lease);
        hx_text_add(text,
                    "%s{\"pipeline\": %" PRIu32 ", \"step\": %" PRIu32 ", \"rows\": %" PRIu32
                    ", \"tokens\": %" PRIu64 ", \"lag\": %" PRIu32 ", \"weight\": %.9g}",
                    at > 0 ? ", " : "", member->pipeline, lease->step, member->rows, member->tokens,
                    member->lag, member->weight);
    }
    hx_text_add(text, "]");
}

void lead_report_commit(lead_t *self, hx_time_t now, step_out_t *out)
{
    const record_t *const record = &self->round.record;
    uint64_t tokens = 0;
    double sum = 0;
    for (uint32_t at = 0; at < record->members_count; at++) {
        tokens += record->members[at].tokens;
        sum += record->members[at].loss;
    }
    const double loss = tokens > 0 ? sum / (double)tokens : 0;
    hx_text_t text = {0};
    hx_text_add(&text, "{\"version\": %" PRIu64, record->version);
    hx_text_add(&text, ", \"time\": %.6f", lead_seconds(self, now));
    hx_text_add(&text, ", \"tokens\": %" PRIu64, record->tokens);
    add_number(&text, "loss", tokens > 0 ? loss : NAN);
    add_number(&text, "lr", optim_lr(&self->conf.schedule, record->tokens));
    add_number(&text, "kappa", record->kappa);
    add_number(&text, "rate", record->rate);
    add_number(&text, "norm", record->norm);
    add_number(&text, "clip", record->scale);
    add_contributions(self, record, &text);
    add_number(&text, "tokens_per_second", recent_speed(self, now));
    hx_text_add(&text, "}");
    send_progress(self, loss, false, record->version, &text, now, out);
}

void lead_report_valid(lead_t *self, hx_time_t now, step_out_t *out)
{
    const uint64_t version = self->totals.valid_version;
    hx_text_t text = {0};
    hx_text_add(&text, "{\"version\": %" PRIu64, version);
    hx_text_add(&text, ", \"time\": %.6f", lead_seconds(self, now));
    hx_text_add(&text, ", \"tokens\": %" PRIu64, self->pin.tokens);
    add_number(&text, "valid_loss", self->totals.valid_loss);
    hx_text_add(&text, "}");
    send_progress(self, self->totals.valid_loss, true, version, &text, now, out);
}

static void add_drops(const lead_t *self, hx_text_t *text)
{
    const uint64_t *const dropped = self->totals.dropped;
    hx_text_add(text, ", \"dropped\": %" PRIu64, lead_dropped(self));
    hx_text_add(text,
                ", \"drops\": {\"dead\": %" PRIu64 ", \"late\": %" PRIu64
                ", \"cancelled\": %" PRIu64 ", \"nonfinite\": %" PRIu64 "}",
                dropped[WIRE_CLOSED_DEAD], dropped[WIRE_CLOSED_LATE],
                dropped[WIRE_CLOSED_CANCELLED], dropped[WIRE_CLOSED_NONFINITE]);
    hx_text_add(text, ", \"skipped_rows\": %" PRIu64, self->cursor.rows[CURSOR_SKIPPED]);
}

blob_t *lead_totals_json(const lead_t *self, hx_time_t now)
{
    const lead_totals_t *const totals = &self->totals;
    // Training ends with its last commit; what follows is evaluation and saving.
    const double train = lead_seconds(self, HX_MAX(self->committed_at, self->train_started_at));
    const double done = totals->tokens > 0 && self->train_started_at != HX_TIME_NEVER ? train : 0;
    const double speed = done > 0 ? (double)totals->tokens / done : NAN;
    hx_text_t text = {0};
    hx_text_add(&text, "{\"version\": %" PRIu64 ", \"tokens\": %" PRIu64, self->version,
                self->tokens);
    hx_text_add(&text, ", \"commits\": %" PRIu64, totals->commits);
    add_number(&text, "seconds", lead_seconds(self, now));
    add_number(&text, "train_seconds", done);
    add_number(&text, "tokens_per_second", speed);
    add_number(&text, "train_loss", lead_train_loss(self));
    add_number(&text, "valid_loss_first", totals->valid_loss_first);
    add_number(&text, "valid_loss", totals->valid_loss);
    add_number(&text, "lag_mean",
               totals->contributions > 0 ? (double)totals->lag_sum / (double)totals->contributions
                                         : 0);
    hx_text_add(&text, ", \"lag_max\": %" PRIu32, totals->lag_max);
    add_drops(self, &text);
    add_number(&text, "clipped",
               totals->commits > 0 ? (double)totals->clipped / (double)totals->commits : 0);
    add_number(&text, "measured_step_seconds",
               speed > 0 ? (double)self->conf.ssaw.batch_tokens / self->conf.local_steps / speed
                         : NAN);
    hx_text_add(
        &text, ", \"given_up\": %" PRIu32 ", \"saves_failed\": %" PRIu32 ", \"nonsense\": %" PRIu64,
        totals->given_up, totals->saves_failed, self->member.refused);
    hx_text_add(&text, "}");
    return text_blob(&text);
}
