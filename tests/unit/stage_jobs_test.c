// stage_jobs: whatever the cut, schedule, microbatch, order of messages or closed leases, the
// gradient of given rows is that of a single stage.

#include "worker/stage_jobs.h"

#include "tests/support/seed.h"
#include "tests/unit/worker_pipeline.h"

#include <math.h>
#include <signal.h>

static double difference(const world_t *world, const float *a, const float *b)
{
    double squares = 0;
    double norm = 0;
    for (uint64_t at = 0; at < world->params_count; at++) {
        squares += pow((double)a[at] - b[at], 2);
        norm += pow(b[at], 2);
    }
    cr_assert_gt(norm, 0);
    return sqrt(squares / norm);
}

// The same rows on one stage in one microbatch. Gives back the gradient, and the loss.
static float *expected_of(const world_t *world, uint64_t row_first, uint32_t rows, bool evaluation,
                          double *loss)
{
    static pipeline_t single;
    const seats_conf_t conf = {.stages = 1,
                               .ends = {LAYERS + 2},
                               .rows = rows,
                               .microbatch = rows,
                               .schedule = SCHEDULE_1F1B,
                               .shards = 1};
    begin(&single, world, &conf, 1);
    grant(&single, row_first, rows, evaluation);
    settle(&single);
    check_whole(&single, &single.leases[0]);
    *loss = single.leases[0].loss;
    float *const sum = single.leases[0].sum;
    single.leases[0].sum = NULL;
    finish(&single);
    return sum;
}

static void check_against_single(pipeline_t *pipeline, const lease_book_t *book)
{
    const world_t *const world = pipeline->world;
    double loss = 0;
    float *const expected =
        expected_of(world, book->row_first, book->rows, book->evaluation, &loss);
    check_whole(pipeline, book);
    cr_assert_float_eq(book->loss, loss, 1e-4 * loss, "loss %g instead of %g", book->loss, loss);
    if (!book->evaluation) {
        const double error = difference(world, book->sum, expected);
        cr_assert_leq(error, 1e-5, "attempt %" PRIu64 " differs by %g", book->attempt, error);
    }
    free(expected);
}

Test(stage_jobs, gradient_does_not_depend_on_the_plan)
{
    static world_t world;
    static pipeline_t pipeline;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("stage_jobs"));
    for (uint32_t trial = 0; trial < 60; trial++) {
        const seats_conf_t conf = random_seats(&rng);
        print_seats(&conf, trial);
        begin(&pipeline, &world, &conf, hx_rng_next(&rng));
        // Several leases ahead, the second shorter, one of them an evaluation.
        uint64_t row = hx_rng_below(&rng, 1000);
        const uint32_t shorter = 1 + (uint32_t)hx_rng_below(&rng, conf.rows);
        grant(&pipeline, row, conf.rows, false);
        grant(&pipeline, row + conf.rows, shorter, false);
        grant(&pipeline, hx_rng_below(&rng, 10), conf.rows, true);
        grant(&pipeline, row + conf.rows + shorter, conf.rows, false);
        settle(&pipeline);
        for (uint32_t index = 0; index < pipeline.leases_count; index++) {
            check_against_single(&pipeline, &pipeline.leases[index]);
        }
        finish(&pipeline);
    }
    world_end(&world);
}

// The bits of a gradient do not depend on the order of messages: members' gradients are added in
// the plan's order, whenever they come.
Test(stage_jobs, same_plan_gives_the_same_bits)
{
    static world_t world;
    static pipeline_t first;
    static pipeline_t second;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("stage_jobs_bits"));
    for (uint32_t trial = 0; trial < 30; trial++) {
        const seats_conf_t conf = random_seats(&rng);
        print_seats(&conf, trial);
        begin(&first, &world, &conf, hx_rng_next(&rng));
        begin(&second, &world, &conf, hx_rng_next(&rng));
        for (uint32_t lease = 0; lease < 2; lease++) {
            grant(&first, lease * conf.rows, conf.rows, false);
            grant(&second, lease * conf.rows, conf.rows, false);
        }
        settle(&first);
        settle(&second);
        for (uint32_t lease = 0; lease < 2; lease++) {
            check_whole(&first, &first.leases[lease]);
            check_whole(&second, &second.leases[lease]);
            // A tied tensor has two parts, which these shards add as they come: two commute.
            cr_assert_arr_eq(first.leases[lease].sum, second.leases[lease].sum,
                             world.params_count * sizeof(float));
        }
        finish(&first);
        finish(&second);
    }
    world_end(&world);
}

// Weights for training cross the line to the shards once a stage, whatever the number of members.
Test(stage_jobs, members_get_their_weights_from_the_first)
{
    static world_t world;
    static pipeline_t pipeline;
    world_begin(&world);
    const seats_conf_t conf = {.stages = 1,
                               .ends = {LAYERS + 2},
                               .members = {5},
                               .modes = {PLAN_SPLIT},
                               .rows = 10,
                               .microbatch = 10,
                               .schedule = SCHEDULE_1F1B,
                               .shards = 2};
    begin(&pipeline, &world, &conf, 1);
    grant(&pipeline, 0, 10, false);
    settle(&pipeline);
    check_against_single(&pipeline, &pipeline.leases[0]);
    cr_assert_eq(pipeline.values_served, world.blocks.count);
    cr_assert_eq(pipeline.values_passed, 4 * world.blocks.count);
    finish(&pipeline);
    world_end(&world);
}

static void seat_members(seats_conf_t *conf, const uint32_t *workers, uint32_t count, uint32_t rest)
{
    conf->seated = true;
    conf->members[1] = count;
    for (uint32_t member = 0; member < count; member++) {
        conf->workers[1][member] = workers[member];
    }
    conf->spares = rest;
    conf->epoch++;
}

// Same cuts, other members and shares of the middle stage: one is added, two are weighted anew, one
// leaves, the first one changes.
Test(stage_jobs, members_change_at_a_plan_epoch)
{
    static world_t world;
    static pipeline_t pipeline;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("stage_jobs_epochs"));
    for (uint32_t trial = 0; trial < 8; trial++) {
        seats_conf_t conf = {.stages = 3,
                             .ends = {2, 4, LAYERS + 2},
                             .depths = {4, 3, 1},
                             .modes = {PLAN_ROTATE, (plan_mode_t)(trial % 2)},
                             .rows = 10,
                             .microbatch = 3,
                             .schedule = (schedule_kind_t)(trial / 2),
                             .shards = 2,
                             .workers = {{0}, {1}, {4}}};
        seat_members(&conf, (uint32_t[]){1}, 1, 2);
        begin(&pipeline, &world, &conf, hx_rng_next(&rng));
        grant(&pipeline, 0, 10, false);
        settle(&pipeline);
        seat_members(&conf, (uint32_t[]){1, 2, 3}, 3, 0);
        give_plan(&pipeline, &conf);
        grant(&pipeline, 10, 10, false);
        settle(&pipeline);
        conf.weights[1][0] = 4;
        conf.weights[1][2] = 2;
        conf.epoch++;
        give_plan(&pipeline, &conf);
        grant(&pipeline, 20, 10, false);
        settle(&pipeline);
        seat_members(&conf, (uint32_t[]){3, 1}, 2, 1);
        give_plan(&pipeline, &conf);
        grant(&pipeline, 30, 10, false);
        settle(&pipeline);
        for (uint32_t lease = 0; lease < 4; lease++) {
            pipeline.seated = pipeline.leases[lease].announced;
            cr_assert_eq(__builtin_popcount(pipeline.seated), lease == 0 ? 3 : lease == 3 ? 4 : 5);
            check_against_single(&pipeline, &pipeline.leases[lease]);
        }
        finish(&pipeline);
    }
    world_end(&world);
}

Test(stage_jobs, closed_leases_leave_no_trace_in_the_next)
{
    static world_t world;
    static pipeline_t pipeline;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("stage_jobs_closed"));
    for (uint32_t trial = 0; trial < 60; trial++) {
        const seats_conf_t conf = random_seats(&rng);
        print_seats(&conf, trial);
        begin(&pipeline, &world, &conf, hx_rng_next(&rng));
        const uint64_t row = hx_rng_below(&rng, 1000);
        grant(&pipeline, row, conf.rows, false);
        grant(&pipeline, row + conf.rows, conf.rows, false);
        for (uint64_t left = hx_rng_below(&rng, 200); left > 0 && tick(&pipeline); left--) {
        }
        lease_book_t *const victim = &pipeline.leases[hx_rng_below(&rng, 2)];
        if (victim->announced != pipeline.seated) {
            close_lease(&pipeline, victim);
            grant(&pipeline, victim->row_first, victim->rows, false);
        }
        settle(&pipeline);
        for (uint32_t index = 0; index < pipeline.leases_count; index++) {
            if (!pipeline.leases[index].closed) {
                check_against_single(&pipeline, &pipeline.leases[index]);
            }
        }
        finish(&pipeline);
    }
    world_end(&world);
}

// --- Single jobs

static stage_jobs_t *jobs_of(const world_t *world)
{
    const stage_jobs_conf_t conf = {.backend = world->backend,
                                    .model = world->model,
                                    .blocks = &world->blocks,
                                    .data = world->data,
                                    .memory = 4 << 20};
    return stage_jobs_new(&conf);
}

static void run(stage_jobs_t *jobs, step_job_t job, hx_err_t expected, const char *words)
{
    blob_t *result = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(stage_jobs_run(jobs, &job, &result, &fault), expected, "%s", fault.text);
    cr_assert(strstr(fault.text, words), "%s", fault.text);
    blob_release(&result);
}

Test(stage_jobs, stage_that_does_not_fit_is_refused_with_its_size)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    step_job_t job = {.kind = WORKER_JOB_OPEN, .part = LAYERS + 2, .micro = 60000, .rows = 60000};
    run(jobs, job, HX_E_NOMEM, "for 60000 microbatches of 60000 rows in flight");
    job.micro = job.rows = 1;
    run(jobs, job, HX_OK, "");
    stage_jobs_destroy(&jobs);
    world_end(&world);
}

Test(stage_jobs, held_out_rows_beyond_the_end_are_refused)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    const step_job_t open = {.kind = WORKER_JOB_OPEN, .part = LAYERS + 2, .micro = 1, .rows = 2};
    run(jobs, open, HX_OK, "");
    const uint64_t rows = data_valid_rows(world.data);
    step_job_t job = {.kind = WORKER_JOB_FORWARD,
                      .part = LAYERS + 2,
                      .row_first = rows - 1,
                      .rows = 2,
                      .flags = WORKER_JOB_EVALUATION,
                      .tokens = 16};
    run(jobs, job, HX_E_ARG, "held-out rows up to");
    job.row_first = UINT64_MAX;
    run(jobs, job, HX_E_ARG, "an operation before this one failed");
    run(jobs, open, HX_OK, "");
    run(jobs, job, HX_E_ARG, "held-out rows up to");
    stage_jobs_destroy(&jobs);
    world_end(&world);
}

// Whatever was queued before the failure was known: a machine's jobs run ahead of its answers.
Test(stage_jobs, what_is_queued_behind_a_failure_fails_as_well)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    run(jobs, (step_job_t){.kind = WORKER_JOB_OPEN, .part = LAYERS + 2, .micro = 1, .rows = 2},
        HX_OK, "");
    step_job_t job = {.kind = WORKER_JOB_FORWARD,
                      .part = LAYERS + 2,
                      .row_first = UINT64_MAX,
                      .rows = 2,
                      .flags = WORKER_JOB_EVALUATION,
                      .tokens = 16};
    run(jobs, job, HX_E_ARG, "held-out rows up to");
    job.flags = 0;
    job.row_first = 0;
    static const uint32_t kinds[] = {WORKER_JOB_FORWARD, WORKER_JOB_FORWARD, WORKER_JOB_BACKWARD,
                                     WORKER_JOB_GRAD};
    for (size_t at = 0; at < HX_COUNT(kinds); at++) {
        job.kind = kinds[at];
        job.micro = (uint32_t)at;
        run(jobs, job, HX_E_ARG, "an operation before this one failed");
    }
    run(jobs, (step_job_t){.kind = WORKER_JOB_DROP}, HX_OK, "");
    stage_jobs_destroy(&jobs);
    world_end(&world);
}

Test(stage_jobs, operation_without_its_message_is_a_bug, .signal = SIGABRT)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    run(jobs, (step_job_t){.kind = WORKER_JOB_OPEN, .index = 2, .part = 4, .micro = 1, .rows = 1},
        HX_OK, "");
    run(jobs,
        (step_job_t){.kind = WORKER_JOB_FORWARD, .index = 2, .part = 4, .rows = 1, .tokens = 8},
        HX_OK, "");
}
