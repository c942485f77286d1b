// worker_fsm - the worker as a state machine: joins, measures, and runs leases of its stage.
//
// It knows plans, leases, blocks and microbatches, and never a tensor: arithmetic is a job
// (worker_job.h), and payloads pass from message to job and from job to message unread, so they may
// be virtual. One role of the step contract; docs/protocol.md says what its messages mean.
//
// The life of a lease:
//
//   GRANT      queued; at most WORKER_LEASES_MAX
//   pulling    when the lease before has about as long to run as a pull takes, at the latest after
//              its last forward: PULL of every block of the stage;
//              each VALUE goes to LOAD into the parameter buffer that is not in use
//   running    one at a time: the operations of schedule_make, each as soon as its message is there
//   pushing    GRAD of each block whose last backward is done, PUSH, ACK
//   announced  READY, again every 2 s until OUTCOME
//
// Where the stage has several members, all but the first PULL from that one and PUSH to it, and it
// pushes the SUM; see docs/protocol.md.
//
// CLOSED or the loss of a neighbour ends it in any of these: a DROP job, and whatever still comes
// for its attempt is dropped. Messages of a neighbour go to the stash at once (STASH), whether
// their operation is next, later, or of a lease that was not granted yet.

#ifndef WORKER_FSM_H
#define WORKER_FSM_H

#include "net/member.h"
#include "net/step.h"
#include "tensor/optim.h"
#include "worker/worker_job.h"

#define WORKER_LEASES_MAX 64u    // Granted and not over.
#define WORKER_EARLY_MAX 64u     // Attempts with messages but without their GRANT.
#define WORKER_JOBS_AHEAD 2u     // Operations given to the job thread and not done.
#define WORKER_SPANS_MAX 65536u  // Of the trace.

typedef struct {
    member_conf_t member;  // Its `model` is borrowed until worker_fsm_destroy.
    uint64_t block_size;   // Bytes; server.block.
    uint64_t pull_window;  // Bytes asked of a shard that are not here yet; 0: the usual.
    uint64_t
        trace_first;  // Training leases [first, last] of this worker, from 1, leave spans; 0: none.
    uint64_t trace_last;
    // sync.mode = local: inner steps of a lease; 0: none. Their rates follow the schedule by the
    // tokens of whole rounds.
    uint32_t local_steps;
    bool local_speed;
    optim_schedule_t schedule;
} worker_fsm_conf_t;

typedef struct worker_fsm worker_fsm_t;

worker_fsm_t *worker_fsm_new(const worker_fsm_conf_t *conf);
void worker_fsm_destroy(worker_fsm_t **self_p);

// A step_fn; `self` is the worker_fsm_t.
void worker_fsm_step(void *self, const step_in_t *in, step_out_t *out);

#endif
