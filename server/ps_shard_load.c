// ps_shard_load - how a shard's blocks get their first values: from the seed, or from the keeper.

#include "server/ps_shard_state.h"

#include <inttypes.h>
#include <stdlib.h>

#define WORD_EVERY HX_SEC(5)

static void finish_if_done(ps_shard_t *self, hx_time_t now, step_out_t *out)
{
    ps_loading_t *const loading = &self->loading;
    if (self->loaded || loading->done < loading->count) {
        return;
    }
    self->loaded = true;
    free(loading->states);
    loading->states = NULL;
    step_note(out, STEP_INFO, "shard %" PRIu32 ": %" PRIu32 " blocks %s, version %" PRIu64,
              self->index, self->own_count,
              loading->pull ? "loaded from the keeper" : "drawn from the seed", self->version);
    member_ready(&self->member, self->version, now, out);
    ps_shard_serve_parked(self, out);
}

// Asks the keeper for as many arrays as may be on the way.
static void ask_more(ps_shard_t *self, step_out_t *out)
{
    ps_loading_t *const loading = &self->loading;
    while (loading->asked < loading->count && loading->asked - loading->done < PS_LOADS_IN_FLIGHT) {
        const uint32_t at = loading->asked++;
        loading->states[at] = PS_LOAD_ASKED;
        const wire_msg_t msg = {
            .kind = WIRE_PULL,
            .block = self->own[at / loading->arrays],
            .part = at % loading->arrays,
            .version = self->version,
            .flags = PULL_EXACTLY,
        };
        step_send(out, member_keeper(&self->member), &msg, NULL);
    }
}

void ps_shard_load_begin(ps_shard_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    ps_loading_t *const loading = &self->loading;
    const bool resume = plan->resume != PLAN_RESUME_NONE;
    loading->pull = resume || plan->init_file;
    loading->arrays = resume ? self->conf.arrays : 1;
    loading->count = self->own_count * loading->arrays;
    loading->word_at = now + WORD_EVERY;
    self->version = resume ? plan->resume : 0;
    if (loading->pull) {
        loading->states = hx_new(HX_MAX(loading->count, 1u), sizeof *loading->states);
        ask_more(self, out);
    } else {
        for (uint32_t at = 0; at < self->own_count; at++) {
            const step_job_t job = {.kind = SHARD_JOB_INIT, .index = self->own[at]};
            step_run(out, &job);
        }
        loading->asked = loading->count;
    }
    finish_if_done(self, now, out);
}

// VALUE or NO_VALUE.
void ps_shard_load_value(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    ps_loading_t *const loading = &self->loading;
    const wire_msg_t *const msg = &in->msg;
    if (!self->seated || self->loaded || !loading->pull ||
        in->peer != member_keeper(&self->member)) {
        member_refuse(&self->member, in, out, "nothing was asked for");
        return;
    }
    if (msg->block >= self->blocks.count || self->own_of[msg->block] == PS_NONE ||
        msg->part >= loading->arrays) {
        member_refuse(&self->member, in, out, "no such block or array here");
        return;
    }
    uint8_t *const state = &loading->states[self->own_of[msg->block] * loading->arrays + msg->part];
    if (*state != PS_LOAD_ASKED || msg->version != self->version) {
        member_refuse(&self->member, in, out, "not what was asked for");
        return;
    }
    if (msg->kind == WIRE_NO_VALUE) {
        ps_shard_end(self, in->now, out,
                     "shard %" PRIu32 ": the keeper has no array %" PRIu32 " of block %" PRIu32
                     " at version %" PRIu64 ": %s",
                     self->index, msg->part, msg->block, msg->version, msg->text);
        return;
    }
    if (blob_size(in->blob) != ps_shard_block_size(self, msg->block)) {
        member_refuse(&self->member, in, out, "wrong size");
        return;
    }
    *state = PS_LOAD_ARRIVED;
    const step_job_t job = {
        .kind = SHARD_JOB_LOAD,
        .index = msg->block,
        .part = msg->part,
        .version = self->version,
        .blob = in->blob,
    };
    step_run(out, &job);
}

// An INIT or a LOAD ended.
void ps_shard_load_job(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    ps_loading_t *const loading = &self->loading;
    if (in->error != HX_OK) {
        ps_shard_fail(self, in, out, "its first value could not be set");
        return;
    }
    loading->done++;
    if (loading->pull) {
        loading->states[self->own_of[in->job.index] * loading->arrays + in->job.part] =
            PS_LOAD_DONE;
        ask_more(self, out);
    }
    finish_if_done(self, in->now, out);
}

// Says every 5 seconds what is awaited.
void ps_shard_load_time(ps_shard_t *self, hx_time_t now, step_out_t *out)
{
    ps_loading_t *const loading = &self->loading;
    if (!self->seated || self->loaded) {
        return;
    }
    if (now >= loading->word_at) {
        step_note(out, STEP_INFO, "shard %" PRIu32 ": %" PRIu32 " of %" PRIu32 " values %s",
                  self->index, loading->done, loading->count,
                  loading->pull ? "are here, waiting for the keeper" : "are drawn");
        loading->word_at = now + WORD_EVERY;
    }
    step_wake(out, loading->word_at);
}
