// inner: what a lease with inner steps pushes is how far its own optimizer steps came, by their
// definition.

#include "worker/inner.h"

#include "tests/unit/worker_pipeline.h"

#include <math.h>

#define STEPS 3u
#define STEP_ROWS 4u

// The gradient of these rows at the world's parameters, mean over tokens; to be freed.
static float *gradient_of(const world_t *world, uint64_t row_first, uint32_t rows)
{
    static pipeline_t single;
    const seats_conf_t conf = {.stages = 1,
                               .ends = {LAYERS + 2},
                               .rows = rows,
                               .microbatch = rows,
                               .schedule = SCHEDULE_1F1B,
                               .shards = 1};
    const uint32_t steps = local_steps;
    local_steps = 0;
    begin(&single, world, &conf, 1);
    grant(&single, row_first, rows, false);
    settle(&single);
    float *const sum = single.leases[0].sum;
    single.leases[0].sum = NULL;
    finish(&single);
    local_steps = steps;
    return sum;
}

// AdamW's own state, over all parameters of a world.
typedef struct {
    world_t *world;
    float *m;
    float *v;
    const float *g;
    uint64_t base;  // Of the group in hand.
    optim_step_t step;
} adam_t;

static void step_run_of(void *self_, uint64_t first, uint64_t count, bool decay)
{
    adam_t *const self = self_;
    const uint64_t at = self->base + first;
    float *const w = self->world->params + at;
    const optim_block_t block = {.count = count,
                                 .decay = decay,
                                 .w = w,
                                 .m = self->m + at,
                                 .v = self->v + at,
                                 .g = self->g + at,
                                 .w_out = w,
                                 .m_out = self->m + at,
                                 .v_out = self->v + at};
    cr_assert_eq(optim_apply(self->world->backend, 0, &local_inner.optim, &self->step, &block),
                 HX_OK);
}

// One step by the definition: gradient, clip, AdamW, in the world's parameters.
static void step_world(adam_t *self, uint64_t row_first, uint32_t rows, double lr)
{
    world_t *const world = self->world;
    float *const g = gradient_of(world, row_first, rows);
    double squares = 0;
    for (uint64_t at = 0; at < world->params_count; at++) {
        squares += (double)g[at] * g[at];
    }
    const double norm = sqrt(squares);
    self->g = g;
    self->step.lr = lr;
    self->step.scale = 1;
    self->step.gradient_scale = norm > local_inner.clip ? local_inner.clip / norm : 1;
    self->step.step++;
    for (uint32_t block = 0; block < world->blocks.count; block++) {
        const block_t *const cut = &world->blocks.blocks[block];
        self->base = world->block_first[block] - cut->first;
        model_decay_runs(world->model, cut->group, cut->first, cut->count, step_run_of, self);
    }
    free(g);
}

static void set_local(void)
{
    local_steps = STEPS;
    local_inner = (inner_conf_t){.optim = optim_conf_default(OPTIM_ADAMW), .clip = 0.5};
    // It falls so fast that a wrong place in it would show.
    local_schedule = (optim_schedule_t){.lr = 0.02,
                                        .lr_final_ratio = 0.1,
                                        .total_tokens = 14u * STEPS * STEP_ROWS * CONTEXT,
                                        .decay = OPTIM_DECAY_LINEAR};
}

// The world's parameters stay; the answer is what `lease` of these rows has to push.
static void compare(const world_t *world, const pipeline_t *pipeline, uint32_t lease,
                    const float *before)
{
    double apart = 0;
    double all = 0;
    for (uint64_t at = 0; at < world->params_count; at++) {
        const double delta = (double)before[at] - world->params[at];
        apart += pow(delta - pipeline->leases[lease].sum[at], 2);
        all += pow(delta, 2);
    }
    cr_assert_gt(all, 0);
    cr_assert_leq(sqrt(apart / all), 1e-4, "lease %u differs by %g", lease, sqrt(apart / all));
}

static void lease_is_its_steps(schedule_kind_t kind, uint32_t microbatch)
{
    static world_t world;
    static pipeline_t pipeline;
    set_local();
    world_begin(&world);
    const uint64_t size = world.params_count * sizeof(float);
    adam_t adam = {.world = &world,
                   .m = hx_new(world.params_count, sizeof(float)),
                   .v = hx_new(world.params_count, sizeof(float))};
    float *const start = hx_new(world.params_count, sizeof(float));
    memcpy(start, world.params, size);
    const seats_conf_t seats = {.stages = 1,
                                .ends = {LAYERS + 2},
                                .rows = STEP_ROWS,
                                .microbatch = microbatch,
                                .schedule = kind,
                                .shards = 2};
    begin(&pipeline, &world, &seats, 3);
    // Two leases from the same version: moments stay, parameters begin anew.
    for (uint32_t lease = 0; lease < 2; lease++) {
        memcpy(world.params, start, size);
        const uint64_t row = 20 + lease * STEPS * STEP_ROWS;
        grant(&pipeline, row, STEPS * STEP_ROWS, false);
        settle(&pipeline);
        check_whole(&pipeline, &pipeline.leases[lease]);
        for (uint32_t step = 0; step < STEPS; step++) {
            const uint64_t round = STEPS * STEP_ROWS * CONTEXT;
            const uint64_t tokens = pipeline.version * round + (step + 1) * STEP_ROWS * CONTEXT;
            step_world(&adam, row + step * STEP_ROWS, STEP_ROWS, optim_lr(&local_schedule, tokens));
        }
        compare(&world, &pipeline, lease, start);
    }
    finish(&pipeline);
    free(adam.m);
    free(adam.v);
    free(start);
    local_steps = 0;
    world_end(&world);
}

Test(inner, a_lease_pushes_what_its_steps_came_to)
{
    lease_is_its_steps(SCHEDULE_1F1B, 2);
    lease_is_its_steps(SCHEDULE_GPIPE, 1);
    lease_is_its_steps(SCHEDULE_ZB, 2);
    lease_is_its_steps(SCHEDULE_H1F1B, 4);
}

// What is not finite moves nothing, is pushed as such, and the next lease is fine again.
Test(inner, a_spoiled_lease_is_not_finite_and_leaves_no_trace)
{
    static world_t world;
    static pipeline_t pipeline;
    set_local();
    world_begin(&world);
    const seats_conf_t seats = {.stages = 1,
                                .ends = {LAYERS + 2},
                                .rows = STEP_ROWS,
                                .microbatch = 2,
                                .schedule = SCHEDULE_1F1B,
                                .shards = 2};
    begin(&pipeline, &world, &seats, 3);
    const float kept = world.params[5];
    world.params[5] = NAN;
    grant(&pipeline, 0, STEPS * STEP_ROWS, false);
    settle(&pipeline);
    cr_assert(isnan(pipeline.leases[0].sum[0]));
    world.params[5] = kept;
    grant(&pipeline, 0, STEPS * STEP_ROWS, false);
    settle(&pipeline);
    for (uint64_t at = 0; at < world.params_count; at++) {
        cr_assert(isfinite(pipeline.leases[1].sum[at]));
    }
    finish(&pipeline);
    local_steps = 0;
    world_end(&world);
}

// A lease that is cut ends with a smaller step; evaluations take none.
Test(inner, short_leases_and_evaluations_are_whole)
{
    static world_t world;
    static pipeline_t pipeline;
    set_local();
    world_begin(&world);
    const seats_conf_t seats = {.stages = 1,
                                .ends = {LAYERS + 2},
                                .rows = STEP_ROWS,
                                .microbatch = 2,
                                .schedule = SCHEDULE_1F1B,
                                .shards = 1};
    begin(&pipeline, &world, &seats, 3);
    grant(&pipeline, 0, STEP_ROWS + 1, false);
    grant(&pipeline, 0, 3, true);
    grant(&pipeline, 7, 1, false);
    settle(&pipeline);
    for (uint32_t lease = 0; lease < 3; lease++) {
        check_whole(&pipeline, &pipeline.leases[lease]);
    }
    finish(&pipeline);
    local_steps = 0;
    world_end(&world);
}
