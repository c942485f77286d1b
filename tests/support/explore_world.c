// explore_world - life: see explore_world.h and explore_world_state.h.

#include "tests/support/explore_world_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- nodes

uint32_t explore_world_workers(const explore_world_t *self)
{
    return self->conf.base.pipelines * self->conf.base.stages;
}

node_id_t explore_world_id(const explore_world_t *self, uint32_t node)
{
    (void)self;
    if (node == NODE_LEAD) {
        return WORLD_LEAD;
    }
    if (node == NODE_KEEPER) {
        return WORLD_KEEPER;
    }
    return node < NODE_KEEPER ? WORLD_SHARD + node - NODE_SHARD : WORLD_WORKER + node - NODE_WORKER;
}

uint32_t explore_world_node_of(const explore_world_t *self, node_id_t id)
{
    for (uint32_t node = 0; node < NODE_WORKER + explore_world_workers(self); node++) {
        if (explore_world_id(self, node) == id) {
            return node;
        }
    }
    return UINT32_MAX;
}

// ---- letters

uint32_t explore_world_letter(const explore_world_t *self, uint32_t from, uint32_t to)
{
    for (uint32_t at = 0; at < self->letters_count; at++) {
        if (self->letters[at]->from == from && self->letters[at]->to == to) {
            return at;
        }
    }
    return UINT32_MAX;
}

static void post(explore_world_t *self, const letter_t *letter)
{
    HX_ASSERT(self->letters_count < LETTERS_MAX);
    letter_t *const posted = hx_new(1, sizeof *posted);
    *posted = *letter;
    blob_retain(posted->blob);
    self->letters[self->letters_count++] = posted;
}

void explore_world_send(explore_world_t *self, uint32_t from, uint32_t to, const wire_msg_t *msg,
                        blob_t *blob)
{
    letter_t letter = {.from = (uint8_t)from, .to = (uint8_t)to, .msg = *msg, .blob = blob};
    letter.hash = explore_world_letter_hash(msg, blob);
    post(self, &letter);
}

static letter_t *take(explore_world_t *self, uint32_t at)
{
    letter_t *const letter = self->letters[at];
    self->letters_count--;
    memmove(&self->letters[at], &self->letters[at + 1],
            (self->letters_count - at) * sizeof *self->letters);
    return letter;
}

static void letter_free(letter_t *letter)
{
    blob_release(&letter->blob);
    free(letter);
}

static void drop_letters(explore_world_t *self, uint32_t to)
{
    for (uint32_t at = 0; at < self->letters_count;) {
        if (to == UINT32_MAX || self->letters[at]->to == to) {
            letter_free(take(self, at));
        } else {
            at++;
        }
    }
}

// ---- roles

static void act(explore_world_t *self, uint32_t node)
{
    step_out_t *const out = &self->out;
    for (uint32_t at = 0; at < out->sends_count; at++) {
        const step_send_t *const send = &out->sends[at];
        if (node == NODE_LEAD) {
            explore_world_check_send(self, send);
        } else if (send->to == NODE_SCHEDULER && send->msg.kind == WIRE_STOP_ASK) {
            explore_world_break(self, "a shard gives up: %.200s", send->msg.text);
        }
        const uint32_t to = explore_world_node_of(self, send->to);
        if (to != UINT32_MAX && !(to >= NODE_WORKER && self->workers[to - NODE_WORKER].dead)) {
            explore_world_send(self, node, to, &send->msg, send->blob);
        }
    }
    for (uint32_t at = 0; at < out->jobs_count; at++) {
        jobs_t *const jobs = &self->jobs[node];
        HX_ASSERT(jobs->count < JOBS_MAX);
        jobs->list[jobs->count] = out->jobs[at];
        blob_retain(jobs->list[jobs->count++].blob);
        if (node == NODE_LEAD && out->jobs[at].kind == LEAD_JOB_JOURNAL) {
            explore_world_check_journal(self, &out->jobs[at]);
        }
    }
    if (out->stop) {
        explore_world_break(self, "node %" PRIu32 " stops: %.200s", node, out->reason);
    }
}

void explore_world_step(explore_world_t *self, uint32_t node, step_in_t *in)
{
    step_out_clear(&self->out);
    in->now = self->now;
    if (node == NODE_LEAD) {
        lead_step(self->lead, in, &self->out);
    } else {
        ps_shard_step(self->shards[node - NODE_SHARD], in, &self->out);
    }
    act(self, node);
}

// Hands a letter over and throws it away.
static void arrive(explore_world_t *self, letter_t *letter)
{
    step_in_t in = {.kind = letter->lost ? STEP_LOST : STEP_MESSAGE,
                    .peer = explore_world_id(self, letter->from),
                    .msg = letter->msg,
                    .blob = letter->blob};
    if (letter->to == NODE_LEAD) {
        explore_world_note(self, letter);
        explore_world_step(self, NODE_LEAD, &in);
    } else if (letter->to < NODE_KEEPER) {
        explore_world_step(self, letter->to, &in);
    } else if (letter->to == NODE_KEEPER) {
        explore_world_keeper(self, &letter->msg, letter->blob, letter->from);
    } else {
        explore_world_hear(self, letter->to - NODE_WORKER, letter);
    }
    letter_free(letter);
}

// ---- start

static void new_roles(explore_world_t *self)
{
    const lead_world_conf_t *const base = &self->conf.base;
    const member_conf_t member = {.join_timeout = HX_SEC(30), .model = self->model};
    lead_conf_t lead = {
        .member = member,
        .block_size = BLOCK_BYTES,
        .ssaw = base->ssaw,
        .schedule = {.lr = 0.01, .lr_final_ratio = 0.1, .warmup_tokens = 20u * WORLD_CONTEXT},
        .clip = 1,
        .tokens = base->tokens,
        .checkpoint_every = base->checkpoint_every,
        .lease_factor = 1e-3,  // So that deadlines do not depend on what was measured.
    };
    lead.member.id = WORLD_LEAD;
    lead.member.role = PLAN_LEAD;
    self->lead = lead_new(&lead);
    for (uint32_t at = 0; at < base->shards; at++) {
        ps_shard_conf_t shard = {.member = member, .block_size = BLOCK_BYTES, .arrays = 1};
        shard.member.id = WORLD_SHARD + at;
        shard.member.role = PLAN_SHARD;
        self->shards[at] = ps_shard_new(&shard);
    }
}

static void join(explore_world_t *self, uint32_t node)
{
    explore_world_step(self, node, &(step_in_t){.kind = STEP_START});
    step_in_t in = {.kind = STEP_MESSAGE, .peer = NODE_SCHEDULER, .msg = {.kind = WIRE_WELCOME}};
    explore_world_step(self, node, &in);
    in.msg = (wire_msg_t){.kind = WIRE_PLAN, .epoch = self->plan.epoch};
    in.blob = self->plan_blob;
    explore_world_step(self, node, &in);
}

// All join, and do what is first to be done, in one order, until the first lease is granted.
static void begin(explore_world_t *self)
{
    self->begun = self->done = false;
    new_roles(self);
    const bool resumes = self->plan.resume != PLAN_RESUME_NONE;
    wire_msg_t msg = {.kind = WIRE_RESUME, .version = self->saved_version};
    for (uint32_t at = 0; at < self->conf.base.shards; at++) {
        join(self, NODE_SHARD + at);
    }
    join(self, NODE_LEAD);
    if (resumes) {
        explore_world_send(self, NODE_KEEPER, NODE_LEAD, &msg, self->saved);
    }
    msg = (wire_msg_t){.kind = WIRE_PLAN_ACK,
                       .epoch = self->plan.epoch,
                       .version = resumes ? self->saved_version : 0};
    explore_world_send(self, NODE_KEEPER, NODE_LEAD, &msg, NULL);
    for (uint32_t at = 0; at < explore_world_workers(self); at++) {
        explore_world_send(self, NODE_WORKER + at, NODE_LEAD, &msg, NULL);
    }
    while (!self->begun && !self->done && !self->broken[0]) {
        bool moved = false;
        if (self->letters_count > 0) {
            arrive(self, take(self, 0));
            moved = true;
        }
        for (uint32_t node = 0; node < NODE_KEEPER && !moved; node++) {
            if (self->jobs[node].count > 0) {
                explore_world_job(self, node, false);
                moved = true;
            }
        }
        if (!moved) {
            explore_world_break(self, "the start waits for ever");
        }
    }
}

static void end_roles(explore_world_t *self)
{
    lead_destroy(&self->lead);
    for (uint32_t at = 0; at < SHARDS_MAX; at++) {
        ps_shard_destroy(&self->shards[at]);
    }
    drop_letters(self, UINT32_MAX);
    for (uint32_t node = 0; node < HX_COUNT(self->jobs); node++) {
        for (uint32_t at = 0; at < self->jobs[node].count; at++) {
            blob_release(&self->jobs[node].list[at].blob);
        }
        self->jobs[node].count = 0;
    }
}

explore_world_t *explore_world_new(const explore_conf_t *conf)
{
    HX_ASSERT(conf->base.shards <= SHARDS_MAX);
    explore_world_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    HX_ASSERT(explore_world_workers(self) <= WORKERS_MAX);
    memcpy(self->budget, conf->budget, sizeof self->budget);
    self->misfortunes = conf->misfortunes > 0 ? conf->misfortunes : UINT8_MAX;
    self->now = HX_SEC(1);
    self->out.wake_at = HX_TIME_NEVER;
    model_conf_t model = model_conf_default();
    model.layers = 1;
    model.heads = 1;
    model.channels = 8;
    model.context = WORLD_CONTEXT;
    model.vocab = 16;
    const hx_err_t err = model_open(&model, &self->model, NULL);
    HX_ASSERT(err == HX_OK);
    blocks_make(self->model, BLOCK_BYTES, &self->blocks);
    HX_ASSERT(self->blocks.count <= BLOCKS_MAX);
    lead_world_plan(&self->conf.base, self->model, &self->plan);
    self->plan_blob = payload_plan_encode(&self->plan);
    for (uint32_t at = 0; at < SHARDS_MAX; at++) {
        self->stores[at].pinned = UINT64_MAX;
    }
    begin(self);
    return self;
}

void explore_world_destroy(explore_world_t **self_p)
{
    explore_world_t *const self = *self_p;
    *self_p = NULL;
    end_roles(self);
    step_out_destroy(&self->out);
    blob_release(&self->plan_blob);
    blob_release(&self->saved);
    record_destroy(&self->last);
    plan_destroy(&self->plan);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    free(self);
}

// ---- events

static void die(explore_world_t *self, uint32_t node)
{
    worker_t *const worker = &self->workers[node - NODE_WORKER];
    worker->dead = true;
    worker->works_count = 0;
    drop_letters(self, node);
}

// Back to the newest checkpoint: all that came after it is void.
static void restart(explore_world_t *self)
{
    end_roles(self);
    self->plan.resume = self->saved_version;
    blob_release(&self->plan_blob);
    self->plan_blob = payload_plan_encode(&self->plan);
    record_destroy(&self->last);
    const hx_err_t err = payload_record_decode(self->saved, &self->last);
    HX_ASSERT(err == HX_OK);
    self->committed = self->at_version[self->saved_version];
    self->decided = self->saved_version;
    memset(self->fates, 0, sizeof self->fates);
    memset(self->workers, 0, sizeof self->workers);
    memset(self->given_up, 0, sizeof self->given_up);
    memset(self->clock, 0, sizeof self->clock);
    self->attempts = 0;
    self->stop_asked = false;
    self->restarts++;
    for (uint32_t at = 0; at < SHARDS_MAX; at++) {
        store_t *const store = &self->stores[at];
        *store = (store_t){.pinned = UINT64_MAX};
        for (uint32_t block = 0; block < BLOCKS_MAX; block++) {
            store->version[block] = self->saved_version;
            store->rows[block] = self->committed;
        }
    }
    begin(self);
}

static void tick(explore_world_t *self)
{
    self->now += TICK;
    explore_world_step(self, NODE_LEAD, &(step_in_t){.kind = STEP_TIMER});
    explore_world_ask_again(self);
}

static void happen(explore_world_t *self, explore_event_t event)
{
    const uint32_t at = explore_world_letter(self, event.from, event.to);
    switch ((explore_kind_t)event.kind) {
    case EXPLORE_DELIVER:
        arrive(self, take(self, at));
        break;
    case EXPLORE_JOB:
    case EXPLORE_BAD:
        explore_world_job(self, event.from, event.kind == EXPLORE_BAD);
        break;
    case EXPLORE_COMPUTE:
        explore_world_compute(self, event.from - NODE_WORKER, event.to == 1);
        break;
    case EXPLORE_TICK:
    case EXPLORE_HASTE:
        tick(self);
        break;
    case EXPLORE_LOSE:
        letter_free(take(self, at));
        break;
    case EXPLORE_REPEAT: {
        letter_t copy = *self->letters[at];
        blob_t *blob = blob_retain(copy.blob);
        copy.again = true;
        arrive(self, take(self, at));
        post(self, &copy);
        blob_release(&blob);
        break;
    }
    case EXPLORE_DIE:
        die(self, event.from);
        post(self, &(letter_t){.from = event.from, .to = NODE_LEAD, .lost = true});
        break;
    case EXPLORE_DOUBT:
        post(self, &(letter_t){.from = event.from, .to = NODE_LEAD, .lost = true});
        break;
    case EXPLORE_STOP: {
        step_in_t in = {.kind = STEP_MESSAGE, .peer = NODE_SCHEDULER, .msg.kind = WIRE_STOP_ASK};
        self->stop_asked = true;
        explore_world_step(self, NODE_LEAD, &in);
        break;
    }
    case EXPLORE_RESTART:
        restart(self);
        break;
    case EXPLORE_KINDS:
        break;
    }
}

void explore_world_do(explore_world_t *self, explore_event_t event)
{
    if (event.kind >= EXPLORE_HASTE) {
        HX_ASSERT(self->budget[event.kind] > 0 && self->misfortunes > 0);
        self->budget[event.kind]--;
        self->misfortunes--;
    }
    happen(self, event);
    explore_world_check(self);
}

const char *explore_world_broken(const explore_world_t *self)
{
    return self->broken;
}

bool explore_world_done(const explore_world_t *self)
{
    return self->done;
}

uint64_t explore_world_commits(const explore_world_t *self)
{
    return self->commits;
}
