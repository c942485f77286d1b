// blocks_test - the cut covers every group once, within its limit, evenly.

#include "model/blocks.h"

#include <criterion/criterion.h>

static model_t *open_model(uint32_t channels, uint32_t vocab)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
    conf.heads = 1;
    conf.channels = channels;
    conf.context = 4;
    conf.vocab = vocab;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    return model;
}

static void check_cover(const model_t *model, uint64_t block_size)
{
    blocks_t blocks;
    blocks_make(model, block_size, &blocks);
    cr_assert_eq(blocks.groups_count, model_groups_count(model));
    cr_assert_eq(blocks.group_first[blocks.groups_count], blocks.count);
    for (uint32_t group = 0; group < blocks.groups_count; group++) {
        const uint32_t first = blocks.group_first[group];
        const uint32_t end = blocks.group_first[group + 1];
        uint64_t at = 0;
        for (uint32_t block = first; block < end; block++) {
            cr_assert_eq(blocks.blocks[block].group, group);
            cr_assert_eq(blocks.blocks[block].first, at);
            cr_assert_leq(blocks.blocks[block].count * 4, block_size);
            cr_assert_gt(blocks.blocks[block].count, 0);
            if (block + 1 < end) {
                cr_assert_eq(blocks.blocks[block].count % 16, 0);
                cr_assert_eq(blocks.blocks[block].count, blocks.blocks[first].count);
            }
            at += blocks.blocks[block].count;
        }
        cr_assert_eq(at, model_group(model, group)->size);
        const uint64_t fewest = (model_group(model, group)->size * 4 + block_size - 1) / block_size;
        cr_assert_geq(end - first, fewest);
        // Rounding to 16 elements may cost one block more, no further.
        cr_assert_leq(end - first, fewest + 1);
    }
    blocks_destroy(&blocks);
    cr_assert_null(blocks.blocks);
}

Test(blocks, cover_every_group_once_within_the_limit)
{
    for (uint32_t channels = 1; channels <= 67; channels += 11) {
        model_t *model = open_model(channels, 1000 + channels);
        check_cover(model, 4096);
        check_cover(model, 5000);
        check_cover(model, 65536 + 4);
        check_cover(model, 1 << 30);
        model_destroy(&model);
    }
}

Test(blocks, a_small_group_is_one_block)
{
    model_t *model = open_model(8, 16);
    blocks_t blocks;
    blocks_make(model, 1 << 20, &blocks);
    cr_assert_eq(blocks.count, model_groups_count(model));
    blocks_destroy(&blocks);
    model_destroy(&model);
}
