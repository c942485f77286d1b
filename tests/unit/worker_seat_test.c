// worker_seat: what a plan means for a worker.

#include "worker/worker_seat.h"

#include "tensor/hx_rng.h"
#include "tests/support/seats.h"
#include "tests/support/seed.h"

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
    cr_assert_eq(world.seat.patches[SEAT_BEFORE].members, 0);
    cr_assert_eq(seat_member_of(&world.seat, SEAT_AFTER, SEATS_WORKER + 1), 0);
    cr_assert_eq(seat_member_of(&world.seat, SEAT_AFTER, SEATS_WORKER + 2), UINT32_MAX);
    cr_assert_eq(world.seat.layer_end, 2);
    cr_assert_eq(world.seat.sets, 4);
    cr_assert_eq(world.seat.boundary_size, 8 * 16 * 4);
    finish(&world);
    begin(&world, &THREE, SEATS_WORKER + 2);
    cr_assert(!seat_is_first(&world.seat) && seat_is_last(&world.seat));
    cr_assert_eq(seat_member_of(&world.seat, SEAT_BEFORE, SEATS_WORKER + 1), 0);
    cr_assert_eq(world.seat.patches[SEAT_AFTER].members, 0);
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

static const seats_conf_t PATCHED = {.stages = 2,
                                     .ends = {3, 6},
                                     .depths = {4, 4},
                                     .members = {3, 2},
                                     .weights = {{1, 2, 1}, {3, 1}},
                                     .modes = {PLAN_SPLIT, PLAN_ROTATE},
                                     .rows = 32,
                                     .microbatch = 4,
                                     .schedule = SCHEDULE_H1F1B,
                                     .shards = 2};

Test(worker_seat, members_after_the_first_exchange_blocks_with_it)
{
    world_t world;
    begin(&world, &PATCHED, SEATS_WORKER + 1);
    const seat_t *const seat = &world.seat;
    cr_assert(seat_is_shared(seat) && !seat_is_head(seat));
    cr_assert_eq(seat->member, 1);
    for (uint32_t place = 0; place < seat->blocks_count; place++) {
        const seat_block_t *const at = &seat->blocks[place];
        cr_assert_eq(at->node, SEATS_WORKER);
        cr_assert_eq(at->shard_node, SEATS_SHARD + at->shard);
        cr_assert(at->part == 1 && at->parts == 3);
    }
    finish(&world);
    begin(&world, &PATCHED, SEATS_WORKER);
    cr_assert(seat_is_shared(&world.seat) && seat_is_head(&world.seat));
    const seat_block_t *const tied = &world.seat.blocks[world.seat.find[0]];
    cr_assert_eq(tied->node, tied->shard_node);
    cr_assert(tied->part == 0 && tied->parts == 2, "parts of the contribution");
    finish(&world);
}

Test(worker_seat, members_reserve_what_is_theirs)
{
    world_t world;
    begin(&world, &PATCHED, SEATS_WORKER + 1);
    cr_assert_eq(world.seat.rows, 2, "half of four rows");
    cr_assert_eq(world.seat.sets, 4);
    finish(&world);
    // In turn 0 1 0 0, and so on: of any four in flight three are the first one's.
    begin(&world, &PATCHED, SEATS_WORKER + 3);
    cr_assert_eq(world.seat.rows, 4);
    cr_assert_eq(world.seat.sets, 3);
    finish(&world);
    begin(&world, &PATCHED, SEATS_WORKER + 4);
    cr_assert_eq(world.seat.rows, 4);
    cr_assert_eq(world.seat.sets, 1);
    finish(&world);
}

// A grant that needs more than was reserved would be refused, so no shorter lease may.
Test(worker_seat, shorter_leases_need_no_more)
{
    hx_rng_t rng = hx_rng_seed(seed_of("worker_seat shorter"));
    for (uint32_t round = 0; round < 300; round++) {
        world_t world;
        seats_conf_t conf = PATCHED;
        conf.schedule = (schedule_kind_t)hx_rng_below(&rng, SCHEDULE_KINDS_COUNT);
        conf.rows = 1 + (uint32_t)hx_rng_below(&rng, 60);
        conf.depths[0] = 1 + (uint32_t)hx_rng_below(&rng, 9);
        conf.depths[1] = 1 + (uint32_t)hx_rng_below(&rng, conf.depths[0]);
        for (uint32_t stage = 0; stage < 2; stage++) {
            conf.modes[stage] = (plan_mode_t)hx_rng_below(&rng, PLAN_MODES_COUNT);
            for (uint32_t member = 0; member < 3; member++) {
                conf.weights[stage][member] = 1 + (uint32_t)hx_rng_below(&rng, 5);
            }
        }
        begin(&world, &conf, SEATS_WORKER + hx_rng_below(&rng, 5));
        const uint32_t planned = world.seat.sets;
        plan_t *const plan = &world.plan;
        for (uint32_t rows = 1; rows < conf.rows; rows++) {
            seat_t shorter;
            plan->pipelines[0].rows = rows;
            const node_id_t self = world.seat.patches[SEAT_OWN].nodes[world.seat.member];
            seat_make(plan, world.model, &world.blocks, self, &shorter);
            cr_assert_leq(shorter.sets, planned, "%s, %u rows of %u",
                          schedule_kind_name(conf.schedule), rows, conf.rows);
            seat_clear(&shorter);
        }
        finish(&world);
    }
}
