// planned - a run of real processes on a plan that the test writes: the calling process plays the
// scheduler, and gives the nodes the test's plan where the planner's would go out.

#ifndef PLANNED_H
#define PLANNED_H

#include "model/plan.h"
#include "tests/support/run.h"

#define PLANNED_WORKERS_MAX 8u

// Changes the planner's plan, which has a pipeline for each worker, into another of the same nodes.
// Pipelines, stages and members may be given new arrays; the old ones are to be freed.
typedef void planned_fn(void *self, plan_t *plan);

typedef struct {
    const char *const *sets;  // "key=value", to all programs; NULL-terminated.
    uint32_t workers;         // "w1" to "wN", as many as the run waits for.
    const char *slowdown;     // Of each of them, as text; NULL: none.
    planned_fn *change;
    void *change_self;
} planned_conf_t;

// Starts harmony-ps and harmony-worker (site "here") as often as `run` waits for them, plays the
// scheduler to the end, and returns its status, or 1 if a process ended badly. A plan that does not
// pass plan_check fails an assertion. It takes over the signals of this process, as node_prepare
// says.
int planned_run(run_t *run, const planned_conf_t *conf);

#endif
