// worker_job - what a worker's state machine asks of its job thread, and what comes back.
//
// The contract between worker_fsm (which names jobs), stage_jobs (which computes them) and the
// simulator (which only knows how long they take). Jobs of a worker run one at a time, in the order
// in which they were given, so a job may rely on all earlier ones. Below, "in" are fields of
// step_job_t that the machine sets, "out" what a result adds; blobs of tensors may be virtual.
//
// A stage's layers are cut into at most WORKER_SLICES_MAX slices. The very last backward of a lease
// is asked for slice by slice, deepest first, each followed by the GRAD jobs of the blocks that it
// completed, so that pushing overlaps with what is left of the backward.

#ifndef WORKER_JOB_H
#define WORKER_JOB_H

#include "tensor/hx.h"

#define WORKER_SLICES_MAX 4u

typedef enum {
    // Measure this device. Out: blob, a profile as of net/payload.h (it always has bytes).
    WORKER_JOB_PROFILE = 1,

    // Reserve all memory of a stage; what an earlier stage had is given back first. In: layers
    // [index, part); micro: activation sets; rows: of one microbatch; flags: RECOMPUTE.
    // Error HX_E_NOMEM: it does not fit, nothing is reserved.
    WORKER_JOB_OPEN,

    // Copy a block into a parameter buffer. In: index (block), part (buffer, 0 or 1), version,
    // blob.
    WORKER_JOB_LOAD,

    // Keep bytes until their operation runs or DROP. In: attempt, part (WORKER_STASH_*), blob; of a
    // neighbour's message: micro, row_first, rows; of a member's gradient: index (block), micro
    // (member). Takes no time.
    WORKER_JOB_STASH,

    // Run all layers [index, part) of the stage forward. In: attempt, micro, row_first and rows
    // (this worker's of the microbatch), tokens (nominal, of the whole lease), flags: EVALUATION,
    // BUFFER.
    // A stage that is not the first takes the activation of these rows from the stash, where it may
    // lie in several pieces.
    // Out: blob: the activation for the next stage, f32 (rows, context, channels), or on the last
    // stage none, but value (loss, summed over tokens) and tokens (how many had a target).
    WORKER_JOB_FORWARD,

    // Run layers [index, part) backward: the whole stage, or one slice. In: as FORWARD, and flags
    // BACKWARD_INPUT, BACKWARD_WEIGHT (one of them or both). A stage that is not the last takes its
    // gradient from the stash when it begins (part is the stage's end) with the input half. Out:
    // blob: if index is the first layer of a stage that is not the first and the input half ran:
    // the gradient for the stage before, same shape as the activation; else none.
    WORKER_JOB_BACKWARD,

    // Copy a block's gradient sum out and zero it; with inner steps, what they changed of it. In:
    // attempt, index (block), flags BUFFER.
    // Out: blob, f32 x count; tokens: xxh3 (64 bits, seed 0) of its bytes.
    WORKER_JOB_GRAD,

    // Add up what members of the stage stashed of a block's gradient, in the order of members; it
    // leaves the stash. In: attempt, index (block). Out: as GRAD.
    WORKER_JOB_SUM,

    // Forget an attempt: its stash, its activation sets, what it added to gradients. Takes no time
    // to speak of. In: attempt; flags EVALUATION if nothing can have been added.
    WORKER_JOB_DROP,
    // value: from here on computing is stretched to so many times its time. The program's own.
    WORKER_JOB_SLOWDOWN,
} worker_job_kind_t;

// Bits of step_job_t.flags.
#define WORKER_JOB_EVALUATION 1u        // Held-out rows, forward only.
#define WORKER_JOB_BUFFER 2u            // Parameters of buffer 1, else of buffer 0.
#define WORKER_JOB_RECOMPUTE 4u         // Of OPEN.
#define WORKER_JOB_BACKWARD_INPUT 8u    // The gradient for the stage before.
#define WORKER_JOB_BACKWARD_WEIGHT 16u  // The gradients of parameters.
#define WORKER_JOB_INNER 32u            // After it an inner optimizer step, of rate `value`.

// step_job_t.part of STASH.
#define WORKER_STASH_ACTIVATION 0u
#define WORKER_STASH_GRADIENT 1u
#define WORKER_STASH_MEMBER 2u  // A member's gradient of a block.

// "forward"; "?" for an unknown number.
const char *worker_job_name(uint32_t kind);

// How many slices layers [first, end) are cut into, and where slice `slice` begins; slice
// `worker_slices` begins at `end`. Even to one layer, larger ones first.
uint32_t worker_slices(uint32_t first, uint32_t end);
uint32_t worker_slice_first(uint32_t first, uint32_t end, uint32_t slice);

#endif
