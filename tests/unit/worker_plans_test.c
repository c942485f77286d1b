// worker_plans: any plan, same numbers. Ten steps of AdamW with gradients of random plans (uneven
// pipelines, cuts, members in both modes, schedules, recomputation) have the losses of one worker.

#include "tensor/optim.h"
#include "tests/support/seed.h"
#include "tests/unit/worker_pipeline.h"

#include <math.h>

#define PLANS 20u
#define STEPS 10u
#define PIPELINES_MAX 3u

// A run under bsp: the toy shards' weights are world.params.
typedef struct {
    world_t *world;
    seats_conf_t pipelines[PIPELINES_MAX];
    uint32_t pipelines_count;
    uint64_t seed;
    double losses[STEPS];
} training_t;

static uint32_t rows_of(const training_t *self)
{
    uint32_t rows = 0;
    for (uint32_t pipeline = 0; pipeline < self->pipelines_count; pipeline++) {
        rows += self->pipelines[pipeline].rows;
    }
    return rows;
}

// Adds the pipeline's gradient, a mean over its own rows, with its part of the batch.
static double run_lease(pipeline_t *pipeline, uint64_t row_first, uint32_t rows, double part,
                        float *gradient)
{
    grant(pipeline, row_first, rows, false);
    settle(pipeline);
    lease_book_t *const book = &pipeline->leases[pipeline->leases_count - 1];
    check_whole(pipeline, book);
    for (uint64_t at = 0; at < pipeline->world->params_count; at++) {
        gradient[at] += (float)(part * (double)book->sum[at]);
    }
    return book->loss;
}

static void apply(const world_t *world, uint64_t step, const float *gradient, float *moments)
{
    const optim_conf_t conf = optim_conf_default(OPTIM_ADAMW);
    const optim_step_t now = {.lr = 3e-3, .scale = 1, .gradient_scale = 1, .step = step};
    const optim_block_t block = {
        .count = world->params_count,
        .w = world->params,
        .m = moments,
        .v = moments + world->params_count,
        .g = gradient,
        .w_out = world->params,
        .m_out = moments,
        .v_out = moments + world->params_count,
    };
    cr_assert_eq(optim_apply(world->backend, 0, &conf, &now, &block), HX_OK);
}

static void train(training_t *self)
{
    static pipeline_t pipelines[PIPELINES_MAX];
    const uint64_t count = self->world->params_count;
    const uint32_t rows = rows_of(self);
    float *const start = hx_new(count, sizeof *start);
    float *const moments = hx_new(2 * count, sizeof *moments);
    float *const gradient = hx_new(count, sizeof *gradient);
    memcpy(start, self->world->params, count * sizeof *start);
    for (uint32_t at = 0; at < self->pipelines_count; at++) {
        begin(&pipelines[at], self->world, &self->pipelines[at], self->seed + at);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        uint64_t row = step % 2 * rows;  // Two batches in turn: what is learned can be seen.
        memset(gradient, 0, count * sizeof *gradient);
        self->losses[step] = 0;
        for (uint32_t at = 0; at < self->pipelines_count; at++) {
            const uint32_t own = self->pipelines[at].rows;
            pipelines[at].version = step;
            self->losses[step] += run_lease(&pipelines[at], row, own, (double)own / rows, gradient);
            row += own;
        }
        self->losses[step] /= (double)rows * CONTEXT;
        apply(self->world, step + 1, gradient, moments);
    }
    for (uint32_t at = 0; at < self->pipelines_count; at++) {
        finish(&pipelines[at]);
    }
    memcpy(self->world->params, start, count * sizeof *start);
    free(start);
    free(moments);
    free(gradient);
}

static training_t one_worker(world_t *world, uint32_t rows)
{
    return (training_t){.world = world,
                        .pipelines = {{.stages = 1,
                                       .ends = {LAYERS + 2},
                                       .rows = rows,
                                       .microbatch = rows,
                                       .schedule = SCHEDULE_1F1B,
                                       .shards = 1}},
                        .pipelines_count = 1};
}

Test(worker_plans, any_plan_has_the_losses_of_one_worker)
{
    static world_t world;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("worker_plans"));
    double worst = 0;
    for (uint32_t trial = 0; trial < PLANS; trial++) {
        training_t plan = {.world = &world,
                           .pipelines_count = 1 + (uint32_t)hx_rng_below(&rng, PIPELINES_MAX),
                           .seed = hx_rng_next(&rng)};
        for (uint32_t at = 0; at < plan.pipelines_count; at++) {
            plan.pipelines[at] = random_seats(&rng);
            plan.pipelines[at].schedule = (schedule_kind_t)((trial + at) % SCHEDULE_KINDS_COUNT);
            print_seats(&plan.pipelines[at], trial);
        }
        training_t one = one_worker(&world, rows_of(&plan));
        train(&one);
        train(&plan);
        cr_assert_lt(one.losses[STEPS - 2], one.losses[0], "it learns");
        for (uint32_t step = 0; step < STEPS; step++) {
            const double error = fabs(plan.losses[step] - one.losses[step]) / one.losses[step];
            worst = fmax(worst, error);
            cr_assert_leq(error, 1e-5, "plan %u, step %u: loss %.9f, one worker %.9f", trial,
                          step + 1, plan.losses[step], one.losses[step]);
        }
    }
    fprintf(stderr, "worker_plans: %u plans, %u steps, largest difference %.2g\n", PLANS, STEPS,
            worst);
    world_end(&world);
}
