// partition - the exact cut of one pipeline: which consecutive layers each device of a given order
// runs.
//
// Dynamic programming over the suffixes of the chain. A stage costs its device's forward and
// backward of one microbatch plus the time of its message to the next stage and of the gradient
// back; the cut makes the dearest stage as cheap as can be, then the sum of all small. A device may
// stay idle. Memory: a stage that has k - 1 stages behind it keeps k microbatches (1f1b).
//
//     best[1][d][l] = cost of layers l.. on device d
//     best[k][d][l] = min over e, d' > d of max(cost of [l, e) on d, best[k - 1][d'][e])
//
// After PipeDream (Narayanan et al. 2019) and DAPPLE (Fan et al. 2021), with unequal devices and
// links.

#ifndef PARTITION_H
#define PARTITION_H

#include "model/model.h"
#include "model/profile.h"

typedef struct {
    const model_t *model;
    uint32_t microbatch;  // Rows.
    uint32_t devices_count;
    const profile_t *const *devices;  // In the order in which activations pass them.
    const uint32_t *sites;            // Site of each device, below sites_count.
    uint32_t sites_count;
    const double *hop;    // Seconds of one boundary message, sites_count x sites_count, from x to.
    uint32_t stages_max;  // No cut has more; 0: as many as devices and layers allow.
} partition_in_t;

typedef struct {
    uint32_t device;  // Index in `devices`.
    uint32_t layer_first;
    uint32_t layer_end;
} partition_stage_t;

typedef struct partition partition_t;

// Solves for every number of stages at once. Copies nothing: `in` and what it points to must
// outlive it.
partition_t *partition_new(const partition_in_t *in);
void partition_destroy(partition_t **self);

uint32_t partition_stages_max(const partition_t *self);
// The best cut into exactly `stages` (1 to stages_max) stages: writes them to `out`, gives the
// dearest stage's cost through `slowest`. False if none fits into memory.
bool partition_cut(const partition_t *self, uint32_t stages, partition_stage_t *out,
                   double *slowest);

// Forward and backward of layers [first, end) for one microbatch of `rows`, from times measured at
// another number of rows.
profile_time_t partition_time(const profile_t *profile, const model_t *model, uint32_t rows,
                              uint32_t first, uint32_t end);

// Bytes that a stage needs: parameters twice (the next version is being pulled), gradients twice
// (one set being pushed), `depth` activation sets, logits.
uint64_t partition_memory(const model_t *model, uint32_t rows, uint32_t first, uint32_t end,
                          uint32_t depth);
// The largest depth that fits in `memory` bytes; 0: not even 1.
uint32_t partition_depth_max(const model_t *model, uint32_t rows, uint32_t first, uint32_t end,
                             uint64_t memory);

#endif
