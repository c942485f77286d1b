// worker_state - the inside of worker_fsm, for its files: worker_fsm.c (joining, plans, ends),
// worker_run.c (leases and messages), worker_work.c (leases and jobs) and worker_patch.c (members
// of one stage among each other). Nobody else includes it.

#ifndef WORKER_STATE_H
#define WORKER_STATE_H

#include "worker/measure.h"
#include "worker/trace.h"
#include "worker/worker_fsm.h"
#include "worker/worker_lease.h"

#define WORKER_WORD_EVERY HX_SEC(10)  // Between two lines that say what is waited for.

// What the first member of a stage knows of a block for the others.
typedef struct {
    blob_t *value;  // The newest weights for training, or NULL;
    uint64_t version;
    uint64_t *wanted;  // by member: version asked for and not yet given, plus 1; 0: none.
} worker_share_t;

struct worker_fsm {
    worker_fsm_conf_t conf;
    member_t member;
    measure_t measure;
    blocks_t blocks;
    trace_t *trace;

    seat_t seat;
    bool open;               // The stage of this plan is reserved.
    worker_share_t *shares;  // By place of the block; NULL until a member asks.

    lease_t *leases[WORKER_LEASES_MAX];  // Granted, in that order.
    uint32_t leases_count;
    lease_t *early[WORKER_EARLY_MAX];
    uint32_t early_count;
    uint64_t
        attempt_last;  // Highest one granted so far; lower ones that are not in `leases` are over.
    uint64_t trained;  // Training leases granted so far.

    uint32_t computing;    // FORWARD and BACKWARD jobs given and not done, of any lease.
    uint32_t buffer_last;  // Buffer of the lease that ran last.
    hx_time_t pull_time;   // How long a pull takes: a moving mean; 0: not known yet.
    hx_time_t
        idle_since;  // The running lease has waited for a message since then, or HX_TIME_NEVER.
    hx_time_t progress_at;  // Last event that brought a lease further.
    hx_time_t word_at;      // When the next line says what is waited for.
};

// worker_run.c
// Drops all leases and early messages (a new plan came).
void worker_run_reset(worker_fsm_t *self, step_out_t *out);
// A message from the lead, a shard or a neighbour.
void worker_run_message(worker_fsm_t *self, const step_in_t *in, step_out_t *out);
// A stage next to this one is gone.
void worker_run_lost(worker_fsm_t *self, const step_in_t *in, step_out_t *out);
// Begins to pull for the next lease, if the one before lets it.
void worker_run_pull(worker_fsm_t *self, hx_time_t now, step_out_t *out);

// The lease of an attempt, or NULL.
lease_t *worker_lease_find(const worker_fsm_t *self, uint64_t attempt);
// The early one of the message's attempt, made if need be; NULL, with a note: the attempt is over.
lease_t *worker_lease_early(worker_fsm_t *self, const step_in_t *in, step_out_t *out);
// The place of a block in the seat, or UINT32_MAX.
uint32_t worker_block_place(const worker_fsm_t *self, uint32_t block);
// Adds a span if the lease is traced.
void worker_span(worker_fsm_t *self, const lease_t *lease, trace_kind_t kind, uint32_t micro,
                 hx_time_t begin, hx_time_t end);
// Something came further: the line that says what is waited for is put off.
void worker_progress(worker_fsm_t *self, hx_time_t now);

// worker_patch.c
// PULL or PUSH of another member of the stage. False: the sender is none, or this is not the first.
bool worker_patch_message(worker_fsm_t *self, const step_in_t *in, step_out_t *out);
// Weights for training came: those who asked get them.
void worker_patch_value(worker_fsm_t *self, uint32_t place, const step_in_t *in, step_out_t *out);
// A block's own gradient is there. False: nothing is to be added to it.
bool worker_patch_gradient(worker_fsm_t *self, lease_t *lease, uint32_t place, const step_in_t *in,
                           step_out_t *out);
// A lease was granted: gradients that came before may be all there will be.
void worker_patch_granted(worker_fsm_t *self, lease_t *lease, step_out_t *out);
void worker_patch_clear(worker_fsm_t *self);

// worker_work.c
// FORWARD, BACKWARD and GRAD ended.
void worker_work_job(worker_fsm_t *self, const step_in_t *in, step_out_t *out);
// To be called at the end of every step: gives out what can run, repeats what is to be repeated,
// asks for the next wake-up.
void worker_work_advance(worker_fsm_t *self, hx_time_t now, step_out_t *out);

#endif
