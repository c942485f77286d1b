// worker_seat: what a plan means for a worker.

#include "worker/worker_seat.h"

#include "tests/support/seats.h"

#include <criterion/criterion.h>

typedef struct {
    model_t *model;
    blocks_t blocks;
    plan_t plan;
    seat_t seat;
} world_t;

// Six layers; blocks of 4 KiB, so that groups have several.
static void begin(world_t *self, const seats_conf_t *conf, node_id_t worker)
{
    *self = (world_t){0};
    model_conf_t model = model_conf_default();
    model.layers = 4;
    model.heads = 2;
    model.channels = 16;
    model.context = 8;
    model.vocab = 32;
    cr_assert_eq(model_open(&model, &self->model, NULL), HX_OK);
    blocks_make(self->model, 4096, &self->blocks);
    self->plan = seats_plan(conf, self->model);
    seat_make(&self->plan, self->model, &self->blocks, worker, &self->seat);
}

static void finish(world_t *self)
{
    seat_clear(&self->seat);
    cr_assert_null(self->seat.blocks);
    plan_destroy(&self->plan);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
}

static const seats_conf_t THREE = {.stages = 3,
                                   .ends = {2, 3, 6},
                                   .depths = {4, 3, 1},
                                   .rows = 7,
                                   .microbatch = 2,
                                   .schedule = SCHEDULE_H1F1B,
                                   .shards = 3,
                                   .spares = 1};

Test(worker_seat, ends_have_one_neighbour)
{
    world_t world;
    begin(&world, &THREE, SEATS_WORKER);
    cr_assert(world.seat.seated && seat_is_first(&world.seat) && !seat_is_last(&world.seat));
    cr_assert_eq(world.seat.before, NODE_NONE);
    cr_assert_eq(world.seat.after, SEATS_WORKER + 1);
    cr_assert_eq(world.seat.layer_end, 2);
    cr_assert_eq(world.seat.sets, 4);
    cr_assert_eq(world.seat.boundary_size, 8 * 16 * 4);
    finish(&world);
    begin(&world, &THREE, SEATS_WORKER + 2);
    cr_assert(!seat_is_first(&world.seat) && seat_is_last(&world.seat));
    cr_assert_eq(world.seat.before, SEATS_WORKER + 1);
    cr_assert_eq(world.seat.after, NODE_NONE);
    cr_assert_eq(world.seat.sets, 1);
    finish(&world);
}

Test(worker_seat, spare_worker_has_none)
{
    world_t world;
    begin(&world, &THREE, SEATS_WORKER + 3);
    cr_assert(!world.seat.seated);
    cr_assert_eq(world.seat.blocks_count, 0);
    finish(&world);
}

Test(worker_seat, blocks_know_shard_part_and_slice)
{
    world_t world;
    begin(&world, &THREE, SEATS_WORKER + 2);
    const seat_t *const seat = &world.seat;
    // Stage 2 has layers 3, 4 and 5: groups 0 (tied), 4, 5 and 6.
    uint32_t seen = 0;
    for (uint32_t block = 0; block < world.blocks.count; block++) {
        const uint32_t group = world.blocks.blocks[block].group;
        const bool own = group == 0 || group >= 4;
        cr_assert_eq(seat->find[block] != UINT32_MAX, own);
        if (!own) {
            continue;
        }
        seen++;
        const seat_block_t *const at = &seat->blocks[seat->find[block]];
        cr_assert_eq(at->block, block);
        cr_assert_eq(at->shard, group % 3);
        cr_assert_eq(at->node, SEATS_SHARD + group % 3);
        cr_assert_eq(at->size, world.blocks.blocks[block].count * 4);
        cr_assert_eq(at->part, group == 0 ? 1 : 0);
        cr_assert_eq(at->parts, group == 0 ? 2 : 1);
        // Slices are one layer each; the head's are complete first, in slice 2.
        cr_assert_eq(at->slice, group == 4 ? 0 : group == 5 ? 1 : 2);
    }
    cr_assert_eq(seen, seat->blocks_count);
    finish(&world);
}

Test(worker_seat, tied_group_is_complete_with_the_embedding)
{
    world_t world;
    const seats_conf_t one = {.stages = 1,
                              .ends = {6},
                              .rows = 5,
                              .microbatch = 2,
                              .schedule = SCHEDULE_GPIPE,
                              .shards = 1};
    begin(&world, &one, SEATS_WORKER);
    const seat_block_t *const tied = &world.seat.blocks[world.seat.find[0]];
    cr_assert_eq(tied->slice, 0);
    cr_assert_eq(tied->parts, 1);
    cr_assert_eq(world.seat.sets, 3);
    cr_assert_eq(world.seat.blocks_count, world.blocks.count);
    finish(&world);
}
