// lead_world - events in their order, what the lead does, life: see the header.

#include "tests/support/lead_world_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

// ---- events

static bool before(const event_t *a, const event_t *b)
{
    return a->at < b->at || (a->at == b->at && a->number < b->number);
}

void lead_world_push(lead_world_t *self, event_t event)
{
    HX_ASSERT(self->events_count < EVENTS_MAX);
    event.number = ++self->numbers;
    uint32_t at = self->events_count++;
    while (at > 0 && before(&event, &self->events[(at - 1) / 2])) {
        self->events[at] = self->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    self->events[at] = event;
}

static event_t pop(lead_world_t *self)
{
    const event_t first = self->events[0];
    const event_t last = self->events[--self->events_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= self->events_count) {
            break;
        }
        if (child + 1 < self->events_count &&
            before(&self->events[child + 1], &self->events[child])) {
            child++;
        }
        if (!before(&self->events[child], &last)) {
            break;
        }
        self->events[at] = self->events[child];
        at = child;
    }
    self->events[at] = last;
    return first;
}

bool lead_world_chance(lead_world_t *self, double share)
{
    return share > 0 && hx_rng_unit(&self->rng) < share;
}

// When a message sent now arrives; never before an earlier one on the same way.
static hx_time_t arrival(lead_world_t *self, hx_time_t *last)
{
    const hx_time_t spread = self->conf.delay_max - self->conf.delay_min;
    const hx_time_t delay =
        self->conf.delay_min + (hx_time_t)hx_rng_below(&self->rng, (uint64_t)spread + 1);
    *last = HX_MAX(*last, self->now + delay);
    return *last;
}

void lead_world_deliver(lead_world_t *self, node_id_t from, const wire_msg_t *msg, blob_t *blob)
{
    event_t event = {.kind = TO_LEAD, .node = from, .at = arrival(self, &self->last_from[from])};
    event.in =
        (step_in_t){.kind = STEP_MESSAGE, .peer = from, .msg = *msg, .blob = blob_retain(blob)};
    lead_world_push(self, event);
}

// An actor speaks to the lead: perhaps twice, perhaps in vain.
void lead_world_say(lead_world_t *self, node_id_t from, const wire_msg_t *msg, blob_t *blob)
{
    if (!lead_world_chance(self, self->conf.loss)) {
        lead_world_deliver(self, from, msg, blob);
        if (lead_world_chance(self, self->conf.repeat)) {
            lead_world_deliver(self, from, msg, blob);
        }
    }
}

// ---- what the lead does

static void on_done(lead_world_t *self, const wire_msg_t *done, const blob_t *totals)
{
    lead_world_report_t *const report = &self->report;
    report->done = true;
    report->status = (int)done->count;
    report->ended_at = self->now;
    snprintf(report->reason, sizeof report->reason, "%s", done->text);
    snprintf(report->totals, sizeof report->totals, "%.*s", (int)blob_size(totals),
             (const char *)blob_data(totals));
}

static void on_send(lead_world_t *self, const step_send_t *send)
{
    const wire_msg_t *const msg = &send->msg;
    self->sent[msg->kind] = *msg;
    self->sent_to[msg->kind] = send->to;
    self->sent_count[msg->kind]++;
    if (msg->kind == WIRE_GRANT) {
        lead_world_check_grant(self, msg, send->to);
    } else if (msg->kind == WIRE_CLOSED) {
        lead_world_check_closed(self, msg);
    } else if (msg->kind == WIRE_PREPARE) {
        lead_world_check_prepare(self, msg, send->blob);
    } else if (msg->kind == WIRE_LEAD_STATUS) {
        snprintf(self->status, sizeof self->status, "%.*s", (int)blob_size(send->blob),
                 (const char *)blob_data(send->blob));
    } else if (msg->kind == WIRE_DONE) {
        on_done(self, msg, send->blob);
    } else if (msg->kind == WIRE_OUTCOME) {
        lead_world_check_outcome(self, msg);
    } else if (msg->kind == WIRE_PROGRESS && msg->flags & 1) {
        self->report.evaluations++;
        lead_world_check_valid(self);
    }
    if (send->to == NODE_SCHEDULER || send->to >= HX_COUNT(self->last_to)) {
        return;
    }
    event_t event = {
        .kind = TO_ACTOR, .node = send->to, .at = arrival(self, &self->last_to[send->to])};
    event.in =
        (step_in_t){.kind = STEP_MESSAGE, .peer = WORLD_LEAD, .msg = *msg, .blob = send->blob};
    blob_retain(send->blob);
    lead_world_push(self, event);
}

static void on_job(lead_world_t *self, const step_job_t *job)
{
    event_t event = {.kind = JOB, .node = WORLD_LEAD, .at = self->now};
    event.in = (step_in_t){.kind = STEP_JOB, .job = *job};
    if (job->kind == LEAD_JOB_OPEN) {
        event.in.job.attempt = HX_MAX(job->attempt, self->conf.journal_history);
    } else {
        record_t record = {0};
        const hx_err_t err = payload_record_decode(job->blob, &record);
        HX_ASSERT(err == HX_OK);
        if (record.members_count > 0 && (job->flags & 1) == 0) {
            lead_world_check_record(self, &record);
        }
        record_destroy(&record);
        event.in.error = self->conf.journal_error;
    }
    event.in.job.blob = NULL;
    lead_world_push(self, event);
}

static void on_note(lead_world_t *self, const char *text)
{
    const size_t room = TRACE_MAX - self->trace_size;
    const hx_time_t from = self->granted_at == HX_TIME_NEVER ? self->now : self->granted_at;
    const int size = snprintf(self->trace + self->trace_size, room, "[%6" PRId64 "] %s\n",
                              (self->now - from) / HX_MS(1), text);
    self->trace_size += (size_t)size < room ? (size_t)size : 0;
}

static void step(lead_world_t *self, step_in_t *in)
{
    step_out_t out = {.wake_at = HX_TIME_NEVER};
    in->now = self->now;
    lead_step(self->lead, in, &out);
    for (uint32_t at = 0; at < out.sends_count; at++) {
        on_send(self, &out.sends[at]);
    }
    for (uint32_t at = 0; at < out.jobs_count; at++) {
        on_job(self, &out.jobs[at]);
    }
    for (uint32_t at = 0; at < out.notes_count; at++) {
        on_note(self, out.notes[at].text);
    }
    self->tick_at = out.wake_at;
    step_out_destroy(&out);
    blob_release(&in->blob);
    const lead_view_t view = lead_view(self->lead);
    if (!view.books_hold) {
        lead_world_broken(self, "the books do not partition the rows");
    }
    self->report.leases_most = HX_MAX(self->report.leases_most, view.in_flight + view.announced);
}

// ---- life

static void make_lead(lead_world_t *self)
{
    const lead_world_conf_t *const conf = &self->conf;
    lead_conf_t lead = {
        .member = {.id = WORLD_LEAD,
                   .role = PLAN_LEAD,
                   .join_timeout = HX_SEC(30),
                   .model = self->model},
        .block_size = BLOCK_SIZE,
        .ssaw = conf->ssaw,
        .schedule = WORLD_SCHEDULE,
        .clip = WORLD_CLIP,
        .tokens = conf->tokens,
        .seconds = conf->seconds,
        .hold_limit = conf->hold_limit,
        .valid_rows = conf->valid_rows,
        .valid_every = conf->valid_every,
        .checkpoint_every = conf->checkpoint_every,
        .live = conf->live,
        .status_every = conf->status_every,
    };
    self->lead = lead_new(&lead);
}

static void acknowledge(lead_world_t *self, node_id_t node, const wire_msg_t *ack)
{
    if (node != self->conf.silent) {
        lead_world_deliver(self, node, ack, NULL);
    }
}

// Everybody acknowledges the plan, in any order, some before the lead has it.
static void begin(lead_world_t *self)
{
    const lead_world_conf_t *const conf = &self->conf;
    step(self, &(step_in_t){.kind = STEP_START});
    lead_world_deliver(self, NODE_SCHEDULER, &(wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    blob_t *plan = payload_plan_encode(&self->plan);
    lead_world_deliver(self, NODE_SCHEDULER, &(wire_msg_t){.kind = WIRE_PLAN, .epoch = 1}, plan);
    blob_release(&plan);
    wire_msg_t ack = {.kind = WIRE_PLAN_ACK, .epoch = 1};
    if (conf->resume) {
        ack.version = conf->resume->version;
        blob_t *record = payload_record_encode(conf->resume);
        const wire_msg_t msg = {.kind = WIRE_RESUME, .version = ack.version};
        lead_world_deliver(self, WORLD_KEEPER, &msg, record);
        blob_release(&record);
        record_copy(conf->resume, &self->report.last);
        self->report.last.final = false;
    }
    acknowledge(self, WORLD_KEEPER, &ack);
    for (uint32_t at = 0; at < conf->shards; at++) {
        self->shards[at].version = ack.version;
        acknowledge(self, WORLD_SHARD + at, &ack);
    }
    for (uint32_t at = 0; at < conf->pipelines * conf->stages; at++) {
        acknowledge(self, WORLD_WORKER + at, &ack);
    }
    for (uint32_t at = 0; at < conf->pipelines; at++) {
        const uint32_t stage = (uint32_t)hx_rng_below(&self->rng, conf->stages);
        if (conf->dies_at[at] > 0) {
            lead_world_push(self, (event_t){.kind = DEATH,
                                            .at = conf->dies_at[at],
                                            .node = WORLD_WORKER + at * conf->stages + stage});
        }
    }
    if (conf->stop_at > 0) {
        event_t event = {.kind = TO_LEAD, .node = NODE_SCHEDULER, .at = conf->stop_at};
        event.in = (step_in_t){.kind = STEP_MESSAGE,
                               .peer = NODE_SCHEDULER,
                               .msg = {.kind = WIRE_STOP_ASK, .count = conf->stop_status}};
        lead_world_push(self, event);
    }
}

lead_world_t *lead_world_new(const lead_world_conf_t *conf)
{
    HX_ASSERT(conf->pipelines <= WORLD_PIPELINES_MAX && conf->stages <= WORLD_STAGES_MAX);
    HX_ASSERT(conf->shards <= WORLD_SHARDS_MAX && conf->delay_min <= conf->delay_max);
    HX_ASSERT(conf->valid_rows <= HELD_OUT_MAX);
    lead_world_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->rng = hx_rng_seed(conf->seed);
    self->events = hx_new(EVENTS_MAX, sizeof *self->events);
    self->committed = hx_new(ROWS_MAX, sizeof *self->committed);
    self->open_in = hx_new(ROWS_MAX, sizeof *self->open_in);
    self->open_at = hx_new(ROWS_MAX, sizeof *self->open_at);
    self->used = hx_new(ROWS_MAX, sizeof *self->used);
    self->trace = hx_new(TRACE_MAX, 1);
    self->granted_at = HX_TIME_NEVER;
    self->tick_at = HX_TIME_NEVER;
    model_conf_t model = model_conf_default();
    model.layers = 2;
    model.heads = 1;
    model.channels = 16;
    model.context = WORLD_CONTEXT;
    model.vocab = 256;
    const hx_err_t err = model_open(&model, &self->model, NULL);
    HX_ASSERT(err == HX_OK);
    lead_world_plan(conf, self->model, &self->plan);
    blocks_make(self->model, BLOCK_SIZE, &self->blocks);
    make_lead(self);
    begin(self);
    return self;
}

void lead_world_destroy(lead_world_t **self_p)
{
    lead_world_t *const self = *self_p;
    *self_p = NULL;
    for (uint32_t at = 0; at < self->events_count; at++) {
        blob_release(&self->events[at].in.blob);
    }
    lead_destroy(&self->lead);
    plan_destroy(&self->plan);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    record_destroy(&self->report.last);
    free(self->events);
    free(self->committed);
    free(self->open_in);
    free(self->open_at);
    free(self->used);
    free(self->trace);
    free(self);
}

lead_world_conf_t lead_world_conf(uint64_t seed, ssaw_conf_t ssaw)
{
    return (lead_world_conf_t){
        .seed = seed,
        .ssaw = ssaw,
        .pipelines = 2,
        .stages = 2,
        .shards = 2,
        .rows = {4, 4},
        .row_time = {HX_MS(10), HX_MS(10)},
        .delay_min = HX_MS(1),
        .delay_max = HX_MS(1),
        .bad_row = UINT64_MAX,
    };
}

static void happen(lead_world_t *self, event_t *event)
{
    const uint32_t worker = (uint32_t)(event->node - WORLD_WORKER);
    switch (event->kind) {
    case TO_LEAD:
    case JOB:
        step(self, &event->in);
        break;
    case TICK:
        step(self, &(step_in_t){.kind = STEP_TIMER});
        break;
    case DEATH:
        lead_world_die(self, worker);
        break;
    case AGAIN_READY:
        if (!lead_world_hung(self, worker / self->conf.stages)) {
            lead_world_ready(self, worker, event->attempt);
        }
        break;
    case TO_ACTOR:
        lead_world_hear(self, event->node, &event->in);
        blob_release(&event->in.blob);
        break;
    }
}

const lead_world_report_t *lead_world_run(lead_world_t *self, hx_time_t until)
{
    while (!self->report.done && self->report.broken[0] == '\0') {
        const hx_time_t next = self->events_count > 0 ? self->events[0].at : HX_TIME_NEVER;
        event_t event = {.kind = TICK, .at = self->tick_at};
        if (HX_MIN(next, self->tick_at) > until) {
            break;
        }
        if (next <= self->tick_at) {
            event = pop(self);
        }
        self->now = HX_MAX(self->now, event.at);
        happen(self, &event);
    }
    self->report.view = lead_view(self->lead);
    return &self->report;
}

const char *lead_world_trace(const lead_world_t *self)
{
    self->trace[self->trace_size] = '\0';
    return self->trace;
}

void lead_world_tell(lead_world_t *self, node_id_t from, const wire_msg_t *msg, blob_t *blob)
{
    step(self,
         &(step_in_t){.kind = STEP_MESSAGE, .peer = from, .msg = *msg, .blob = blob_retain(blob)});
}

void lead_world_lose(lead_world_t *self, node_id_t node)
{
    step(self, &(step_in_t){.kind = STEP_LOST, .peer = node});
}

const wire_msg_t *lead_world_sent(const lead_world_t *self, wire_kind_t kind, node_id_t to)
{
    const bool found = self->sent_count[kind] > 0 && (to == NODE_NONE || self->sent_to[kind] == to);
    return found ? &self->sent[kind] : NULL;
}

const char *lead_world_status(const lead_world_t *self)
{
    return self->status;
}

uint64_t lead_world_sent_count(const lead_world_t *self, wire_kind_t kind)
{
    return self->sent_count[kind];
}

lead_view_t lead_world_view(const lead_world_t *self)
{
    return lead_view(self->lead);
}
