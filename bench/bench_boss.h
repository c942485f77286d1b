// bench_boss - stands in for the scheduler, so that real shards can be driven by a bench.
//
// It takes in lead, keeper, shards and workers with the fixed ids below, gives them one plan (a
// pipeline of one stage for each worker), and when the lead says DONE it stops them all. A pure
// role.

#ifndef BENCH_BOSS_H
#define BENCH_BOSS_H

#include "net/member.h"

#define BENCH_LEAD ((node_id_t)2)
#define BENCH_KEEPER ((node_id_t)3)
#define BENCH_SHARD ((node_id_t)1000)   // The first shard's; the others follow.
#define BENCH_WORKER ((node_id_t)2000)  // Likewise.
#define BENCH_SHARDS_MAX 16u
#define BENCH_WORKERS_MAX 16u

typedef struct {
    const model_t *model;
    uint32_t shards;
    uint32_t workers;
} bench_boss_conf_t;

typedef struct {
    bench_boss_conf_t conf;
    plan_t plan;
    uint32_t joined;   // Nodes that have registered,
    uint32_t stopped;  // and that have answered STOP.
    bool stopping;
    int status;
    char reason[WIRE_TEXT_MAX];
} bench_boss_t;

void bench_boss_init(bench_boss_t *self, const bench_boss_conf_t *conf);
void bench_boss_clear(bench_boss_t *self);
void bench_boss_step(void *self, const step_in_t *in, step_out_t *out);

// What a node with one of the ids above tells the boss of itself; endpoints are left empty.
member_conf_t bench_boss_member(node_id_t id, const model_t *model);

// A keeper that is asked for nothing: a member_t that belongs to the run and stops with it.
void bench_keeper_step(void *self, const step_in_t *in, step_out_t *out);

#endif
