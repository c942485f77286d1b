// planner - who joins which pipeline, with which layers and how many rows; which server keeps what.
//
// Pure and deterministic: the same input gives the same plan on every machine. Ways to group the
// workers are tried (one pipeline a site, one a worker, all in one, and for each number of
// pipelines a balanced grouping inside sites; of few workers every grouping), each is cut by
// partition.h (of few workers in every order and with every cut) and timed by price.h. The fastest
// is then improved by moves of single workers and exchanges of two. Slow pipelines and workers are
// left out where that helps.
//
// Cuts by hand (`plan.stages`) skip the search and go through the same checks. Their text,
// pipelines separated by ';' and stages by ',':
//
//     east/fast:3,east/slow:1;west/big:4    worker by worker, with its transformer blocks
//     east:3,1;west:4                          a site's workers, in the order of their speed
//     3,1;4                                    any workers, fastest first
//
// The embedding counts with the first stage, the final norm and head with the last.

#ifndef PLANNER_H
#define PLANNER_H

#include "model/plan.h"
#include "model/profile.h"

#define PLANNER_AUTO 0u

// All but the first are there to compare with: see planner_plain.h.
typedef enum {
    PLANNER_PATCHPIPE,
    PLANNER_UNIFORM,
    PLANNER_SINGLE,
    PLANNER_DATA_PARALLEL,
    PLANNER_BALANCED,
    PLANNER_HETPIPE,
    PLANNER_EXHAUSTIVE
} planner_method_t;
#define PLANNER_METHODS_COUNT (PLANNER_EXHAUSTIVE + 1)

// What the configuration says. Texts are borrowed until the planner has returned.
typedef struct {
    const model_t *model;
    uint32_t rows;        // N: rows of a global batch.
    uint32_t microbatch;  // Rows.
    schedule_kind_t schedule;
    planner_method_t method;
    uint32_t pipelines;   // How many; PLANNER_AUTO: as many as are fastest.
    const char *stages;   // Cuts by hand; NULL or empty: none.
    bool quick;           // Do not improve what the first ways of grouping gave.
    bool overlap;         // Leases are granted ahead: pushing and pulling overlap with computing.
    double sync_seconds;  // What a round costs besides moving parameters (votes, commit, journal).
} planner_conf_t;

typedef struct {
    const planner_conf_t *conf;
    const plan_node_t *nodes;   // Workers, shards, leads, keepers.
    const profile_t *profiles;  // One for each node; those of workers are read.
    uint32_t nodes_count;
    const profile_link_t *links;  // Between nodes; one of a site pair stands for the pair.
    uint32_t links_count;
    node_id_t lead;
    node_id_t keeper;
} planner_in_t;

// A link that nobody measured is taken to be this one.
#define PLANNER_LATENCY 1e-3   // Seconds.
#define PLANNER_BANDWIDTH 1e7  // Bytes per second; within a site ten times as much.

// Makes the plan: nodes (those that it uses), pipelines, stages, members, shard map, predicted
// times. epoch is 1; run_id, resume and init_file are left for the caller. What it gives has passed
// plan_check. HX_E_ARG and one line in `fault` if there is no such plan; `*out` is then clear.
HX_MUST_USE hx_err_t planner_solve(const planner_in_t *in, plan_t *out, hx_fault_t *fault);

// Sets the predicted times of stages, pipelines and the whole of a plan as it stands (members,
// cuts, rows, depths, shard map), from the profiles and links of `in`. All nodes of the plan are in
// it.
void planner_price(const planner_in_t *in, plan_t *plan);

// "patchpipe", "uniform", "single", "data_parallel", "balanced", "hetpipe", "exhaustive".
const char *planner_method_name(planner_method_t method);

#endif
