// node - the driver of the daemons: runs roles over ZeroMQ, the real clock, threads and signals.
//
// A process hosts one or more nodes. Each has a loop thread (its link, its role's steps) and a job
// thread beside it; they share nothing and talk by a pipe. The thread that calls node_run waits for
// signals and for the ends.

#ifndef NODE_H
#define NODE_H

#include "net/link.h"
#include "net/step.h"

#define NODE_COUNT_MAX 256
#define NODE_FLUSH_LIMIT HX_SEC(2)  // For the last words of a role to be acknowledged.
#define NODE_STOP_LIMIT HX_SEC(30)  // From a stop (signal, failed node) to the end by force.

// Runs a job, in the job thread. May set job->value, ->tokens, ->flags, ->attempt (the result
// carries them) and give a result: a count for the driver. An error is the role's to judge.
typedef hx_err_t node_job_fn(void *worker, step_job_t *job, blob_t **result);

// Makes the role once its endpoints are bound (as others should dial them; "": none), in the node's
// thread. NULL with a line in `fault`: the node ends with status 2.
typedef void *node_make_fn(void *maker, const char *control, const char *data, hx_fault_t *fault);

typedef struct {
    char name[PLAN_NAME_MAX];  // For logs.
    link_conf_t link;          // Its texts are borrowed until node_run has returned.
    node_make_fn *make;
    void *maker;
    step_fn *step;
    node_job_fn *job;
    void *worker;
} node_conf_t;

typedef struct {
    int status;
    char reason[STEP_NOTE_MAX];
} node_end_t;

// Call first in `main`, before any thread: CZMQ set up, its signal handling off, SIGPIPE ignored,
// SIGINT and SIGTERM blocked for this thread and all that follow, the descriptor limit raised.
// HX_E_UNSUPPORTED: the libzmq that was loaded is too old, or hardly any file may be opened.
HX_MUST_USE hx_err_t node_prepare(hx_fault_t *fault);

// Runs the nodes (all of one scheduler, whose name must resolve) until all have ended; a node that
// fails asks the others to stop. SIGINT and SIGTERM reach every role as STEP_SIGNAL; a second one,
// or NODE_STOP_LIMIT, ends the process by force with status 130. Returns the worst status (1 and 2
// before 130 before 0); `end` (may be NULL) has the reason that belongs to it.
int node_run(const node_conf_t *nodes, uint32_t count, node_end_t *end);

#endif
