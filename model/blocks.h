// blocks - the cut of all parameters into the blocks that servers keep and messages carry.
//
// A block is a range of one parameter group's flat vector, of at most `block_size` bytes. Blocks
// are numbered by group, then by offset, so every node derives the same table from the model and
// the size.

#ifndef BLOCKS_H
#define BLOCKS_H

#include "model/model.h"

typedef struct {
    uint32_t group;
    uint64_t first;  // First element, within the group's flat vector.
    uint64_t count;  // Elements (f32).
} block_t;

typedef struct {
    block_t *blocks;
    uint32_t count;
    uint32_t
        *group_first;  // For each group its first block; one entry more than groups, so a group's
    uint32_t groups_count;  // blocks are [group_first[g], group_first[g + 1]).
} blocks_t;

// `block_size` in bytes, at least 4096. Cuts a group evenly to multiples of 16 elements.
void blocks_make(const model_t *model, uint64_t block_size, blocks_t *out);
void blocks_destroy(blocks_t *self);

#endif
