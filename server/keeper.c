// keeper - the role: opens the source, serves it, has checkpoints written.

#include "server/keeper.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/pulls.h"

#define WORD_EVERY HX_SEC(5)
#define NOT_WRITTEN UINT64_MAX

// What becomes of an array while it is saved.
typedef enum { ITEM_NONE, ITEM_ASKED, ITEM_ARRIVED, ITEM_WRITTEN } item_t;

typedef struct {
    bool active;
    bool finishing;
    uint64_t version;
    uint64_t serial;   // Jobs of an earlier save, even of the same version, do not count.
    uint8_t *items;    // item_t of (blocks, arrays)
    uint32_t count;    // Arrays in all,
    uint32_t asked;    // asked for so far, in order,
    uint32_t written;  // and written.
    hx_time_t begun_at;
    hx_time_t word_at;
} save_t;

struct keeper {
    keeper_conf_t conf;
    member_t member;
    blocks_t blocks;
    bool chosen;
    bool idle;
    bool open;
    uint32_t arrays_here;     // That the source has; 0: there is no source.
    uint64_t source_version;  // Of the source.
    pulls_t parked;
    save_t save;
    uint64_t written_version;  // Of the newest checkpoint written; NOT_WRITTEN: none.
    uint64_t saved;
    uint64_t failed;
    uint64_t served;
};

keeper_t *keeper_new(const keeper_conf_t *conf)
{
    HX_ASSERT(conf->member.role == PLAN_KEEPER);
    HX_ASSERT(conf->arrays >= 1 && conf->arrays <= 3);
    keeper_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->written_version = NOT_WRITTEN;
    member_init(&self->member, &conf->member);
    blocks_make(conf->member.model, conf->block_size, &self->blocks);
    self->save.count = self->blocks.count * conf->arrays;
    self->save.items = hx_new(self->save.count, sizeof *self->save.items);
    return self;
}

void keeper_destroy(keeper_t **self_p)
{
    keeper_t *const self = *self_p;
    if (!self) {
        return;
    }
    member_clear(&self->member);
    blocks_destroy(&self->blocks);
    free(self->save.items);
    pulls_clear(&self->parked);
    free(self);
    *self_p = NULL;
}

// The line of a job that failed.
static void failure(const step_in_t *in, char *text, size_t size)
{
    if (blob_data(in->blob)) {
        snprintf(text, size, "%.*s", (int)HX_MIN(blob_size(in->blob), size - 1),
                 (const char *)blob_data(in->blob));
    } else {
        snprintf(text, size, "%s", hx_strerror(in->error));
    }
}

static uint64_t block_bytes(const keeper_t *self, uint32_t block)
{
    return self->blocks.blocks[block].count * sizeof(float);
}

static const plan_node_t *shard_of(const keeper_t *self, uint32_t block)
{
    const plan_t *const plan = &self->member.plan;
    return plan_shard_node(plan, plan->group_shard[self->blocks.blocks[block].group]);
}

// --- the plan, and the source ---

static void on_plan(keeper_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    if (member_keeper(&self->member) != self->conf.member.id) {
        if (!self->chosen && !self->idle) {
            step_note(out, STEP_INFO, "the plan has another keeper: idle");
        }
        self->idle = true;
        return;
    }
    self->idle = false;
    step_dial(out, member_lead(&self->member), plan->nodes[plan->lead].control, "");
    if (self->chosen) {
        if (self->open) {
            member_ready(&self->member, self->source_version, now, out);
        }
        return;
    }
    self->chosen = true;
    const bool resume = plan->resume != PLAN_RESUME_NONE;
    self->source_version = resume ? plan->resume : 0;
    self->arrays_here = resume ? self->conf.arrays : plan->init_file ? 1 : 0;
    const step_job_t job = {
        .kind = KEEPER_JOB_OPEN,
        .version = self->source_version,
        .flags = resume            ? KEEPER_OPEN_RESUME
                 : plan->init_file ? KEEPER_OPEN_INIT
                                   : 0,
    };
    step_run(out, &job);
}

// Answers a PULL, or says that it has to wait until the source is open.
static bool answer_pull(void *self_, const pull_t *pull, step_out_t *out)
{
    const keeper_t *const self = self_;
    if (!self->open) {
        if (self->idle) {
            pull_no_value(pull, "this is not the keeper of the run", out);
        }
        return self->idle;
    }
    if (self->arrays_here == 0) {
        pull_no_value(pull, "there is no source", out);
    } else if (pull->block >= self->blocks.count || pull->part >= self->arrays_here) {
        pull_no_value(pull, "no such block or array", out);
    } else if (pull->version != self->source_version) {
        pull_no_value(pull, "the source is of another version", out);
    } else {
        const step_job_t job = pull_job(KEEPER_JOB_READ, pull);
        step_run(out, &job);
    }
    return true;
}

static void on_pull(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    const pull_t pull = pull_of(in);
    if (!answer_pull(self, &pull, out) &&
        !pulls_park(&self->parked, &pull, KEEPER_PARKED_MAX, out)) {
        member_refuse(&self->member, in, out, "too many wait already");
    }
}

// Without its folder or source the run cannot begin: the scheduler is told why, and says when to
// end.
static void give_up(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    wire_msg_t msg = {.kind = WIRE_STOP_ASK, .count = 1};
    failure(in, msg.text, sizeof msg.text);
    step_send(out, NODE_SCHEDULER, &msg, NULL);
    member_orphaned(&self->member, in->now, out, "%s", msg.text);
}

static void on_open(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->error != HX_OK) {
        give_up(self, in, out);
        return;
    }
    self->open = true;
    if (in->job.flags & KEEPER_OPEN_RESUME) {
        const wire_msg_t msg = {.kind = WIRE_RESUME, .version = self->source_version};
        step_send(out, member_lead(&self->member), &msg, in->blob);
        step_note(out, STEP_INFO, "resuming from the checkpoint of version %" PRIu64,
                  self->source_version);
    }
    member_ready(&self->member, self->source_version, in->now, out);
    pulls_serve(&self->parked, answer_pull, self, out);
}

static void on_read(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    const step_job_t *const job = &in->job;
    if (in->error != HX_OK) {
        char why[STEP_NOTE_MAX];
        failure(in, why, sizeof why);
        step_note(out, STEP_ERROR, "%s", why);
        const pull_t pull = pull_of_job(job);
        pull_no_value(&pull, why, out);
        return;
    }
    self->served++;
    const wire_msg_t msg = {
        .kind = WIRE_VALUE, .block = job->index, .part = job->part, .version = job->version};
    step_send(out, job->row_first, &msg, in->blob);
}

// --- saving ---

// `why` not; NULL: it is written.
static void answer_save(const keeper_t *self, uint64_t version, const char *why, step_out_t *out)
{
    wire_msg_t msg = {.kind = WIRE_SAVED, .version = version, .flags = why == NULL ? 1 : 0};
    snprintf(msg.text, sizeof msg.text, "%s", why ? why : "");
    step_send(out, member_lead(&self->member), &msg, NULL);
}

static void fail_save(keeper_t *self, const char *why, step_out_t *out)
{
    save_t *const save = &self->save;
    save->active = false;
    self->failed++;
    step_note(out, STEP_ERROR, "checkpoint of version %" PRIu64 " was not written: %s",
              save->version, why);
    const step_job_t job = {.kind = KEEPER_JOB_ABORT, .version = save->version};
    step_run(out, &job);
    answer_save(self, save->version, why, out);
}

// Asks the shards for as many arrays as may be on the way; when all are written, finishes.
static void go_on(keeper_t *self, step_out_t *out)
{
    save_t *const save = &self->save;
    while (save->asked < save->count && save->asked - save->written < KEEPER_PULLS_IN_FLIGHT) {
        const uint32_t at = save->asked++;
        save->items[at] = ITEM_ASKED;
        const wire_msg_t msg = {
            .kind = WIRE_PULL,
            .block = at / self->conf.arrays,
            .part = at % self->conf.arrays,
            .version = save->version,
            .flags = PULL_EXACTLY | PULL_AT_ONCE,
        };
        step_send(out, shard_of(self, msg.block)->id, &msg, NULL);
    }
    if (save->written == save->count && !save->finishing) {
        save->finishing = true;
        const step_job_t job = {
            .kind = KEEPER_JOB_FINISH, .version = save->version, .attempt = save->serial};
        step_run(out, &job);
    }
}

static void begin_save(keeper_t *self, uint64_t version, blob_t *record, hx_time_t now,
                       step_out_t *out)
{
    save_t *const save = &self->save;
    save->active = true;
    save->finishing = false;
    save->version = version;
    save->serial++;
    save->asked = 0;
    save->written = 0;
    save->begun_at = now;
    save->word_at = now + WORD_EVERY;
    for (uint32_t at = 0; at < save->count; at++) {
        save->items[at] = ITEM_NONE;
    }
    const step_job_t job = {
        .kind = KEEPER_JOB_BEGIN, .version = version, .attempt = save->serial, .blob = record};
    step_run(out, &job);
    go_on(self, out);
}

// Every SAVE of the lead gets an answer: it waits for one.
static void on_save(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    const save_t *const save = &self->save;
    const uint64_t version = in->msg.version;
    if (!self->chosen || in->peer != member_lead(&self->member)) {
        member_refuse(&self->member, in, out, "not from the lead of the plan");
        return;
    }
    member_heard(&self->member);
    if (save->active && save->version == version) {
        return;  // The end of it is the answer.
    }
    if (version == self->written_version) {
        answer_save(self, version, NULL, out);
    } else if (!self->open || save->active || !blob_data(in->blob)) {
        const char *const why =
            save->active ? "another checkpoint is being written" : "not ready, or malformed";
        member_refuse(&self->member, in, out, "%s", why);
        answer_save(self, version, why, out);
    } else {
        begin_save(self, version, in->blob, in->now, out);
    }
}

// VALUE or NO_VALUE.
static void on_value(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    save_t *const save = &self->save;
    const wire_msg_t *const msg = &in->msg;
    if (!save->active || msg->version != save->version) {
        step_note(out, STEP_DEBUG, "%s of version %" PRIu64 " comes too late",
                  wire_kind_name(msg->kind), msg->version);
        return;
    }
    if (msg->block >= self->blocks.count || msg->part >= self->conf.arrays ||
        in->peer != shard_of(self, msg->block)->id) {
        member_refuse(&self->member, in, out, "no such block or array there");
        return;
    }
    uint8_t *const item = &save->items[msg->block * self->conf.arrays + msg->part];
    if (*item != ITEM_ASKED) {
        member_refuse(&self->member, in, out, "not what was asked for");
        return;
    }
    if (msg->kind == WIRE_NO_VALUE) {
        char why[WIRE_TEXT_MAX];
        snprintf(why, sizeof why, "%.64s has not block %" PRIu32 ": %.256s",
                 shard_of(self, msg->block)->name, msg->block, msg->text);
        fail_save(self, why, out);
        return;
    }
    if (blob_size(in->blob) != block_bytes(self, msg->block)) {
        member_refuse(&self->member, in, out, "wrong size");
        return;
    }
    *item = ITEM_ARRIVED;
    const step_job_t job = {
        .kind = KEEPER_JOB_WRITE,
        .index = msg->block,
        .part = msg->part,
        .version = save->version,
        .attempt = save->serial,
        .blob = in->blob,
    };
    step_run(out, &job);
}

// A BEGIN, WRITE or FINISH ended.
static void on_save_job(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    save_t *const save = &self->save;
    if (!save->active || in->job.attempt != save->serial) {
        return;  // Given up meanwhile.
    }
    if (in->error != HX_OK) {
        char why[WIRE_TEXT_MAX];
        failure(in, why, sizeof why);
        fail_save(self, why, out);
        return;
    }
    if (in->job.kind == KEEPER_JOB_WRITE) {
        save->items[in->job.index * self->conf.arrays + in->job.part] = ITEM_WRITTEN;
        save->written++;
        go_on(self, out);
    } else if (in->job.kind == KEEPER_JOB_FINISH) {
        save->active = false;
        self->written_version = save->version;
        self->saved++;
        step_note(out, STEP_INFO, "checkpoint of version %" PRIu64 " written in %.1f s",
                  save->version, (double)(in->now - save->begun_at) / 1e9);
        answer_save(self, save->version, NULL, out);
    }
}

// Says every 5 seconds what a save waits for.
static void on_time(keeper_t *self, hx_time_t now, step_out_t *out)
{
    save_t *const save = &self->save;
    if (!save->active) {
        return;
    }
    if (now >= save->word_at) {
        uint32_t at = 0;
        while (at < save->asked && save->items[at] != ITEM_ASKED) {
            at++;
        }
        const bool waits = at < save->asked;
        step_note(out, STEP_INFO,
                  "checkpoint of version %" PRIu64 ": %" PRIu32 " of %" PRIu32
                  " arrays written, waiting for %s",
                  save->version, save->written, save->count,
                  waits ? shard_of(self, at / self->conf.arrays)->name : "the disk");
        save->word_at = now + WORD_EVERY;
    }
    step_wake(out, save->word_at);
}

// --- events ---

static void on_message(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    switch (in->msg.kind) {
    case WIRE_PULL:
        on_pull(self, in, out);
        break;
    case WIRE_VALUE:
    case WIRE_NO_VALUE:
        on_value(self, in, out);
        break;
    case WIRE_SAVE:
        on_save(self, in, out);
        break;
    default:
        member_refuse(&self->member, in, out, "not for a keeper");
        break;
    }
}

static void on_job(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    switch ((keeper_job_t)in->job.kind) {
    case KEEPER_JOB_OPEN:
        on_open(self, in, out);
        break;
    case KEEPER_JOB_READ:
        on_read(self, in, out);
        break;
    case KEEPER_JOB_BEGIN:
    case KEEPER_JOB_WRITE:
    case KEEPER_JOB_FINISH:
        on_save_job(self, in, out);
        break;
    case KEEPER_JOB_ABORT:
        break;
    }
}

static void on_lost(keeper_t *self, const step_in_t *in, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    pulls_forget(&self->parked, in->peer);
    if (!self->chosen) {
        return;
    }
    if (in->peer == member_lead(&self->member)) {
        member_orphaned(&self->member, in->now, out,
                        "the lead %s is gone: nothing was heard of it for too long",
                        plan->nodes[plan->lead].name);
        return;
    }
    const uint32_t node = plan_node_of(plan, in->peer);
    if (self->save.active && node != UINT32_MAX && plan->nodes[node].role == PLAN_SHARD) {
        char why[WIRE_TEXT_MAX];
        snprintf(why, sizeof why, "the shard %s is gone", plan->nodes[node].name);
        fail_save(self, why, out);
    }
}

void keeper_step(void *self_, const step_in_t *in, step_out_t *out)
{
    keeper_t *const self = self_;
    const member_event_t event = member_step(&self->member, in, out);
    if (event == MEMBER_ENDING) {
        if (self->save.active) {
            step_note(out, STEP_WARN, "the checkpoint of version %" PRIu64 " stays unwritten",
                      self->save.version);
        }
        if (!out->stop) {
            member_stopped(&self->member, out, NULL);
        }
        return;
    }
    if (event == MEMBER_PLAN) {
        on_plan(self, in->now, out);
        pulls_serve(&self->parked, answer_pull, self, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_MESSAGE) {
        on_message(self, in, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_JOB) {
        on_job(self, in, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_LOST) {
        on_lost(self, in, out);
    }
    on_time(self, in->now, out);
}

keeper_info_t keeper_info(const keeper_t *self)
{
    return (keeper_info_t){
        .chosen = self->chosen,
        .open = self->open,
        .saving = self->save.active,
        .version = self->save.version,
        .in_flight = self->save.active ? self->save.asked - self->save.written : 0,
        .saved = self->saved,
        .failed = self->failed,
        .served = self->served,
        .refused = self->member.refused,
    };
}
