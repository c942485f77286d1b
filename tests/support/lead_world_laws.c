// lead_world_laws - what must hold of every grant and of every record.

#include "bench/commit_laws.h"
#include "tests/support/lead_world_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void lead_world_broken(lead_world_t *self, const char *format, ...)
{
    if (self->report.broken[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(self->report.broken, sizeof self->report.broken, format, args);
        va_end(args);
    }
}

bool lead_world_is_bad(const lead_world_t *self, const round_member_t *member)
{
    return self->conf.bad_row >= member->row_first &&
           self->conf.bad_row < member->row_first + member->rows;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

static bool all_dead(const lead_world_t *self, uint32_t pipeline)
{
    for (uint32_t stage = 0; stage < self->conf.stages; stage++) {
        if (!self->workers[pipeline * self->conf.stages + stage].dead) {
            return false;
        }
    }
    return true;
}

void lead_world_check_grant(lead_world_t *self, const wire_msg_t *grant, node_id_t to)
{
    const uint32_t index = (uint32_t)(to - WORLD_WORKER);
    if (grant->flags & 1) {
        for (uint64_t row = grant->row_first; row < grant->row_first + grant->rows; row++) {
            HX_ASSERT(row < HELD_OUT_MAX);
            self->asked_in[row] = grant->attempt;
        }
        return;
    }
    if (index % self->conf.stages != 0) {
        return;  // Once a pipeline.
    }
    if (self->granted_at == HX_TIME_NEVER) {
        self->granted_at = self->now;
        self->committed_at = self->now;
        self->trace_size = 0;
        self->report.first_attempt = grant->attempt;
    }
    if (grant->attempt <= self->last_attempt) {
        lead_world_broken(self, "attempt %" PRIu64 " comes again", grant->attempt);
    }
    self->last_attempt = grant->attempt;
    for (uint64_t row = grant->row_first; row < grant->row_first + grant->rows; row++) {
        HX_ASSERT(row < ROWS_MAX);
        // A pipeline of which nobody lives is told nothing.
        const bool open = self->open_in[row] != 0 && !all_dead(self, self->open_at[row]);
        if (self->committed[row] || open) {
            lead_world_broken(self, "row %" PRIu64 " is leased while it is %s", row,
                              self->committed[row] ? "committed" : "open");
        }
        self->open_in[row] = grant->attempt;
        self->used[row] = UINT64_MAX;
        self->open_at[row] = index / self->conf.stages;
    }
}

void lead_world_note_ready(lead_world_t *self, uint64_t row_first, const wire_msg_t *ready)
{
    if (row_first < ROWS_MAX && self->open_in[row_first] == ready->attempt) {
        self->used[row_first] = HX_MIN(self->used[row_first], ready->version);
    }
}

void lead_world_check_outcome(lead_world_t *self, const wire_msg_t *outcome)
{
    for (uint32_t row = 0; row < HELD_OUT_MAX; row++) {
        if (self->asked_in[row] == outcome->attempt) {
            self->asked_in[row] = 0;
            self->seen[row]++;
        }
    }
}

void lead_world_check_valid(lead_world_t *self)
{
    for (uint32_t row = 0; row < HELD_OUT_MAX; row++) {
        if (self->seen[row] != (row < self->conf.valid_rows)) {
            lead_world_broken(self, "held-out row %" PRIu32 " counts %" PRIu32 " times", row,
                              self->seen[row]);
        }
        self->seen[row] = 0;
    }
}

void lead_world_check_closed(lead_world_t *self, const wire_msg_t *closed)
{
    bool known = false;
    for (uint64_t row = 0; row < ROWS_MAX; row++) {
        if (self->open_in[row] == closed->attempt && closed->attempt != 0) {
            self->open_in[row] = 0;
            known = true;
        }
    }
    if (known) {
        self->closed[self->closed_count++ % PAYLOAD_CLOSED_MAX] = closed->attempt;
    }
}

// Members are not below the floor, and shards are told of every attempt above it that is closed.
void lead_world_check_prepare(lead_world_t *self, const wire_msg_t *msg, const blob_t *blob)
{
    prepare_t prepare = {0};
    if (msg->round == self->prepared_round || payload_prepare_decode(blob, &prepare) != HX_OK) {
        return;  // Said again; or a shard will complain.
    }
    self->prepared_round = msg->round;
    for (uint32_t at = 0; at < prepare.members_count; at++) {
        if (prepare.members[at].attempt < msg->floor) {
            lead_world_broken(self, "a member below the floor");
        }
    }
    for (uint64_t at = 0; at < HX_MIN(self->closed_count, PAYLOAD_CLOSED_MAX); at++) {
        bool told = self->closed[at] < msg->floor;
        for (uint32_t other = 0; other < prepare.closed_count; other++) {
            told = told || prepare.closed[other] == self->closed[at];
        }
        if (!told) {
            lead_world_broken(self, "shards are not told that attempt %" PRIu64 " is closed",
                              self->closed[at]);
        }
    }
    prepare_destroy(&prepare);
}

static void check_member(lead_world_t *self, const round_member_t *member, uint64_t version)
{
    for (uint64_t row = member->row_first; row < member->row_first + member->rows; row++) {
        if (self->committed[row]) {
            lead_world_broken(self, "row %" PRIu64 " is committed twice", row);
        }
        if (self->open_in[row] != member->attempt) {
            lead_world_broken(self, "row %" PRIu64 " is committed under a closed attempt", row);
        }
        self->committed[row] = true;
        self->open_in[row] = 0;
    }
    if (lead_world_is_bad(self, member)) {
        lead_world_broken(self, "the bad row is committed");
    }
    if (member->lag != version - 1 - self->used[member->row_first]) {
        lead_world_broken(self, "lag %" PRIu32 " in version %" PRIu64 " of a step from %" PRIu64,
                          member->lag, version, self->used[member->row_first]);
    }
    uint64_t factor;
    memcpy(&factor, &member->factor, sizeof factor);
    lead_world_report_t *const report = &self->report;
    report->lag_max = HX_MAX(report->lag_max, member->lag);
    report->rows_committed += member->rows;
    report->assignment =
        mix(mix(mix(report->assignment, member->pipeline), member->row_first), member->rows);
    report->weights = mix(report->weights, factor);
}

// The votes' sums, added in the order of blocks, to the bit.
static void check_norm(lead_world_t *self, const record_t *record)
{
    double sum = 0;
    for (uint32_t at = 0; at < self->blocks.count; at++) {
        sum += lead_world_square(at, self->sent[WIRE_PREPARE].round);
    }
    if (record->norm != sqrt(sum)) {
        lead_world_broken(self, "norm %.17g, not %.17g", record->norm, sqrt(sum));
    }
}

void lead_world_check_record(lead_world_t *self, const record_t *record)
{
    const lead_view_t view = lead_view(self->lead);
    const bool fixed = !self->conf.live && !view.ssaw.quorum_auto && !view.ssaw.staleness_auto;
    optim_schedule_t schedule = WORLD_SCHEDULE;
    schedule.lr = self->conf.live ? view.lr : schedule.lr;
    double phi[PAYLOAD_MEMBERS_MAX];
    for (uint32_t at = 0; at < record->members_count; at++) {
        const double cosine = lead_world_cosine(record->members[at].attempt);
        phi[at] =
            record->members[at].lag == 0 ? 1 : fmin(fmax((1 + cosine) / 2, view.ssaw.agreement), 1);
    }
    const commit_laws_t laws = {.phi = view.ssaw.agreement > 0 ? phi : NULL,
                                .ssaw = fixed ? &self->conf.ssaw : &view.ssaw,
                                .schedule = &schedule,
                                .clip = WORLD_CLIP,
                                .context = WORLD_CONTEXT};
    char text[160];
    if (!commit_laws_hold(&laws, &self->report.last, record, text, sizeof text)) {
        lead_world_broken(self, "version %" PRIu64 ": %s", record->version, text);
    }
    for (uint32_t at = 0; at < record->members_count; at++) {
        check_member(self, &record->members[at], record->version);
    }
    check_norm(self, record);
    const hx_time_t pause = self->now - self->committed_at;
    self->report.longest = HX_MAX(self->report.longest, (uint64_t)(pause / HX_MS(1)));
    self->committed_at = self->now;
    self->report.commits++;
    record_destroy(&self->report.last);
    record_copy(record, &self->report.last);
}
