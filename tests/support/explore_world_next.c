// explore_world_next - which events are possible, and what they are called.

#include "tests/support/explore_world_state.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const NAMES[EXPLORE_KINDS] = {
    [EXPLORE_DELIVER] = "deliver", [EXPLORE_JOB] = "end job", [EXPLORE_COMPUTE] = "compute",
    [EXPLORE_TICK] = "tick",       [EXPLORE_HASTE] = "haste", [EXPLORE_LOSE] = "lose",
    [EXPLORE_REPEAT] = "repeat",   [EXPLORE_BAD] = "bad",     [EXPLORE_DIE] = "die",
    [EXPLORE_DOUBT] = "doubt",     [EXPLORE_STOP] = "stop",   [EXPLORE_RESTART] = "restart",
};

typedef struct {
    explore_event_t *list;
    uint32_t count;
} events_t;

static void add(events_t *events, explore_kind_t kind, uint32_t from, uint32_t to)
{
    HX_ASSERT(events->count < EXPLORE_EVENTS_MAX);
    events->list[events->count++] =
        (explore_event_t){.kind = (uint8_t)kind, .from = (uint8_t)from, .to = (uint8_t)to};
}

static bool may(const explore_world_t *self, explore_kind_t kind)
{
    return !self->done && self->misfortunes > 0 && self->budget[kind] > 0;
}

// A letter, and what may go wrong with it. The news of a loss is no message.
static void add_letter(explore_world_t *self, const letter_t *letter, events_t *events)
{
    add(events, EXPLORE_DELIVER, letter->from, letter->to);
    if (!letter->lost && may(self, EXPLORE_LOSE)) {
        add(events, EXPLORE_LOSE, letter->from, letter->to);
    }
    if (!letter->lost && !letter->again && may(self, EXPLORE_REPEAT)) {
        add(events, EXPLORE_REPEAT, letter->from, letter->to);
    }
}

static bool quick_job(const explore_world_t *self, uint32_t node)
{
    const jobs_t *const jobs = &self->jobs[node];
    return node >= NODE_SHARD && jobs->count > 0 &&
           ((jobs->list[0].kind == SHARD_JOB_HOLD && self->conf.hold_at_once) ||
            jobs->list[0].kind == SHARD_JOB_DROP || jobs->list[0].kind == SHARD_JOB_UNPIN);
}

static void add_job(explore_world_t *self, uint32_t node, events_t *events)
{
    const jobs_t *const jobs = &self->jobs[node];
    add(events, EXPLORE_JOB, node, 0);
    if (node >= NODE_SHARD && jobs->list[0].kind == SHARD_JOB_HOLD && may(self, EXPLORE_BAD)) {
        add(events, EXPLORE_BAD, node, 0);
    }
}

// What no role can tell the moment of: it happens before all else.
static bool add_quick(explore_world_t *self, events_t *events)
{
    for (uint32_t node = NODE_SHARD; node < NODE_KEEPER; node++) {
        if (quick_job(self, node)) {
            add_job(self, node, events);
            return true;
        }
    }
    for (uint32_t at = 0; at < self->letters_count; at++) {
        const letter_t *const letter = self->letters[at];
        const bool push = letter->msg.kind == WIRE_PUSH && self->conf.hold_at_once;
        if ((letter->to >= NODE_KEEPER || push) &&
            explore_world_letter(self, letter->from, letter->to) == at) {
            add_letter(self, letter, events);
            return true;
        }
    }
    return false;
}

static void add_fortune(explore_world_t *self, events_t *events)
{
    for (uint32_t at = 0; at < self->letters_count; at++) {
        const letter_t *const letter = self->letters[at];
        if (explore_world_letter(self, letter->from, letter->to) == at) {
            add_letter(self, letter, events);
        }
    }
    for (uint32_t node = 0; node < NODE_KEEPER; node++) {
        if (self->jobs[node].count > 0) {
            add_job(self, node, events);
        }
    }
    for (uint32_t at = 0; at < explore_world_workers(self); at++) {
        if (explore_world_may_compute(self, at)) {
            const worker_t *const worker = &self->workers[at];
            uint32_t next = 0;
            while (worker->works[next].computed) {
                next++;
            }
            add(events, EXPLORE_COMPUTE, NODE_WORKER + at, 0);
            if (worker->works[next].base < explore_world_newest(self)) {
                add(events, EXPLORE_COMPUTE, NODE_WORKER + at, 1);
            }
        }
    }
}

static void add_misfortune(explore_world_t *self, events_t *events)
{
    for (uint32_t at = 0; at < explore_world_workers(self); at++) {
        if (!self->workers[at].dead && may(self, EXPLORE_DIE)) {
            add(events, EXPLORE_DIE, NODE_WORKER + at, 0);
        }
        if (!self->workers[at].dead && may(self, EXPLORE_DOUBT)) {
            add(events, EXPLORE_DOUBT, NODE_WORKER + at, 0);
        }
    }
    if (may(self, EXPLORE_STOP)) {
        add(events, EXPLORE_STOP, 0, 0);
    }
    if (may(self, EXPLORE_RESTART) && self->saved) {
        add(events, EXPLORE_RESTART, 0, 0);
    }
}

uint32_t explore_world_events(explore_world_t *self, explore_event_t *out)
{
    events_t events = {.list = out};
    if (add_quick(self, &events)) {
        return self->done ? 1 : events.count;
    }
    add_fortune(self, &events);
    if (self->done) {
        return HX_MIN(events.count, 1u);  // What is still under way cannot change anything.
    }
    if (events.count == 0) {
        add(&events, EXPLORE_TICK, 0, 0);
    } else if (may(self, EXPLORE_HASTE)) {
        add(&events, EXPLORE_HASTE, 0, 0);
    }
    add_misfortune(self, &events);
    return events.count;
}

static void node_name(uint32_t node, char *out, size_t size)
{
    if (node == NODE_LEAD || node == NODE_KEEPER) {
        snprintf(out, size, "%s", node == NODE_LEAD ? "lead" : "keeper");
    } else if (node < NODE_KEEPER) {
        snprintf(out, size, "shard%" PRIu32, node - NODE_SHARD);
    } else {
        snprintf(out, size, "worker%" PRIu32, node - NODE_WORKER);
    }
}

void explore_world_name(const explore_world_t *self, explore_event_t event, char *out, size_t size)
{
    char from[16];
    char to[16];
    node_name(event.from, from, sizeof from);
    node_name(event.to, to, sizeof to);
    const uint32_t at = explore_world_letter(self, event.from, event.to);
    const char *const name = NAMES[event.kind];
    if (event.kind == EXPLORE_DELIVER || event.kind == EXPLORE_LOSE ||
        event.kind == EXPLORE_REPEAT) {
        const letter_t *const letter = at == UINT32_MAX ? NULL : self->letters[at];
        snprintf(out, size, "%s %s(%" PRIu64 ") %s > %s", name,
                 !letter        ? "?"
                 : letter->lost ? "the loss"
                                : wire_kind_name(letter->msg.kind),
                 letter ? (letter->msg.attempt & 0xffff) : 0, from, to);
    } else if (event.kind == EXPLORE_JOB || event.kind == EXPLORE_BAD) {
        snprintf(out, size, "%s %" PRIu32 " of %s", name, self->jobs[event.from].list[0].kind,
                 from);
    } else if (event.kind == EXPLORE_COMPUTE) {
        snprintf(out, size, "%s %s%s", name, from, event.to ? " from its base" : "");
    } else {
        snprintf(out, size, "%s %s", name, event.from ? from : "");
    }
}
