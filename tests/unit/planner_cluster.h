// planner_cluster - small clusters for tests of the planner, by hand and at random.

#ifndef PLANNER_CLUSTER_H
#define PLANNER_CLUSTER_H

#include "scheduler/planner.h"
#include "tensor/hx_rng.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define NODES_MAX 32

typedef struct {
    model_t *model;
    planner_conf_t conf;
    plan_node_t nodes[NODES_MAX];
    profile_t profiles[NODES_MAX];
    profile_link_t links[NODES_MAX];
    planner_in_t in;
} cluster_t;

static inline void add_node(cluster_t *self, plan_role_t role, const char *site, const char *name)
{
    plan_node_t *const node = &self->nodes[self->in.nodes_count];
    *node = (plan_node_t){.id = 100 + self->in.nodes_count, .role = role};
    snprintf(node->site, sizeof node->site, "%s", site);
    snprintf(node->name, sizeof node->name, "%s/%s", site, name);
    self->in.nodes_count++;
}

static inline void begin(cluster_t *self, uint32_t layers, uint32_t rows, uint32_t microbatch)
{
    model_conf_t conf = model_conf_default();
    conf.layers = layers;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 64;
    *self = (cluster_t){0};
    cr_assert_eq(model_open(&conf, &self->model, NULL), HX_OK);
    self->conf = (planner_conf_t){.model = self->model,
                                  .rows = rows,
                                  .microbatch = microbatch,
                                  .schedule = SCHEDULE_H1F1B,
                                  .sync_seconds = 1e-3};
    self->in = (planner_in_t){.conf = &self->conf,
                              .nodes = self->nodes,
                              .profiles = self->profiles,
                              .links = self->links,
                              .lead = 100,
                              .keeper = 101};
    add_node(self, PLAN_LEAD, "east", "ps0.lead");
    add_node(self, PLAN_KEEPER, "east", "ps0.keeper");
    add_node(self, PLAN_SHARD, "east", "ps0.shard0");
}

// A worker that needs `slow` times 3 ms for a block's microbatch.
static inline void add_worker(cluster_t *self, const char *site, const char *name, double slow)
{
    add_node(self, PLAN_WORKER, site, name);
    self->profiles[self->in.nodes_count - 1] = (profile_t){.microbatch = self->conf.microbatch,
                                                           .embed = {0.1e-3 * slow, 0.1e-3 * slow},
                                                           .block = {1e-3 * slow, 2e-3 * slow},
                                                           .head = {0.5e-3 * slow, 1e-3 * slow},
                                                           .memory = (uint64_t)1 << 30,
                                                           .threads = 1,
                                                           .slowdown = 1};
}

static inline void end(cluster_t *self)
{
    model_destroy(&self->model);
}

static inline void random_cluster(cluster_t *self, hx_rng_t *rng)
{
    begin(self, 1 + (uint32_t)hx_rng_below(rng, 8), 8 + (uint32_t)hx_rng_below(rng, 56),
          1 + (uint32_t)hx_rng_below(rng, 4));
    self->conf.overlap = hx_rng_below(rng, 2) == 0;
    self->conf.schedule = (schedule_kind_t)hx_rng_below(rng, SCHEDULE_KINDS_COUNT);
    static const char *const sites[] = {"east", "west", "north"};
    if (hx_rng_below(rng, 2)) {
        add_node(self, PLAN_SHARD, "west", "ps1.shard0");
    }
    const uint32_t workers = 1 + (uint32_t)hx_rng_below(rng, 6);
    for (uint32_t at = 0; at < workers; at++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", at);
        add_worker(self, sites[hx_rng_below(rng, 3)], name, 1 + 7 * hx_rng_unit(rng));
    }
    self->in.links_count = 3;
    for (uint32_t link = 0; link < 3; link++) {
        self->links[link] = (profile_link_t){
            .from = 100 + hx_rng_below(rng, self->in.nodes_count),
            .to = 100 + hx_rng_below(rng, self->in.nodes_count),
            .latency = hx_rng_unit(rng) * 5e-3,
            .bandwidth = 1e6 + hx_rng_unit(rng) * 1e8,
        };
    }
}

#endif
