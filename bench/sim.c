// sim - an event queue, a virtual clock, a virtual network: see the header.

#include "bench/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIM_NODES_MAX 1024u
#define SIM_CUTS_MAX 64u
#define CHANNELS 2u

typedef enum { EVENT_STEP = 1, EVENT_JOB_END, EVENT_KILL } event_kind_t;

typedef struct {
    hx_time_t at;
    uint64_t order;  // Ties are broken by the order of making.
    event_kind_t kind;
    uint32_t node;
    uint64_t timer;  // Of a STEP_TIMER: only the node's newest counts.
    step_in_t in;
} event_t;

typedef struct {
    char name[PLAN_NAME_MAX];
    node_id_t id;
    step_fn *step;
    void *role;
    sim_job_fn *job;
    void *worker;
    step_job_t *jobs;  // Waiting ones, oldest first.
    uint32_t jobs_count, jobs_room;
    bool busy;
    bool started, ended, killed;
    uint64_t timer;
    int status;
    char reason[STEP_NOTE_MAX];
} sim_node_t;

typedef struct {
    node_id_t a, b;
    hx_time_t from, until;
} cut_t;

struct sim {
    sim_conf_t conf;
    hx_rng_t rng;
    hx_time_t now;
    event_t **heap;
    uint32_t heap_count, heap_room;
    event_t **spare;  // Events to be used again; as much room as in the heap.
    uint32_t spare_count;
    uint64_t order;
    sim_node_t *nodes;
    uint32_t nodes_count;
    bool *lines;          // [a][b][channel]: a dialled b.
    hx_time_t *arrivals;  // [from][to][channel]: the last delivery under way.
    cut_t cuts[SIM_CUTS_MAX];
    uint32_t cuts_count;
    sim_look_fn *look;
    void *looker;
    step_out_t out;
    char *trace;
    size_t trace_size, trace_room;
    uint64_t hash, events, messages, undialled;
};

sim_t *sim_new(const sim_conf_t *conf)
{
    HX_ASSERT(conf->latency_min >= 0 && conf->latency_max >= conf->latency_min);
    sim_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->rng = hx_rng_seed(conf->seed);
    self->nodes = hx_new(SIM_NODES_MAX, sizeof *self->nodes);
    self->out.wake_at = HX_TIME_NEVER;
    self->hash = UINT64_C(14695981039346656037);
    return self;
}

static void event_clear(event_t *event)
{
    blob_release(&event->in.blob);
    blob_release(&event->in.job.blob);
}

void sim_destroy(sim_t **self_p)
{
    sim_t *const self = *self_p;
    if (!self) {
        return;
    }
    for (uint32_t at = 0; at < self->heap_count; at++) {
        event_clear(self->heap[at]);
        free(self->heap[at]);
    }
    for (uint32_t at = 0; at < self->spare_count; at++) {
        free(self->spare[at]);
    }
    for (uint32_t at = 0; at < self->nodes_count; at++) {
        for (uint32_t job = 0; job < self->nodes[at].jobs_count; job++) {
            blob_release(&self->nodes[at].jobs[job].blob);
        }
        free(self->nodes[at].jobs);
    }
    step_out_destroy(&self->out);
    free(self->heap);
    free(self->spare);
    free(self->nodes);
    free(self->lines);
    free(self->arrivals);
    free(self->trace);
    free(self);
    *self_p = NULL;
}

// FNV-1a over what makes two runs different.
static void mix(sim_t *self, const void *bytes, size_t size)
{
    const unsigned char *const at = bytes;
    for (size_t index = 0; index < size; index++) {
        self->hash = (self->hash ^ at[index]) * UINT64_C(1099511628211);
    }
}

static void mix_number(sim_t *self, uint64_t number)
{
    mix(self, &number, sizeof number);
}

static bool earlier(const event_t *a, const event_t *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(sim_t *self, const event_t *event)
{
    if (self->heap_count == self->heap_room) {
        self->heap_room = self->heap_room > 0 ? self->heap_room * 2 : 256;
        self->heap = hx_grow(self->heap, self->heap_room, sizeof *self->heap);
        self->spare = hx_grow(self->spare, self->heap_room, sizeof *self->spare);
    }
    event_t *const added =
        self->spare_count > 0 ? self->spare[--self->spare_count] : hx_new(1, sizeof *added);
    *added = *event;
    added->order = self->order++;
    uint32_t at = self->heap_count++;
    while (at > 0 && earlier(added, self->heap[(at - 1) / 2])) {
        self->heap[at] = self->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    self->heap[at] = added;
}

static event_t *pop(sim_t *self)
{
    event_t *const first = self->heap[0];
    event_t *const last = self->heap[--self->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= self->heap_count) {
            break;
        }
        if (child + 1 < self->heap_count && earlier(self->heap[child + 1], self->heap[child])) {
            child++;
        }
        if (!earlier(self->heap[child], last)) {
            break;
        }
        self->heap[at] = self->heap[child];
        at = child;
    }
    if (self->heap_count > 0) {
        self->heap[at] = last;
    }
    return first;
}

static uint32_t index_of(const sim_t *self, node_id_t id)
{
    for (uint32_t at = 0; at < self->nodes_count; at++) {
        if (self->nodes[at].id == id) {
            return at;
        }
    }
    return UINT32_MAX;
}

static size_t line_of(uint32_t from, uint32_t to, uint32_t channel)
{
    return ((size_t)from * SIM_NODES_MAX + to) * CHANNELS + channel;
}

static bool has_line(const sim_t *self, uint32_t a, uint32_t b, uint32_t channel)
{
    return self->lines[line_of(a, b, channel)] || self->lines[line_of(b, a, channel)];
}

static bool any_line(const sim_t *self, uint32_t a, uint32_t b)
{
    return has_line(self, a, b, 0) || has_line(self, a, b, 1);
}

void sim_add(sim_t *self, const char *name, node_id_t id, step_fn *step, void *role,
             sim_job_fn *job, void *worker, hx_time_t start_at)
{
    HX_ASSERT(self->nodes_count < SIM_NODES_MAX && index_of(self, id) == UINT32_MAX);
    const uint32_t at = self->nodes_count++;
    const size_t ways = (size_t)self->nodes_count * SIM_NODES_MAX * CHANNELS;
    const size_t before = (size_t)at * SIM_NODES_MAX * CHANNELS;
    self->lines = hx_grow(self->lines, ways, sizeof *self->lines);
    self->arrivals = hx_grow(self->arrivals, ways, sizeof *self->arrivals);
    memset(self->lines + before, 0, (ways - before) * sizeof *self->lines);
    memset(self->arrivals + before, 0, (ways - before) * sizeof *self->arrivals);
    sim_node_t *const node = &self->nodes[at];
    *node = (sim_node_t){
        .id = id, .step = step, .role = role, .job = job, .worker = worker, .status = -1};
    snprintf(node->name, sizeof node->name, "%s", name);
    push(self,
         &(event_t){.at = start_at, .kind = EVENT_STEP, .node = at, .in = {.kind = STEP_START}});
}

void sim_lose(sim_t *self, node_id_t id, hx_time_t at)
{
    const uint32_t node = index_of(self, id);
    HX_ASSERT(node != UINT32_MAX);
    push(self, &(event_t){.at = at, .kind = EVENT_KILL, .node = node});
}

void sim_signal(sim_t *self, node_id_t id, hx_time_t at)
{
    const uint32_t node = index_of(self, id);
    HX_ASSERT(node != UINT32_MAX);
    push(self, &(event_t){.at = at, .kind = EVENT_STEP, .node = node, .in = {.kind = STEP_SIGNAL}});
}

void sim_cut(sim_t *self, node_id_t a, node_id_t b, hx_time_t from, hx_time_t until)
{
    HX_ASSERT(self->cuts_count < SIM_CUTS_MAX);
    self->cuts[self->cuts_count++] = (cut_t){.a = a, .b = b, .from = from, .until = until};
}

void sim_look(sim_t *self, sim_look_fn *look, void *looker)
{
    self->look = look;
    self->looker = looker;
}

static void trace_line(sim_t *self, const sim_node_t *node, const char *text)
{
    mix_number(self, (uint64_t)self->now);
    mix(self, text, strlen(text));
    if (!self->conf.keep_trace) {
        return;
    }
    const size_t need = strlen(text) + PLAN_NAME_MAX + 32;
    if (self->trace_size + need > self->trace_room) {
        self->trace_room = (self->trace_room + need) * 2;
        self->trace = hx_grow(self->trace, self->trace_room, 1);
    }
    self->trace_size +=
        (size_t)snprintf(self->trace + self->trace_size, need, "[%6" PRId64 "] %s > %s\n",
                         self->now / HX_MS(1), node->name, text);
}

static void tell_lost(sim_t *self, uint32_t whom, uint32_t lost, hx_time_t at)
{
    push(self, &(event_t){.at = at,
                          .kind = EVENT_STEP,
                          .node = whom,
                          .in = {.kind = STEP_LOST, .peer = self->nodes[lost].id}});
}

static void dial(sim_t *self, uint32_t from, const step_dial_t *asked)
{
    const uint32_t to = index_of(self, asked->peer);
    if (to == UINT32_MAX) {
        return;
    }
    const bool known = any_line(self, from, to);
    self->lines[line_of(from, to, 0)] |= asked->control[0] != '\0';
    self->lines[line_of(from, to, 1)] |= asked->data[0] != '\0';
    if (!known && (self->nodes[to].ended || self->nodes[to].killed)) {
        tell_lost(self, from, to, self->now + self->conf.dead_after);
    }
}

static hx_time_t latency(sim_t *self, size_t size)
{
    const sim_conf_t *const conf = &self->conf;
    const uint64_t spread = (uint64_t)(conf->latency_max - conf->latency_min) + 1;
    hx_time_t time = conf->latency_min + (hx_time_t)hx_rng_below(&self->rng, spread);
    if (conf->bandwidth > 0) {
        time += (hx_time_t)(1e9 * (double)size / conf->bandwidth);
    }
    return time;
}

// When a message arrives: never before one that was sent earlier on the same line, and not within a
// cut.
static hx_time_t arrival(sim_t *self, uint32_t from, uint32_t to, uint32_t channel, size_t size)
{
    hx_time_t at = self->now + latency(self, size);
    for (uint32_t index = 0; index < self->cuts_count; index++) {
        const cut_t *const cut = &self->cuts[index];
        const node_id_t a = self->nodes[from].id, b = self->nodes[to].id;
        const bool ours = (cut->a == a && cut->b == b) || (cut->a == b && cut->b == a);
        if (ours && at >= cut->from && at < cut->until) {
            at = cut->until + latency(self, size);
        }
    }
    hx_time_t *const last = &self->arrivals[line_of(from, to, channel)];
    at = HX_MAX(at, *last);
    *last = at;
    return at;
}

static void send_one(sim_t *self, uint32_t from, const step_send_t *send)
{
    const uint32_t to = index_of(self, send->to);
    if (self->look) {
        self->look(self->looker, self->now, self->nodes[from].id, send);
    }
    self->messages++;
    mix_number(self, ((uint64_t)send->msg.kind << 48) ^ send->msg.attempt ^ send->msg.version);
    if (to == UINT32_MAX) {
        return;
    }
    if (!any_line(self, from, to)) {
        self->undialled++;
        char text[STEP_NOTE_MAX];
        snprintf(text, sizeof text, "sends %s to %s, which neither has dialled",
                 wire_kind_name(send->msg.kind), self->nodes[to].name);
        trace_line(self, &self->nodes[from], text);
        return;
    }
    event_t event = {.kind = EVENT_STEP,
                     .node = to,
                     .in = {.kind = STEP_MESSAGE,
                            .peer = self->nodes[from].id,
                            .msg = send->msg,
                            .blob = send->blob}};
    // On the channel of its kind, or on the other one if there is only that: as link_send.
    const uint32_t wanted = wire_is_data(send->msg.kind) ? 1 : 0;
    const uint32_t channel = has_line(self, from, to, wanted) ? wanted : 1 - wanted;
    const bool twice = channel == 0 && hx_rng_unit(&self->rng) < self->conf.duplicate;
    for (uint32_t copy = 0; copy < (twice ? 2u : 1u); copy++) {
        event.at = arrival(self, from, to, channel, blob_size(send->blob));
        blob_retain(event.in.blob);
        push(self, &event);
    }
}

static void start_job(sim_t *self, uint32_t at)
{
    sim_node_t *const node = &self->nodes[at];
    if (node->busy || node->jobs_count == 0) {
        return;
    }
    event_t event = {.kind = EVENT_JOB_END, .node = at, .in = {.kind = STEP_JOB}};
    event.in.job = node->jobs[0];
    node->jobs_count--;
    memmove(node->jobs, node->jobs + 1, node->jobs_count * sizeof *node->jobs);
    hx_time_t duration = 0;
    event.in.error = node->job(node->worker, &event.in.job, &event.in.blob, &self->rng, &duration);
    event.in.job.seconds = (double)duration * 1e-9;
    event.in.job_started = self->now;
    event.in.job_ended = event.at = self->now + duration;
    node->busy = true;
    push(self, &event);
}

// A node has ended by itself: its last words arrive, then its peers notice.
static void end_node(sim_t *self, uint32_t at)
{
    sim_node_t *const node = &self->nodes[at];
    node->ended = true;
    node->status = self->out.status;
    snprintf(node->reason, sizeof node->reason, "%s", self->out.reason);
    char text[STEP_NOTE_MAX + 64];
    snprintf(text, sizeof text, "ends with status %d: %s", node->status, node->reason);
    trace_line(self, node, text);
    for (uint32_t peer = 0; peer < self->nodes_count; peer++) {
        if (peer != at && any_line(self, at, peer)) {
            const hx_time_t control = self->arrivals[line_of(at, peer, 0)];
            const hx_time_t data = self->arrivals[line_of(at, peer, 1)];
            const hx_time_t last = HX_MAX(control, data);
            tell_lost(self, peer, at, HX_MAX(last, self->now + latency(self, 0)) + 1);
        }
    }
}

static void act(sim_t *self, uint32_t at)
{
    sim_node_t *const node = &self->nodes[at];
    step_out_t *const out = &self->out;
    for (uint32_t index = 0; index < out->notes_count; index++) {
        if (out->notes[index].level >= self->conf.trace_level) {
            trace_line(self, node, out->notes[index].text);
        }
    }
    for (uint32_t index = 0; index < out->dials_count; index++) {
        dial(self, at, &out->dials[index]);
    }
    for (uint32_t index = 0; index < out->sends_count; index++) {
        send_one(self, at, &out->sends[index]);
    }
    for (uint32_t index = 0; index < out->jobs_count; index++) {
        if (node->jobs_count == node->jobs_room) {
            node->jobs_room = node->jobs_room > 0 ? node->jobs_room * 2 : 16;
            node->jobs = hx_grow(node->jobs, node->jobs_room, sizeof *node->jobs);
        }
        node->jobs[node->jobs_count] = out->jobs[index];
        blob_retain(node->jobs[node->jobs_count++].blob);
    }
    if (out->stop) {
        end_node(self, at);
        return;
    }
    start_job(self, at);
    node->timer++;
    if (out->wake_at != HX_TIME_NEVER) {
        push(self, &(event_t){.at = HX_MAX(out->wake_at, self->now + 1),
                              .kind = EVENT_STEP,
                              .node = at,
                              .timer = node->timer,
                              .in = {.kind = STEP_TIMER}});
    }
}

static void kill_node(sim_t *self, uint32_t at)
{
    sim_node_t *const node = &self->nodes[at];
    if (node->ended || node->killed) {
        return;
    }
    node->killed = true;
    trace_line(self, node, "is killed");
    for (uint32_t peer = 0; peer < self->nodes_count; peer++) {
        if (peer != at && any_line(self, at, peer)) {
            tell_lost(self, peer, at, self->now + self->conf.dead_after);
        }
    }
}

static void handle(sim_t *self, event_t *event)
{
    sim_node_t *const node = &self->nodes[event->node];
    if (event->kind == EVENT_KILL) {
        kill_node(self, event->node);
        return;
    }
    const bool stale = event->in.kind == STEP_TIMER && event->timer != node->timer;
    const bool early = !node->started && event->in.kind != STEP_START;
    if (node->ended || node->killed || stale || (early && event->in.kind != STEP_MESSAGE)) {
        return;
    }
    if (early) {  // The line is up when the other side is: a message waits for it.
        event->at = self->now + HX_MS(100);
        push(self, event);
        event->in.blob = NULL;
        return;
    }
    node->started = true;
    if (event->kind == EVENT_JOB_END) {
        node->busy = false;
    }
    self->events++;
    mix_number(self, (uint64_t)self->now);
    mix_number(self, ((uint64_t)event->in.kind << 32) | event->node);
    event->in.now = self->now;
    step_out_clear(&self->out);
    node->step(node->role, &event->in, &self->out);
    act(self, event->node);
    step_out_clear(&self->out);
}

bool sim_run(sim_t *self, hx_time_t until)
{
    for (;;) {
        uint32_t running = 0;
        for (uint32_t at = 0; at < self->nodes_count; at++) {
            running += !self->nodes[at].ended && !self->nodes[at].killed;
        }
        if (running == 0) {
            return true;
        }
        if (self->heap_count == 0 || self->heap[0]->at > until) {
            self->now = until;
            return false;
        }
        event_t *const event = pop(self);
        self->now = event->at;
        handle(self, event);
        event_clear(event);
        if (self->spare_count < self->heap_room) {
            self->spare[self->spare_count++] = event;
        } else {
            free(event);
        }
    }
}

hx_time_t sim_now(const sim_t *self)
{
    return self->now;
}

int sim_status(const sim_t *self, node_id_t id, const char **reason)
{
    const uint32_t at = index_of(self, id);
    HX_ASSERT(at != UINT32_MAX);
    if (reason) {
        *reason = self->nodes[at].reason;
    }
    return self->nodes[at].killed ? -2 : self->nodes[at].status;
}

const char *sim_trace(const sim_t *self)
{
    return self->trace ? self->trace : "";
}

uint64_t sim_trace_hash(const sim_t *self)
{
    return self->hash;
}

uint64_t sim_events(const sim_t *self)
{
    return self->events;
}

uint64_t sim_messages(const sim_t *self)
{
    return self->messages;
}

uint64_t sim_undialled(const sim_t *self)
{
    return self->undialled;
}
