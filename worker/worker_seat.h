// worker_seat - what a plan means for one worker: its layers, neighbours, blocks and schedule.
//
// Pure data, made once for each plan.

#ifndef WORKER_SEAT_H
#define WORKER_SEAT_H

#include "model/blocks.h"
#include "model/patch.h"
#include "worker/worker_job.h"

// One block of the stage. The first member of a stage exchanges blocks with the shards, the others
// with it: they take weights for training from it and give it their gradients.
typedef struct {
    uint32_t block;
    uint32_t shard;        // The number of its shard,
    node_id_t shard_node;  // and id.
    node_id_t node;        // Who is pulled from and pushed to: the shard, or the first member.
    uint32_t part;         // What the gradient is: the stage's in a contribution,
    uint32_t parts;        // or the member's in the stage.
    uint32_t slice;        // The slice whose backward completes its gradient.
    uint64_t size;         // Bytes.
} seat_block_t;

// The members of a stage.
typedef struct {
    plan_mode_t mode;
    uint32_t members;  // 0: there is no such stage.
    node_id_t *nodes;
    double *shares;
} seat_patch_t;

typedef enum { SEAT_BEFORE, SEAT_OWN, SEAT_AFTER, SEAT_PATCHES } seat_side_t;

typedef struct {
    bool seated;  // False: in no stage, and all below is zero.
    uint32_t epoch;
    uint32_t pipeline;
    uint32_t stage;
    uint32_t stages;
    uint32_t member;                     // Of the own stage.
    seat_patch_t patches[SEAT_PATCHES];  // The own stage and those next to it.
    uint32_t layer_first;                // Layers [layer_first, layer_end).
    uint32_t layer_end;
    uint32_t microbatch;     // Rows,
    uint32_t rows;           // and those of it that are this member's, at most; from 1.
    uint64_t boundary_size;  // Bytes of one row's activation on a stage boundary.
    schedule_kind_t schedule;
    uint32_t *depths;  // Of all stages.
    uint32_t sets;     // Activation sets that a lease of the planned rows needs; from 1.
    bool recompute;
    uint32_t step_rows;    // Rows of one inner step (sync.mode = local); 0: there are none.
    uint64_t round_rows;   // Rows of a whole round then.
    seat_block_t *blocks;  // Ascending.
    uint32_t blocks_count;
    uint32_t *find;  // For each block of the model its place in `blocks`, or UINT32_MAX.
} seat_t;

// `plan` has passed plan_check. `*out` must be clear.
void seat_make(const plan_t *plan, const model_t *model, const blocks_t *blocks, node_id_t worker,
               seat_t *out);
void seat_clear(seat_t *self);
// Cuts the leases of a seat of one stage into `steps` inner steps of the pipeline's rows; with
// `by_speed` all pipelines have steps of equal rows, and a fast one has more of them. Whole
// microbatches in either case.
void seat_split(seat_t *self, const plan_t *plan, uint32_t steps, bool by_speed);

bool seat_is_first(const seat_t *self);
bool seat_is_last(const seat_t *self);

// Whether the stage has several members, and whether this is the first of them.
bool seat_is_shared(const seat_t *self);
bool seat_is_head(const seat_t *self);
// The place of a node among the members of a stage; UINT32_MAX: it is none of them.
uint32_t seat_member_of(const seat_t *self, seat_side_t side, node_id_t node);

// How a stage divides a lease of so many rows; to be given back with patch_clear. The stage exists.
void seat_divide(const seat_t *self, seat_side_t side, uint32_t rows, patch_t *out);

// How the stage walks a lease of that many microbatches.
schedule_in_t seat_schedule(const seat_t *self, uint32_t micros);
// The operations of the stage that are the member's: those on microbatches of which it has rows.
// Keeps them in order at the front of `ops`, returns how many.
uint32_t seat_own_ops(const patch_t *patch, uint32_t member, schedule_op_t *ops, uint32_t count);

#endif
