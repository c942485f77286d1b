// blocks - an even cut of every group, so that no block is a small rest.

#include "model/blocks.h"

#include <stdlib.h>

#define ALIGN 16u  // Elements.

// Elements of a block of this group: as few blocks as the limit allows, all but the last equal.
static uint64_t cut_of(uint64_t size, uint64_t limit)
{
    const uint64_t pieces = (size + limit - 1) / limit;
    const uint64_t piece = (size + pieces - 1) / pieces;
    return (piece + ALIGN - 1) / ALIGN * ALIGN;
}

void blocks_make(const model_t *model, uint64_t block_size, blocks_t *out)
{
    HX_ASSERT(block_size >= 4096);
    const uint64_t limit = block_size / sizeof(float) / ALIGN * ALIGN;
    const uint32_t groups = model_groups_count(model);
    *out = (blocks_t){.groups_count = groups};
    out->group_first = hx_new((size_t)groups + 1, sizeof *out->group_first);

    uint64_t count = 0;
    for (uint32_t group = 0; group < groups; group++) {
        const uint64_t size = model_group(model, group)->size;
        const uint64_t piece = cut_of(size, limit);
        out->group_first[group] = (uint32_t)count;
        count += (size + piece - 1) / piece;
        HX_ASSERT(count <= UINT32_MAX);
    }
    out->group_first[groups] = (uint32_t)count;
    out->count = (uint32_t)count;
    out->blocks = hx_new(count, sizeof *out->blocks);

    uint32_t at = 0;
    for (uint32_t group = 0; group < groups; group++) {
        const uint64_t size = model_group(model, group)->size;
        const uint64_t piece = cut_of(size, limit);
        for (uint64_t first = 0; first < size; first += piece) {
            out->blocks[at++] =
                (block_t){.group = group, .first = first, .count = HX_MIN(piece, size - first)};
        }
    }
    HX_ASSERT(at == out->count);
}

void blocks_destroy(blocks_t *self)
{
    free(self->blocks);
    free(self->group_first);
    *self = (blocks_t){0};
}
