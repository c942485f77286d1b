// Every order of events of small clusters, on the real lead and the real shards: from each state
// that can be reached each event that is possible is tried, and after each the laws are checked. At
// the end every state must have a way to the end of its run without any further misfortune.
//
// A state is reached again by doing its events again on a fresh world; states that were seen are
// known by a digest. HX_EXPLORE=N stops each search after N states in place of its own limit.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/explore_world.h"

#define DEPTH_MAX 400u
#define STATES_MAX (UINT32_C(1) << 22)

typedef struct {
    uint64_t digest;
    uint32_t state;  // Number + 1; 0: free.
} slot_t;

typedef struct {
    uint32_t from, to;
} edge_t;

typedef struct {
    explore_conf_t conf;
    const char *name;
    uint32_t limit;
    slot_t *slots;              // 2 x STATES_MAX, a hash table.
    bool *ends;                 // By state: the run is over in it, or it was not looked at further.
    uint32_t *parents;          // By state: where it was first reached from,
    explore_event_t *arrivals;  // and by what.
    uint32_t states_count;
    edge_t *edges;  // Without misfortune.
    uint32_t edges_count, edges_room;
    uint64_t events;
    uint64_t cut;  // States that were not looked at further.
    uint32_t depth;
    explore_event_t path[DEPTH_MAX];
    explore_world_t *world;
    char broken[512];
} search_t;

// ---- states

// The number of a state; `*fresh` if it was not seen before.
static uint32_t state_of(search_t *self, uint64_t digest, bool *fresh)
{
    uint64_t at = digest % (2 * STATES_MAX);
    while (self->slots[at].state != 0 && self->slots[at].digest != digest) {
        at = (at + 1) % (2 * STATES_MAX);
    }
    *fresh = self->slots[at].state == 0;
    if (*fresh) {
        cr_assert_lt(self->states_count, STATES_MAX);
        self->slots[at] = (slot_t){digest, ++self->states_count};
    }
    return self->slots[at].state - 1;
}

static void add_edge(search_t *self, uint32_t from, uint32_t to)
{
    if (self->edges_count == self->edges_room) {
        self->edges_room = HX_MAX(1024u, self->edges_room * 2);
        self->edges = hx_grow(self->edges, self->edges_room, sizeof *self->edges);
    }
    self->edges[self->edges_count++] = (edge_t){from, to};
}

static void say_path(search_t *self)
{
    explore_world_t *world = explore_world_new(&self->conf);
    for (uint32_t at = 0; at < self->depth; at++) {
        char text[96];
        explore_world_name(world, self->path[at], text, sizeof text);
        fprintf(stderr, "  %3" PRIu32 " %s\n", at, text);
        explore_world_do(world, self->path[at]);
    }
    explore_world_destroy(&world);
}

// ---- the search

static void return_to(search_t *self, uint32_t depth)
{
    explore_world_destroy(&self->world);
    self->world = explore_world_new(&self->conf);
    for (uint32_t at = 0; at < depth; at++) {
        explore_world_do(self->world, self->path[at]);
    }
    self->depth = depth;
}

static bool broke(search_t *self)
{
    const char *const law = explore_world_broken(self->world);
    if (law[0] && !self->broken[0]) {
        snprintf(self->broken, sizeof self->broken, "%s, after %" PRIu32 " events: %s", self->name,
                 self->depth, law);
        say_path(self);
    }
    return self->broken[0] != '\0';
}

// From the state that the world is in, to the end of all that follows.
static void look(search_t *self, uint32_t state)
{
    explore_event_t events[EXPLORE_EVENTS_MAX];
    const uint32_t depth = self->depth;
    const uint32_t count = explore_world_events(self->world, events);
    self->ends[state] = explore_world_done(self->world);
    if (self->states_count >= self->limit || depth == DEPTH_MAX) {
        self->ends[state] = true;
        self->cut++;
        return;
    }
    bool there = true;
    for (uint32_t at = 0; at < count && !self->broken[0]; at++) {
        if (!there) {
            return_to(self, depth);
        }
        self->path[self->depth++] = events[at];
        explore_world_do(self->world, events[at]);
        self->events++;
        if (broke(self)) {
            return;
        }
        bool fresh;
        const uint32_t next = state_of(self, explore_world_digest(self->world), &fresh);
        if (events[at].kind < EXPLORE_HASTE) {
            add_edge(self, state, next);
        }
        if (fresh) {
            self->parents[next] = state;
            self->arrivals[next] = events[at];
            look(self, next);
        }
        there = false;
    }
}

// How this state was reached first.
static void say_state(search_t *self, uint32_t state)
{
    self->depth = 0;
    for (uint32_t at = state; at != 0; at = self->parents[at]) {
        self->depth++;
    }
    for (uint32_t at = state, left = self->depth; at != 0; at = self->parents[at]) {
        self->path[--left] = self->arrivals[at];
    }
    say_path(self);
}

// From every state the run can still end well: back from the ends along what is no misfortune.
static uint32_t stuck_states(search_t *self)
{
    const uint32_t states = self->states_count;
    uint32_t *const first = hx_new(states + 1, sizeof *first);
    uint32_t *const sources = hx_new(HX_MAX(self->edges_count, 1u), sizeof *sources);
    uint32_t *const queue = hx_new(states, sizeof *queue);
    uint32_t queued = 0;
    for (uint32_t at = 0; at < self->edges_count; at++) {
        first[self->edges[at].to + 1]++;
    }
    for (uint32_t at = 0; at < states; at++) {
        first[at + 1] += first[at];
    }
    uint32_t *const fill = hx_new(states, sizeof *fill);
    for (uint32_t at = 0; at < self->edges_count; at++) {
        const uint32_t to = self->edges[at].to;
        sources[first[to] + fill[to]++] = self->edges[at].from;
    }
    for (uint32_t at = 0; at < states; at++) {
        if (self->ends[at]) {
            queue[queued++] = at;
        }
    }
    for (uint32_t at = 0; at < queued; at++) {
        for (uint32_t edge = first[queue[at]]; edge < first[queue[at] + 1]; edge++) {
            if (!self->ends[sources[edge]]) {
                self->ends[sources[edge]] = true;
                queue[queued++] = sources[edge];
            }
        }
    }
    for (uint32_t at = 0; at < states && queued < states; at++) {
        if (!self->ends[at]) {
            say_state(self, at);
            break;
        }
    }
    free(first);
    free(sources);
    free(queue);
    free(fill);
    return states - queued;
}

static uint32_t explore(const char *name, const explore_conf_t *conf, uint32_t limit)
{
    const char *const wish = getenv("HX_EXPLORE");
    search_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->name = name;
    self->limit = wish ? (uint32_t)HX_MIN(strtoull(wish, NULL, 0), STATES_MAX - 1) : limit;
    self->slots = hx_new((size_t)2 * STATES_MAX, sizeof *self->slots);
    self->ends = hx_new(STATES_MAX, sizeof *self->ends);
    self->parents = hx_new(STATES_MAX, sizeof *self->parents);
    self->arrivals = hx_new(STATES_MAX, sizeof *self->arrivals);
    const clock_t start = clock();
    self->world = explore_world_new(conf);
    bool fresh;
    look(self, state_of(self, explore_world_digest(self->world), &fresh));
    const uint32_t states = self->states_count;
    const uint32_t stuck = self->broken[0] ? 0 : stuck_states(self);
    fprintf(stderr, "%s: %" PRIu32 " states, %" PRIu64 " events, %" PRIu64 " left open, %.1f s\n",
            name, states, self->events, self->cut, (double)(clock() - start) / CLOCKS_PER_SEC);
    char broken[512];
    snprintf(broken, sizeof broken, "%s", self->broken);
    explore_world_destroy(&self->world);
    free(self->slots);
    free(self->ends);
    free(self->parents);
    free(self->arrivals);
    free(self->edges);
    free(self);
    cr_assert(broken[0] == '\0', "%s", broken);
    cr_assert_eq(stuck, 0, "%s: from %" PRIu32 " states there is no way to the end", name, stuck);
    return states;
}

// ---- what is explored

// `rows` rows in leases of 2.
static explore_conf_t cluster(uint32_t pipelines, uint32_t stages, uint32_t shards, uint64_t rows,
                              ssaw_conf_t ssaw)
{
    explore_conf_t conf = {.base = lead_world_conf(1, ssaw), .hold_at_once = true};
    conf.base.pipelines = pipelines;
    conf.base.stages = stages;
    conf.base.shards = shards;
    conf.base.tokens = rows * WORLD_CONTEXT;
    for (uint32_t at = 0; at < pipelines; at++) {
        conf.base.rows[at] = 2;
        conf.base.row_time[at] = HX_MS(10);
    }
    return conf;
}

static ssaw_conf_t mode(conf_mode_t which, uint64_t batch, uint32_t staleness)
{
    ssaw_conf_t conf = ssaw_preset(which, batch, WORLD_CONTEXT, staleness);
    conf.patience = 0;  // Who may run ahead does.
    conf.grace = 0;
    if (which == CONF_MODE_SSAW) {
        conf.staleness = staleness;
    }
    return conf;
}

static void misfortunes(explore_conf_t *conf, uint8_t in_all)
{
    conf->misfortunes = in_all;
    for (uint32_t kind = EXPLORE_HASTE; kind < EXPLORE_KINDS; kind++) {
        conf->budget[kind] = in_all;
    }
    conf->budget[EXPLORE_RESTART] = 0;
    conf->budget[EXPLORE_STOP] = 0;
}

Test(explore, two_pipelines_without_misfortune, .timeout = 600)
{
    explore_conf_t conf = cluster(2, 1, 2, 12, mode(CONF_MODE_SSAW, 4, 1));
    explore("ssaw, all orders", &conf, 130000);
}

Test(explore, two_pipelines_and_every_misfortune, .timeout = 600)
{
    explore_conf_t conf = cluster(2, 1, 1, 6, mode(CONF_MODE_SSAW, 4, 1));
    misfortunes(&conf, 2);
    explore("ssaw, 2 misfortunes", &conf, 100000);
    conf = cluster(2, 1, 2, 4, mode(CONF_MODE_SSAW, 4, 2));
    misfortunes(&conf, 1);
    explore("ssaw, 2 shards", &conf, 150000);
}

Test(explore, every_mode_and_a_misfortune, .timeout = 600)
{
    static const struct {
        conf_mode_t mode;
        const char *name;
    } modes[] = {{CONF_MODE_BSP, "bsp"},           {CONF_MODE_KSYNC, "ksync"},
                 {CONF_MODE_SSP, "ssp"},           {CONF_MODE_ASP, "asp"},
                 {CONF_MODE_SOFTSYNC, "softsync"}, {CONF_MODE_EAGER, "eager"}};
    for (uint32_t at = 0; at < HX_COUNT(modes); at++) {
        explore_conf_t conf = cluster(2, 1, 1, 6, mode(modes[at].mode, 4, 1));
        if (modes[at].mode == CONF_MODE_KSYNC) {
            conf.base.ssaw.quorum_rows = 2;  // Else nobody is ever late.
        }
        misfortunes(&conf, 1);
        explore(modes[at].name, &conf, 40000);
    }
}

Test(explore, three_pipelines, .timeout = 600)
{
    explore_conf_t conf = cluster(3, 1, 1, 6, mode(CONF_MODE_SSAW, 6, 1));
    misfortunes(&conf, 1);
    explore("3 pipelines, ssaw", &conf, 150000);
    conf = cluster(3, 1, 1, 8, mode(CONF_MODE_BSP, 6, 0));
    misfortunes(&conf, 1);
    explore("3 pipelines, bsp", &conf, 150000);
}

Test(explore, two_stages, .timeout = 600)
{
    explore_conf_t conf = cluster(2, 2, 1, 4, mode(CONF_MODE_SSAW, 4, 1));
    misfortunes(&conf, 1);
    explore("2 stages", &conf, 80000);
}

Test(explore, parts_on_their_way, .timeout = 600)
{
    explore_conf_t conf = cluster(2, 1, 1, 4, mode(CONF_MODE_SSAW, 4, 1));
    conf.hold_at_once = false;
    misfortunes(&conf, 1);
    explore("every part by itself", &conf, 80000);
}

// As far as a run can be taken up again today: from its newest checkpoint, with the same journal.
Test(explore, restarts_and_stops, .timeout = 600)
{
    explore_conf_t conf = cluster(2, 1, 1, 8, mode(CONF_MODE_SSAW, 4, 1));
    conf.base.checkpoint_every = 1;
    conf.misfortunes = 2;
    conf.budget[EXPLORE_RESTART] = 2;
    conf.budget[EXPLORE_DIE] = 1;
    explore("restarts", &conf, 100000);
    conf.budget[EXPLORE_RESTART] = 0;
    conf.budget[EXPLORE_STOP] = 2;
    conf.budget[EXPLORE_HASTE] = 2;
    explore("stops", &conf, 40000);
}
