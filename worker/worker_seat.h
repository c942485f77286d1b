// worker_seat - what a plan means for one worker: its layers, neighbours, blocks and schedule.
//
// Pure data, made once for each plan.

#ifndef WORKER_SEAT_H
#define WORKER_SEAT_H

#include "model/blocks.h"
#include "model/plan.h"
#include "worker/worker_job.h"

// One block of the stage.
typedef struct {
    uint32_t block;
    uint32_t shard;  // Its number,
    node_id_t node;  // and id.
    uint32_t part;   // What this stage's gradient is in a contribution.
    uint32_t parts;
    uint32_t slice;  // The slice whose backward completes its gradient.
    uint64_t size;   // Bytes.
} seat_block_t;

typedef struct {
    bool seated;  // False: in no stage, and all below is zero.
    uint32_t epoch;
    uint32_t pipeline;
    uint32_t stage;
    uint32_t stages;
    uint32_t layer_first;  // Layers [layer_first, layer_end).
    uint32_t layer_end;
    uint32_t microbatch;     // Rows.
    uint64_t boundary_size;  // Bytes of one row's activation on a stage boundary.
    schedule_kind_t schedule;
    uint32_t *depths;  // Of all stages.
    uint32_t sets;     // Activation sets that a lease of the planned rows needs.
    bool recompute;
    node_id_t before;  // The stage before and the stage after; NODE_NONE at the ends.
    node_id_t after;
    seat_block_t *blocks;  // Ascending.
    uint32_t blocks_count;
    uint32_t *find;  // For each block of the model its place in `blocks`, or UINT32_MAX.
} seat_t;

// `plan` has passed plan_check. `*out` must be clear.
void seat_make(const plan_t *plan, const model_t *model, const blocks_t *blocks, node_id_t worker,
               seat_t *out);
void seat_clear(seat_t *self);

bool seat_is_first(const seat_t *self);
bool seat_is_last(const seat_t *self);

// How the stage walks a lease of that many microbatches.
schedule_in_t seat_schedule(const seat_t *self, uint32_t micros);

#endif
