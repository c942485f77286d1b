// explore_world_laws - what must hold after every event.

#include "bench/commit_laws.h"
#include "tests/support/explore_world_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

void explore_world_break(explore_world_t *self, const char *format, ...)
{
    if (self->broken[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(self->broken, sizeof self->broken, format, args);
        va_end(args);
    }
}

uint64_t explore_world_rows(uint64_t first, uint64_t count)
{
    HX_ASSERT(count > 0 && first + count < ROWS_IN_ALL);
    return ((UINT64_C(1) << count) - 1) << first;
}

fate_t *explore_world_fate(explore_world_t *self, uint64_t attempt)
{
    const uint64_t counter = attempt & ((UINT64_C(1) << LEAD_ATTEMPT_SHIFT) - 1);
    if (attempt >> LEAD_ATTEMPT_SHIFT != self->incarnation || counter > self->attempts) {
        return NULL;
    }
    return &self->fates[counter];
}

static uint32_t bits(uint64_t set)
{
    return (uint32_t)__builtin_popcountll(set);
}

static bool is_announced(const explore_world_t *self, const fate_t *fate)
{
    return fate->ready + 1u == 1u << self->conf.base.stages;
}

static uint64_t open_rows(const explore_world_t *self, bool without_announced)
{
    uint64_t rows = 0;
    for (uint64_t at = 1; at <= self->attempts; at++) {
        const fate_t *const fate = &self->fates[at];
        const bool announced = is_announced(self, fate);
        rows |= fate->open && !(without_announced && announced) ? fate->rows : 0;
    }
    return rows;
}

// Leases of a pipeline that are open, or open and not announced.
static uint32_t leases_of(const explore_world_t *self, uint32_t pipeline, bool in_flight)
{
    uint32_t count = 0;
    for (uint64_t at = 1; at <= self->attempts; at++) {
        const fate_t *const fate = &self->fates[at];
        const bool announced = is_announced(self, fate);
        const bool counts =
            in_flight ? fate->open && !announced : fate->open || (fate->decided > 0 && !fate->told);
        count += counts && fate->pipeline == pipeline;
    }
    return count;
}

// Who was given up is not told when something of it is closed later: the lead's own list says so.
// But what was announced by then stays, unless there is a reason.
static void close_silently(explore_world_t *self)
{
    const bool reason =
        self->bad_seen || self->stop_asked || self->conf.base.ssaw.cancel_late || self->done;
    for (uint64_t at = 1; at <= self->attempts; at++) {
        fate_t *const fate = &self->fates[at];
        if (fate->open && self->given_up[fate->pipeline] &&
            !explore_world_leased(self, self->incarnation << LEAD_ATTEMPT_SHIFT | at)) {
            if (!reason) {
                explore_world_break(self, "what was announced is forgotten");
            }
            fate->open = false;
            fate->closed = true;
        }
    }
}

static void check_gate(explore_world_t *self, uint32_t pipeline)
{
    const ssaw_conf_t *const ssaw = &self->conf.base.ssaw;
    uint32_t slowest = self->clock[pipeline];
    for (uint32_t at = 0; at < self->conf.base.pipelines; at++) {
        slowest = HX_MIN(slowest, self->given_up[at] ? slowest : self->clock[at]);
    }
    const uint32_t ahead = self->clock[pipeline] + leases_of(self, pipeline, true) - slowest;
    if (ssaw->gate != SSAW_GATE_NONE && ahead > ssaw->gate) {
        explore_world_break(self, "a grant to who is %" PRIu32 " steps ahead", ahead);
    }
}

static void check_grant(explore_world_t *self, const step_send_t *send)
{
    const wire_msg_t *const grant = &send->msg;
    const uint32_t worker = explore_world_node_of(self, send->to) - NODE_WORKER;
    const uint32_t pipeline = worker / self->conf.base.stages;
    const uint64_t rows = explore_world_rows(grant->row_first, grant->rows);
    const uint64_t counter = grant->attempt & ((UINT64_C(1) << LEAD_ATTEMPT_SHIFT) - 1);
    if (worker % self->conf.base.stages != 0) {
        return;  // Once a pipeline.
    }
    if (!self->begun) {
        if (grant->attempt >> LEAD_ATTEMPT_SHIFT <= self->last.incarnation) {
            explore_world_break(self, "the incarnation of the checkpoint comes again");
        }
        self->begun = true;
        self->incarnation = grant->attempt >> LEAD_ATTEMPT_SHIFT;
    }
    if (counter != self->attempts + 1) {
        explore_world_break(self, "attempt %" PRIu64 " follows %" PRIu64, counter, self->attempts);
        return;
    }
    close_silently(self);
    if (rows & self->committed || rows & open_rows(self, false)) {
        explore_world_break(self, "rows from %" PRIu64 " are leased while they are %s",
                            grant->row_first, rows & self->committed ? "committed" : "open");
    }
    if (self->given_up[pipeline]) {
        explore_world_break(self, "a grant to pipeline %" PRIu32 ", which is gone", pipeline);
    }
    if (grant->version > self->last.version) {
        explore_world_break(self, "a grant from version %" PRIu64, grant->version);
    }
    check_gate(self, pipeline);
    HX_ASSERT(counter < ATTEMPTS_MAX);
    self->attempts = counter;
    self->fates[counter] = (fate_t){.pipeline = pipeline,
                                    .rows = rows,
                                    .base = grant->version,
                                    .used = UINT64_MAX,
                                    .open = true};
    const ssaw_conf_t *const ssaw = &self->conf.base.ssaw;
    if (ssaw->staleness == 0 && bits(open_rows(self, false)) > ssaw->batch_rows) {
        explore_world_break(self, "more rows than a strict round has are granted");
    }
}

static uint64_t oldest_shard(const explore_world_t *self, uint64_t *newest)
{
    uint64_t oldest = UINT64_MAX;
    *newest = 0;
    for (uint32_t at = 0; at < self->conf.base.shards; at++) {
        const uint64_t version = ps_shard_info(self->shards[at]).version;
        oldest = HX_MIN(oldest, version);
        *newest = HX_MAX(*newest, version);
    }
    return oldest;
}

static void check_prepare(explore_world_t *self, const wire_msg_t *msg, const blob_t *blob)
{
    uint64_t newest;
    prepare_t prepare = {0};
    if (msg->version != self->last.version + 1 || oldest_shard(self, &newest) + 1 != msg->version) {
        explore_world_break(self, "PREPARE(%" PRIu64 ") while a shard is behind", msg->version);
    }
    if (payload_prepare_decode(blob, &prepare) != HX_OK) {
        explore_world_break(self, "a PREPARE cannot be read");
        return;
    }
    for (uint32_t at = 0; at < prepare.members_count; at++) {
        const fate_t *const fate = explore_world_fate(self, prepare.members[at].attempt);
        const bool announced = fate && is_announced(self, fate);
        if (!announced || !fate->open) {
            explore_world_break(self, "a round takes what is %s",
                                announced ? "closed" : "not said");
        }
        if (prepare.members[at].attempt < msg->floor) {
            explore_world_break(self, "a member below the floor");
        }
    }
    for (uint64_t at = 1; at <= self->attempts; at++) {
        const uint64_t attempt = self->incarnation << LEAD_ATTEMPT_SHIFT | at;
        bool told = attempt < msg->floor;
        for (uint32_t each = 0; each < prepare.closed_count; each++) {
            told = told || prepare.closed[each] == attempt;
        }
        // Closed after this round was first asked: the next one says so.
        const bool over = self->fates[at].closed && !self->fates[at].decided;
        if (over && !told && msg->round != self->prepared_round) {
            explore_world_break(self, "shards are not told that attempt %" PRIu64 " is closed", at);
        }
        if (self->fates[at].open && told) {
            explore_world_break(self, "shards are told to forget attempt %" PRIu64, at);
        }
    }
    self->prepared_next = msg->round;
    prepare_destroy(&prepare);
}

static void check_outcome(explore_world_t *self, const wire_msg_t *msg)
{
    uint64_t newest;
    fate_t *const fate = explore_world_fate(self, msg->attempt);
    if (!fate || fate->decided != msg->version || oldest_shard(self, &newest) < msg->version) {
        explore_world_break(self, "OUTCOME of what is not in version %" PRIu64, msg->version);
    } else {
        fate->told = true;
    }
}

static void check_closed(explore_world_t *self, const wire_msg_t *msg)
{
    fate_t *const fate = explore_world_fate(self, msg->attempt);
    if (msg->count == WIRE_CLOSED_UNKNOWN) {
        // Who was given up is not told what became of it.
        const bool owed = fate && fate->decided > 0 && !fate->told;
        if (fate && (fate->open || (owed && !self->given_up[fate->pipeline]))) {
            explore_world_break(self, "an open attempt is said to be unknown");
        }
    } else if (!fate || fate->decided > 0) {
        explore_world_break(self, "what is committed is closed");
    } else {
        fate->open = false;
        fate->closed = true;
    }
}

static void check_done(explore_world_t *self, const wire_msg_t *msg)
{
    const lead_view_t view = lead_view(self->lead);
    const uint64_t all = self->conf.base.tokens / WORLD_CONTEXT;
    self->done = true;
    self->status = (int)msg->count;
    if (self->status == 0 && !self->stop_asked &&
        (bits(self->committed) + view.skipped_rows != all || open_rows(self, false) != 0)) {
        explore_world_break(self, "done with %" PRIu32 " of %" PRIu64 " rows",
                            bits(self->committed), all);
    }
    if (self->status != 0 && view.live > 0) {
        explore_world_break(self, "the run fails while a pipeline lives: %.150s", msg->text);
    }
}

void explore_world_check_send(explore_world_t *self, const step_send_t *send)
{
    uint64_t newest;
    switch (send->msg.kind) {
    case WIRE_GRANT:
        check_grant(self, send);
        break;
    case WIRE_PREPARE:
        check_prepare(self, &send->msg, send->blob);
        break;
    case WIRE_COMMIT:
        if (send->msg.version != self->journal_version ||
            oldest_shard(self, &newest) + 1 < send->msg.version || newest > send->msg.version) {
            explore_world_break(self, "COMMIT(%" PRIu64 ") that is not decided", send->msg.version);
        }
        break;
    case WIRE_OUTCOME:
        check_outcome(self, &send->msg);
        break;
    case WIRE_CLOSED:
        check_closed(self, &send->msg);
        break;
    case WIRE_DONE:
        check_done(self, &send->msg);
        break;
    default:
        break;
    }
}

static void check_member(explore_world_t *self, const round_member_t *member, uint64_t version)
{
    fate_t *const fate = explore_world_fate(self, member->attempt);
    const uint64_t rows = explore_world_rows(member->row_first, member->rows);
    if (!fate || !fate->open || fate->rows != rows || (self->committed & rows)) {
        explore_world_break(self, "version %" PRIu64 " takes rows from %" PRIu64 " wrongly",
                            version, member->row_first);
        return;
    }
    if (member->lag != version - 1 - fate->used) {
        explore_world_break(self, "lag %" PRIu32 " in version %" PRIu64 " of a step from %" PRIu64,
                            member->lag, version, fate->used);
    }
    self->committed |= rows;
    fate->open = false;
    fate->decided = version;
}

static void check_round(explore_world_t *self, const record_t *record)
{
    const ssaw_conf_t *const ssaw = &self->conf.base.ssaw;
    const optim_schedule_t schedule = {
        .lr = 0.01, .lr_final_ratio = 0.1, .warmup_tokens = 20u * WORLD_CONTEXT};
    const commit_laws_t laws = {
        .ssaw = ssaw, .schedule = &schedule, .clip = 1, .context = WORLD_CONTEXT};
    char text[160];
    if (!self->stop_asked && !commit_laws_hold(&laws, &self->last, record, text, sizeof text)) {
        explore_world_break(self, "version %" PRIu64 ": %s", record->version, text);
    }
    uint64_t rows = 0;
    for (uint32_t at = 0; at < record->members_count; at++) {
        check_member(self, &record->members[at], record->version);
        rows += record->members[at].rows;
    }
    close_silently(self);
    if (ssaw->cancel_late && open_rows(self, false) != 0) {
        explore_world_break(self, "a late lease goes on after the commit");
    }
    const bool shrunk = self->bad_seen;  // A vote may have taken a member out at the end.
    if (rows < ssaw->quorum_rows && !shrunk && !self->stop_asked && !record->final) {
        explore_world_break(self, "a round of %" PRIu64 " rows, below the quorum", rows);
    }
}

void explore_world_check_journal(explore_world_t *self, const step_job_t *job)
{
    record_t record = {0};
    if (payload_record_decode(job->blob, &record) != HX_OK || record.version >= COMMITS_MAX) {
        explore_world_break(self, "a record cannot be read");
        return;
    }
    if (record.version > self->decided) {  // Else the mark of a rollback.
        check_round(self, &record);
        self->decided = record.version;
        self->commits++;
        self->at_version[record.version] = self->committed;
        record_destroy(&self->last);
        record_copy(&record, &self->last);
    }
    record_destroy(&record);
}

void explore_world_note(explore_world_t *self, const letter_t *letter)
{
    const uint32_t worker = letter->from >= NODE_WORKER ? letter->from - NODE_WORKER : 0;
    const uint32_t pipeline = worker / self->conf.base.stages;
    if (letter->lost) {
        self->given_up[pipeline] = true;
        for (uint64_t at = 1; at <= self->attempts; at++) {
            fate_t *const fate = &self->fates[at];
            if (fate->pipeline == pipeline && fate->open && !is_announced(self, fate)) {
                fate->open = false;  // There may be nobody left to be told so.
                fate->closed = true;
            }
        }
        return;
    }
    fate_t *const fate = explore_world_fate(self, letter->msg.attempt);
    if (letter->msg.kind != WIRE_READY || !fate || !fate->open) {
        return;
    }
    const uint8_t before = fate->ready;
    fate->ready |= (uint8_t)(1u << worker % self->conf.base.stages);
    if (fate->ready != before) {
        fate->used = HX_MIN(fate->used, letter->msg.version);
        self->clock[pipeline] += is_announced(self, fate);
    }
}

// In modes without a barrier nobody who may have work is without it.
static void check_idle(explore_world_t *self, const lead_view_t *view)
{
    const ssaw_conf_t *const ssaw = &self->conf.base.ssaw;
    if (ssaw->staleness == 0 || ssaw->cancel_late || ssaw->gate != SSAW_GATE_NONE || !self->begun ||
        self->stop_asked || view->rows_left == 0 || ssaw->run_ahead == SSAW_RUN_AHEAD_ANY) {
        return;
    }
    for (uint32_t at = 0; at < self->conf.base.pipelines; at++) {
        if (!self->given_up[at] && view->live == self->conf.base.pipelines &&
            leases_of(self, at, false) <= ssaw->run_ahead) {
            explore_world_break(self, "pipeline %" PRIu32 " is left idle", at);
        }
    }
}

// When the run is over and nothing is under way.
static void check_rest(explore_world_t *self)
{
    for (uint32_t at = 0; at < self->conf.base.shards && self->status == 0; at++) {
        const ps_shard_info_t info = ps_shard_info(self->shards[at]);
        bool held = info.held_bytes > 0 && self->last.final;
        for (uint32_t each = 0; each < ATTEMPTS_MAX; each++) {
            held = held || (self->last.final && self->stores[at].held[each] != 0);
        }
        if (held) {
            explore_world_break(self, "shard %" PRIu32 " holds something for ever", at);
        }
        for (uint32_t block = 0; block < self->blocks.count; block++) {
            const uint32_t shard = self->plan.group_shard[self->blocks.blocks[block].group];
            if (self->stores[shard].rows[block] != self->committed) {
                explore_world_break(self, "block %" PRIu32 " lacks rows at the end", block);
            }
        }
    }
}

// What is applied is over: a part of it that comes late is not kept again.
static void check_kept(explore_world_t *self)
{
    for (uint32_t shard = 0; shard < self->conf.base.shards; shard++) {
        const uint64_t version = ps_shard_info(self->shards[shard]).version;
        for (uint64_t at = 1; at <= self->attempts; at++) {
            const uint64_t decided = self->fates[at].decided;
            if (decided > 0 && decided <= version && self->stores[shard].held[at] != 0) {
                explore_world_break(self, "attempt %" PRIu64 " is kept again", at);
            }
        }
    }
}

void explore_world_check(explore_world_t *self)
{
    const lead_view_t view = lead_view(self->lead);
    uint64_t newest;
    close_silently(self);
    self->prepared_round = self->prepared_next;
    if (!view.books_hold) {
        explore_world_break(self, "the books do not partition the rows");
    }
    const bool open_holds = view.done || view.open_rows == bits(open_rows(self, false));
    if (view.committed_rows != bits(self->committed) || !open_holds ||
        view.next_row !=
            view.committed_rows + view.skipped_rows + view.open_rows + view.returned_rows) {
        explore_world_break(self,
                            "the books have %" PRIu64 " rows committed and %" PRIu64
                            " open, the truth is %" PRIu32 " and %" PRIu32,
                            view.committed_rows, view.open_rows, bits(self->committed),
                            bits(open_rows(self, false)));
    }
    if (view.nonsense > 0) {
        explore_world_break(self, "the lead refuses a message that makes sense");
    }
    if (oldest_shard(self, &newest) + 1 < newest) {
        explore_world_break(self, "shards are two versions apart");
    }
    check_kept(self);
    if (!view.done) {
        check_idle(self, &view);
    } else if (self->letters_count == 0 &&
               self->jobs[0].count + self->jobs[1].count + self->jobs[2].count == 0) {
        check_rest(self);
    }
}
