// lead_round - the atomic commit: everything announced at one instant goes into the next version,
// on all shards or on none.
//
//     NONE --policy says so--> VOTING --all yes--> JOURNAL --synced--> APPLYING --all--> NONE
//                                 \--any no--> NONE (what was named is closed, the rest stays)
//
// The round is decided when its record is in the journal, and only then.

#include "server/lead_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_GAIN 0.25

// ---- PREPARE

static int by_row(const void *a, const void *b)
{
    const uint64_t left = ((const round_member_t *)a)->row_first;
    const uint64_t right = ((const round_member_t *)b)->row_first;
    return left < right ? -1 : left > right;
}

static round_member_t member_of(const lead_t *self, const lease_t *lease)
{
    return (round_member_t){
        .attempt = lease->attempt,
        .pipeline = lease->pipeline,
        .row_first = lease->rows.first,
        .rows = (uint32_t)(lease->rows.end - lease->rows.first),
        .tokens = lease->tokens,
        .loss = lease->loss,
        .lag = (uint32_t)HX_MIN(self->version - lease->oldest, UINT32_MAX),
        .seconds = (double)(lease->announced_at - lease->granted_at) / 1e9,
    };
}

// Takes everything that is announced, in the order of rows, so that the order of arrival changes no
// bit.
static void take_members(lead_t *self, prepare_t *prepare)
{
    prepare->members = hx_new(lead_count(self, LEASE_ANNOUNCED), sizeof *prepare->members);
    for (uint32_t at = 0; at < self->leases_count; at++) {
        lease_t *const lease = &self->leases[at];
        if (!lease->eval && lease->state == LEASE_ANNOUNCED) {
            prepare->members[prepare->members_count++] = member_of(self, lease);
            lease->state = LEASE_IN_ROUND;
        }
    }
    qsort(prepare->members, prepare->members_count, sizeof *prepare->members, by_row);
}

// Its time of a row over the mean of all live pipelines; 1 where nothing was measured.
static double frequency_of(const lead_t *self, uint32_t pipeline)
{
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t at = 0; self->conf.ssaw.frequency && at < self->plan.pipelines_count; at++) {
        if (self->pipelines[at].live && self->pipelines[at].row_mean > 0) {
            sum += self->pipelines[at].row_mean;
            count++;
        }
    }
    const double own = self->pipelines[pipeline].row_mean;
    return sum > 0 && own > 0 ? own * count / sum : 1;
}

// Weights and factors of the members; returns kappa.
static double weigh(lead_t *self, prepare_t *prepare)
{
    const double *const phi = self->round.phi;
    double weights[LEAD_LEASES_MAX];
    for (uint32_t at = 0; at < prepare->members_count; at++) {
        const round_member_t *const member = &prepare->members[at];
        self->view_contributions[at] = (ssaw_contribution_t){
            .pipeline = member->pipeline,
            .rows = member->rows,
            .tokens = member->tokens,
            .oldest = self->version - member->lag,
            .agreement = phi ? phi[at] : 1,
            .frequency = frequency_of(self, member->pipeline),
        };
    }
    const ssaw_view_t view = {
        .version = self->version,
        .contributions = self->view_contributions,
        .contributions_count = prepare->members_count,
    };
    const double kappa = ssaw_weigh(&self->conf.ssaw, &view, weights);
    for (uint32_t at = 0; at < prepare->members_count; at++) {
        round_member_t *const member = &prepare->members[at];
        const double nominal = (double)member->rows * self->context;
        member->weight = weights[at];
        member->factor = member->tokens > 0 ? weights[at] * nominal / (double)member->tokens : 0;
    }
    return kappa;
}

static void prune_closed(lead_t *self, uint64_t floor)
{
    uint32_t below = 0;
    while (below < self->closed_count && self->closed[below] < floor) {
        below++;
    }
    self->closed_count -= below;
    memmove(self->closed, self->closed + below, self->closed_count * sizeof *self->closed);
}

static void send_prepare(const lead_t *self, bool missing_only, step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = WIRE_PREPARE,
        .incarnation = self->incarnation,
        .round = self->round.number,
        .version = self->version + 1,
        .floor = lead_floor(self, false),
    };
    lead_to_shards(self, &msg, self->round.payload, missing_only, out);
}

static void await_shards(lead_t *self, hx_time_t now)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        self->shards[at].answered = false;
    }
    self->round.resend_at = now + self->member.conf.request_timeout;
    self->round.word_at = now + LEAD_WORD_EVERY;
}

void lead_round_weigh(lead_t *self)
{
    lead_round_t *const round = &self->round;
    round->kappa = weigh(self, &round->prepare);
    blob_release(&round->payload);
    round->payload = payload_prepare_encode(&round->prepare);
}

void lead_round_ask(lead_t *self, hx_time_t now, step_out_t *out)
{
    self->round.number++;
    await_shards(self, now);
    send_prepare(self, false, out);
}

static void close_round(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_round_t *const round = &self->round;
    take_members(self, &round->prepare);
    round->prepare.agreement = lead_agree_wanted(self);
    prune_closed(self, lead_floor(self, false));
    round->prepare.closed_count = self->closed_count;
    round->prepare.closed = hx_new(HX_MAX(self->closed_count, 1u), sizeof *round->prepare.closed);
    memcpy(round->prepare.closed, self->closed, self->closed_count * sizeof *self->closed);
    round->squares = hx_new(self->blocks.count, sizeof *round->squares);
    round->state = ROUND_VOTING;
    round->bad_votes = 0;
    round->closed_at = now;
    lead_round_weigh(self);
    step_note(out, STEP_DEBUG, "round %" PRIu64 " closes with %" PRIu32 " contributions",
              self->version + 1, round->prepare.members_count);
    lead_round_ask(self, now, out);
}

bool lead_round_try(lead_t *self, hx_time_t now, step_out_t *out)
{
    if (self->phase != LEAD_TRAIN) {
        return false;
    }
    const ssaw_view_t view = lead_policy_view(self);
    hx_time_t wake_at = HX_TIME_NEVER;
    const ssaw_verdict_t verdict = ssaw_round(&self->conf.ssaw, &view, now, &wake_at);
    step_wake(out, wake_at);
    lead_auto_wait(self, verdict, now);
    if (verdict == SSAW_COMMIT) {
        close_round(self, now, out);
        return true;
    }
    const bool news = verdict != self->verdict_noted || self->orders != self->orders_noted;
    if (news && view.contributions_count > 0 && verdict != SSAW_WAIT_PREPARE) {
        step_note(out, STEP_DEBUG, "round %" PRIu64 " waits for %s", self->version + 1,
                  ssaw_verdict_name(verdict));
    }
    self->verdict_noted = verdict;
    self->orders_noted = self->orders;
    return false;
}

void lead_round_clear(lead_t *self)
{
    lead_round_t *const round = &self->round;
    prepare_destroy(&round->prepare);
    record_destroy(&round->record);
    blob_release(&round->payload);
    free(round->squares);
    free(round->agreed);
    free(round->phi);
    *round = (lead_round_t){.number = round->number};
}

// ---- votes

// The shard that this answer to the round under way comes from; NULL if it answers something else.
static lead_shard_t *answering(lead_t *self, const step_in_t *in, step_out_t *out)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (self->shards[at].node == in->peer) {
            const bool current =
                in->msg.incarnation == self->incarnation && in->msg.version == self->version + 1;
            return current ? &self->shards[at] : NULL;
        }
    }
    member_refuse(&self->member, in, out, "its sender is no shard");
    return NULL;
}

static void bad_vote(lead_t *self, const step_in_t *in, step_out_t *out, const char *why)
{
    member_refuse(&self->member, in, out, "%s", why);
    if (++self->round.bad_votes >= LEAD_BAD_VOTES_MAX) {
        lead_fail(self, in->now, out,
                  "version %" PRIu64 " cannot be decided: votes make no sense: %s",
                  self->version + 1, why);
    }
}

// Writes the shard's squares to where its blocks are. False if they make no sense.
static bool take_squares(lead_t *self, uint32_t shard, const double *values, uint32_t count)
{
    if (count != self->shards[shard].blocks_count + lead_agree_count(self)) {
        return false;
    }
    uint32_t next = 0;
    for (uint32_t at = 0; at < self->blocks.count; at++) {
        if (self->plan.group_shard[self->blocks.blocks[at].group] != shard) {
            continue;
        }
        if (!isfinite(values[next]) || values[next] < 0) {
            return false;
        }
        self->round.squares[at] = values[next++];
    }
    return lead_agree_take(self, shard, values + next);
}

static lease_t *in_round(lead_t *self, uint64_t attempt)
{
    lease_t *const lease = lead_lease_find(self, attempt);
    return lease && lease->state == LEASE_IN_ROUND ? lease : NULL;
}

// What a shard named is closed, the rest is announced as before. The list does not tell what is
// missing from what is not finite; either way the same range must not come round for ever.
static void on_no(lead_t *self, const step_in_t *in, step_out_t *out)
{
    uint64_t *attempts = NULL;
    uint32_t count = 0;
    uint32_t known = 0;
    if (payload_attempts_decode(in->blob, &attempts, &count) != HX_OK) {
        bad_vote(self, in, out, "a no without attempts");
        return;
    }
    for (uint32_t at = 0; at < count; at++) {
        lease_t *const lease = in_round(self, attempts[at]);
        if (lease) {
            step_note(out, STEP_WARN,
                      "pipeline %" PRIu32 ", rows %" PRIu64 " to %" PRIu64
                      ": gradients refused as not finite or not complete",
                      lease->pipeline, lease->rows.first, lease->rows.end);
            lead_close(self, lease, WIRE_CLOSED_NONFINITE, in->now, out);
            known++;
        }
    }
    free(attempts);
    if (known == 0) {
        bad_vote(self, in, out, "a no that names nothing of the round");
        return;
    }
    for (uint32_t at = 0; at < self->leases_count; at++) {
        if (self->leases[at].state == LEASE_IN_ROUND) {
            self->leases[at].state = LEASE_ANNOUNCED;
        }
    }
    lead_round_clear(self);
}

// ---- the decision

// Is anything of this training left that a later round could take?
static bool nothing_follows(const lead_t *self)
{
    return lead_rows_left(self) == 0 && lead_count(self, LEASE_OPEN) == 0 &&
           lead_count(self, LEASE_ANNOUNCED) == 0;
}

static double norm_of(const lead_t *self)
{
    double sum = 0;
    for (uint32_t at = 0; at < self->blocks.count; at++) {
        sum += self->round.squares[at];
    }
    return sqrt(sum);
}

// Of the tokens; 0 without any.
static double mean_lag(const round_member_t *members, uint32_t count)
{
    double tokens = 0, sum = 0;
    for (uint32_t at = 0; at < count; at++) {
        tokens += (double)members[at].tokens;
        sum += (double)members[at].tokens * members[at].lag;
    }
    return tokens > 0 ? sum / tokens : 0;
}

static void fill_record(lead_t *self, record_t *record)
{
    const uint64_t version = self->version + 1;
    const lead_conf_t *const conf = &self->conf;
    record->history = self->history;
    record->version = version;
    record->incarnation = self->incarnation;
    record->epoch = self->plan.epoch;
    record->tokens = self->tokens;
    for (uint32_t at = 0; at < record->members_count; at++) {
        record->tokens += record->members[at].tokens;
    }
    record->norm = norm_of(self);
    record->scale = conf->clip > 0 && record->norm > conf->clip ? conf->clip / record->norm : 1;
    record->kappa = self->round.kappa;
    record->rate =
        optim_lr(&conf->schedule, record->tokens) * ssaw_step_scale(&conf->ssaw, record->kappa);
    record->step = self->step + 1;
    record->floor = lead_floor(self, true);
    record->step_mean = self->step_mean;
    record->lookahead = ssaw_lookahead(&conf->ssaw, self->lookahead,
                                       mean_lag(record->members, record->members_count));
    record->dropped = lead_dropped(self);
    cursor_record(&self->cursor, record);
    lead_live_record(self, record);
    record->final = nothing_follows(self);
    if (conf->checkpoint_every > 0 && version % conf->checkpoint_every == 0) {
        self->save_due = true;
    }
    if (conf->valid_every > 0 && version % conf->valid_every == 0 && conf->valid_rows > 0) {
        self->eval_due = true;
    }
    record->snapshot = !self->pin.active && (record->final || self->save_due || self->eval_due);
}

static void decide(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_round_t *const round = &self->round;
    record_t *const record = &round->record;
    record->members = round->prepare.members;
    record->members_count = round->prepare.members_count;
    round->prepare.members = NULL;
    round->prepare.members_count = 0;
    for (uint32_t at = 0; at < record->members_count; at++) {
        const round_member_t *const member = &record->members[at];
        cursor_commit(&self->cursor,
                      (row_range_t){member->row_first, member->row_first + member->rows});
    }
    if (self->conf.ssaw.cancel_late) {
        lead_close_late(self, now, out);
    }
    fill_record(self, record);
    blob_release(&round->payload);
    round->payload = payload_record_encode(record);
    round->state = ROUND_JOURNAL;
    const step_job_t job = {
        .kind = LEAD_JOB_JOURNAL, .version = record->version, .blob = round->payload};
    step_run(out, &job);
}

static bool all_answered(const lead_t *self)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (!self->shards[at].answered) {
            return false;
        }
    }
    return true;
}

static void on_yes(lead_t *self, lead_shard_t *shard, const step_in_t *in, step_out_t *out)
{
    double *values = NULL;
    uint32_t count = 0;
    if (shard->answered) {
        return;
    }
    if (payload_doubles_decode(in->blob, &values, &count) != HX_OK) {
        bad_vote(self, in, out, "a yes without sums of squares");
        return;
    }
    const bool fine = take_squares(self, (uint32_t)(shard - self->shards), values, count);
    free(values);
    if (!fine) {
        bad_vote(self, in, out, "sums of squares that are not those of its blocks");
        return;
    }
    shard->answered = true;
    if (all_answered(self) && !lead_agree_again(self, in->now, out)) {
        decide(self, in->now, out);
    }
}

void lead_on_vote(lead_t *self, const step_in_t *in, step_out_t *out)
{
    lead_shard_t *const shard = answering(self, in, out);
    if (!shard || self->round.state != ROUND_VOTING || in->msg.round != self->round.number) {
        return;
    }
    if (in->msg.flags & 1) {
        on_yes(self, shard, in, out);
    } else {
        on_no(self, in, out);
    }
}

// ---- COMMIT

static void send_commit(const lead_t *self, bool missing_only, step_out_t *out)
{
    const wire_msg_t msg = {.kind = WIRE_COMMIT,
                            .incarnation = self->incarnation,
                            .version = self->round.record.version};
    lead_to_shards(self, &msg, self->round.payload, missing_only, out);
}

void lead_on_journal(lead_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->error != HX_OK) {
        lead_job_failed(self, in, out);
        return;
    }
    if (in->job.flags & 1) {
        lead_live_journalled(self, out);
        return;
    }
    if (self->round.state != ROUND_JOURNAL || in->job.version != self->round.record.version) {
        return;  // The mark of a rollback.
    }
    self->round.state = ROUND_APPLYING;
    await_shards(self, in->now);
    send_commit(self, false, out);
}

static void count_commit(lead_t *self, hx_time_t now)
{
    const record_t *const record = &self->round.record;
    lead_totals_t *const totals = &self->totals;
    lead_sample_t sample = {.at = now};
    for (uint32_t at = 0; at < record->members_count; at++) {
        const round_member_t *const member = &record->members[at];
        sample.tokens += member->tokens;
        sample.loss += member->loss;
        totals->lag_sum += member->lag;
        totals->lag_max = HX_MAX(totals->lag_max, member->lag);
        totals->lags[HX_MIN(member->lag, LEAD_LAGS_COUNT - 1)]++;
        self->pipelines[member->pipeline].lag = member->lag;
    }
    totals->commits++;
    totals->clipped += record->scale < 1;
    totals->contributions += record->members_count;
    totals->tokens += sample.tokens;
    totals->window[totals->window_at] = sample;
    totals->window_at = (totals->window_at + 1) % LEAD_WINDOW;
    totals->window_count = HX_MIN(totals->window_count + 1, LEAD_WINDOW);
}

static void check_train_target(lead_t *self, step_out_t *out)
{
    const bool validates = self->conf.valid_rows > 0 && self->conf.valid_every > 0;
    if (self->conf.target_loss > 0 && !validates && self->totals.window_count == LEAD_WINDOW &&
        lead_train_loss(self) <= self->conf.target_loss) {
        lead_end(self, 0, out, "the training loss reached train.target_loss, %g",
                 self->conf.target_loss);
    }
}

// How long the members waited, for who may run ahead.
static void note_waits(lead_t *self, hx_time_t now)
{
    for (uint32_t at = 0; at < self->leases_count; at++) {
        const lease_t *const lease = &self->leases[at];
        if (lease->state == LEASE_IN_ROUND && self->step_mean > 0) {
            const double seconds = (double)(now - lease->announced_at) / 1e9;
            double *const wait = &self->pipelines[lease->pipeline].wait;
            *wait += WAIT_GAIN * (seconds / self->step_mean - *wait);
        }
    }
}

// Every shard has applied the version: it is the newest now.
static void finish_round(lead_t *self, hx_time_t now, step_out_t *out)
{
    const record_t *const record = &self->round.record;
    count_commit(self, now);
    note_waits(self, now);
    self->version = record->version;
    self->lookahead = record->lookahead;
    self->tokens = record->tokens;
    self->step = record->step;
    self->nonfinite_run = 0;
    lead_auto_commit(self, now, out);
    step_note(out, STEP_DEBUG, "commit %" PRIu64 ": %" PRIu32 " contributions, step scale %.2f",
              record->version, record->members_count,
              ssaw_step_scale(&self->conf.ssaw, record->kappa));
    self->committed_at = now;
    lead_report_commit(self, now, out);
    for (uint32_t at = 0; at < record->members_count; at++) {
        lease_t *const lease = in_round(self, record->members[at].attempt);
        HX_ASSERT(lease);
        lead_send_outcome(self, lease, self->version, out);
        lead_lease_remove(self, lease);
    }
    member_heard(&self->member);
    blob_release(&self->record);
    self->record = blob_retain(self->round.payload);
    const bool snapshot = record->snapshot;
    const bool final = record->final;
    lead_round_clear(self);
    if (final) {
        self->final_pinned = snapshot;
    } else if (snapshot) {
        lead_pin_start(self, true, self->save_due, self->eval_due, out);
        self->save_due = self->eval_due = false;
    }
    check_train_target(self, out);
}

void lead_on_applied(lead_t *self, const step_in_t *in, step_out_t *out)
{
    lead_shard_t *const shard = answering(self, in, out);
    if (!shard || self->round.state != ROUND_APPLYING) {
        return;
    }
    shard->answered = true;
    if (all_answered(self)) {
        finish_round(self, in->now, out);
    }
}

// ---- waiting

static void say_missing(const lead_t *self, step_out_t *out)
{
    for (uint32_t at = 0; at < self->plan.shards_count; at++) {
        if (!self->shards[at].answered) {
            step_note(out, STEP_INFO, "version %" PRIu64 " waits for %s of %s", self->version + 1,
                      self->round.state == ROUND_VOTING ? "the vote" : "the commit",
                      lead_shard_name(self, at));
            return;
        }
    }
}

void lead_round_resend(lead_t *self, hx_time_t now, step_out_t *out)
{
    lead_round_t *const round = &self->round;
    if (round->state != ROUND_VOTING && round->state != ROUND_APPLYING) {
        return;
    }
    if (now >= round->word_at) {
        say_missing(self, out);
        round->word_at = now + LEAD_WORD_EVERY;
    }
    if (now >= round->resend_at) {
        if (round->state == ROUND_VOTING) {
            send_prepare(self, true, out);
        } else {
            send_commit(self, true, out);
        }
        round->resend_at = now + self->member.conf.request_timeout;
    }
    step_wake(out, HX_MIN(round->resend_at, round->word_at));
}
