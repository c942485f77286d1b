// seats - small plans of one pipeline, for tests of roles that need one.
//
// Node ids are fixed, so that expected traces can name them.

#ifndef SEATS_H
#define SEATS_H

#include "model/plan.h"

#define SEATS_STAGES_MAX 16u
#define SEATS_MEMBERS_MAX 8u  // Of one stage.
#define SEATS_LEAD ((node_id_t)10)
#define SEATS_KEEPER ((node_id_t)11)
#define SEATS_SHARD ((node_id_t)20)    // The first shard's; the others follow.
#define SEATS_WORKER ((node_id_t)100)  // Stage by stage its members, then spare workers.

typedef struct {
    uint32_t stages;
    uint32_t ends[SEATS_STAGES_MAX];     // Of each stage: one past its last layer.
    uint32_t depths[SEATS_STAGES_MAX];   // 0: stages - stage.
    uint32_t members[SEATS_STAGES_MAX];  // 0: 1.
    uint32_t weights[SEATS_STAGES_MAX][SEATS_MEMBERS_MAX];  // In proportion to shares; 0: 1.
    plan_mode_t modes[SEATS_STAGES_MAX];
    uint32_t workers[SEATS_STAGES_MAX][SEATS_MEMBERS_MAX];  // With `seated`: their numbers.
    bool seated;  // False: workers sit in the order of their numbers.
    uint32_t rows;
    uint32_t microbatch;
    schedule_kind_t schedule;
    bool recompute;
    uint32_t shards;  // Groups go to them in turn.
    uint32_t spares;  // Workers in no stage.
    uint32_t epoch;   // 0: 1.
} seats_conf_t;

// Seats of all stages and spare workers.
uint32_t seats_workers(const seats_conf_t *conf);

// A plan that passes plan_check; to be given back with plan_destroy.
plan_t seats_plan(const seats_conf_t *conf, const model_t *model);

#endif
