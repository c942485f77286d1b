// sched - the life of a run: gather nodes, measure, plan, run, stop, sum up.
//
//     GATHER -> MEASURE -> PLAN -> READY -> RUN -> STOP -> SUM -> ended
//
// A pure role (net/step.h): it knows names, profiles, versions and numbers of tokens, never a
// tensor. It dials nobody: every node dials it and is answered on that connection. Before PLAN a
// node that is lost just leaves the roster. After that a lost worker is a warning, and a lost
// server ends the run.
//
// Every wait has a limit, and every 5 s a line says for whom.

#ifndef SCHED_H
#define SCHED_H

#include "net/step.h"
#include "scheduler/planner.h"

typedef struct sched sched_t;

// How the line begins that says that STOP is out to all nodes.
#define SCHED_ENDING "ending all nodes: "

// Jobs. `error` tells whether it worked; the result of one that did not is a line that says why.
// All are small; in the simulator all may do nothing.
typedef enum {
    // blob: one line of JSON (no newline), appended to metrics.jsonl.
    SCHED_JOB_METRICS = 1,
    // blob: a node's trace events, a line of JSON each; index: the node's number, from 0. flags 1:
    // the blob is that node's name, which is given before its events.
    SCHED_JOB_TRACE,
    // blob: summary.json. Also ends trace.json. Its end is the end of the role.
    SCHED_JOB_SUMMARY,
    // blob: the plan as text, or as JSON (flags 1). Printed on standard output if the run is
    // plan_only (version 1), else kept as plan.json. flags 2: the run resumes, and metrics.jsonl
    // goes on.
    SCHED_JOB_PLAN,
    // blob: the status as JSON, for who watches the run from outside.
    SCHED_JOB_PAGE,
} sched_job_kind_t;

typedef struct {
    char site[PLAN_NAME_MAX];
    char name[PLAN_NAME_MAX];  // A worker's, with its site: "east/fast". A server site: empty,
    uint32_t count;            // and how many servers it has. Of a worker: 1.
} sched_expected_t;

typedef struct {
    char run[PLAN_NAME_MAX];
    char endpoint[PLAN_ENDPOINT_MAX];  // Where nodes dial, for lines that say what is waited for.
    char mode[PLAN_NAME_MAX];          // Of the summary: "ssaw".
    uint64_t run_id;                   // Random.
    uint64_t conf_hash;
    planner_conf_t planner;  // Its model is borrowed, its `stages` too.

    // Either names of workers and sites of servers, or only how many of each.
    const sched_expected_t *workers;  // Borrowed; may be NULL.
    uint32_t workers_listed;
    uint32_t workers_count;           // How many; with a list, its length.
    const sched_expected_t *servers;  // Borrowed; may be NULL.
    uint32_t servers_listed;
    uint32_t servers_count;  // Processes, not shards.
    uint32_t shards;         // Of each server.

    bool declared;           // Plan by declared speeds (profile_declared), not by measured ones.
    hx_time_t join_timeout;  // Of each wait before the run.
    hx_time_t stop_timeout;  // From STOP_ASK until the lead's DONE.
    bool resume;             // From the newest checkpoint that a keeper names.
    bool init_file;          // Else the keeper serves the first weights.
    bool plan_only;          // Print the plan, stop all nodes with status 0.
    bool plan_json;          // As JSON.

    // Asked about every plan before it is sent, where not NULL: HX_E_ARG and a line ends the run.
    hx_err_t (*check)(void *check_self, const plan_t *plan, hx_fault_t *fault);
    void *check_self;

    hx_time_t page_every;  // Between two SCHED_JOB_PAGE; 0: none.

    // Goals, for the time left; 0: none.
    uint64_t goal_tokens;
    double goal_seconds;
} sched_conf_t;

sched_t *sched_new(const sched_conf_t *conf);
void sched_destroy(sched_t **self);

// A step_fn. Its id is NODE_SCHEDULER.
void sched_step(void *self, const step_in_t *in, step_out_t *out);

// The plan in force, or NULL before there is one. For tests and checkers.
const plan_t *sched_plan(const sched_t *self);
// summary.json as it stood when SCHED_JOB_SUMMARY was given; NULL before.
const char *sched_summary(const sched_t *self);

#endif
