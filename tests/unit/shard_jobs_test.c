// shard_jobs_test - each kind of job does to the store what ps_shard.h says.

#include "server/shard_jobs.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "server/ps_shard.h"

static model_t *model;
static blocks_t blocks;
static shard_jobs_t *jobs;

static void set_up(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 1;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 100;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    blocks_make(model, 4096, &blocks);
    jobs = shard_jobs_new(&(shard_jobs_conf_t){.model = model,
                                               .block_size = 4096,
                                               .optim = optim_conf_default(OPTIM_ADAMW),
                                               .seed = 3,
                                               .threads = 1});
}

static void tear_down(void)
{
    shard_jobs_destroy(&jobs);
    cr_assert_null(jobs);
    blocks_destroy(&blocks);
    model_destroy(&model);
}

TestSuite(shard_jobs, .init = set_up, .fini = tear_down);

static hx_err_t run(step_job_t job, blob_t **result_p)
{
    blob_t *result = NULL;
    const hx_err_t err = shard_jobs_run(jobs, &job, &result);
    if (result_p) {
        *result_p = result;
    } else {
        cr_assert_null(result);
    }
    return err;
}

static void init_all(void)
{
    for (uint32_t block = 0; block < blocks.count; block++) {
        cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_INIT, .index = block}, NULL), HX_OK);
    }
}

static blob_t *constant(uint32_t block, float value)
{
    blob_t *const blob = blob_new(blocks.blocks[block].count * sizeof(float));
    for (uint64_t at = 0; at < blocks.blocks[block].count; at++) {
        ((float *)blob_edit(blob))[at] = value;
    }
    return blob;
}

static void hold_all(uint64_t attempt, float value)
{
    for (uint32_t block = 0; block < blocks.count; block++) {
        blob_t *blob = constant(block, value);
        const step_job_t job = {.kind = SHARD_JOB_HOLD,
                                .index = block,
                                .rows = 1,
                                .attempt = attempt,
                                .version = XXH3_64bits(blob_data(blob), blob_size(blob)),
                                .blob = blob};
        cr_assert_eq(run(job, NULL), HX_OK);
        blob_release(&blob);
    }
}

static float first_of(uint32_t block, uint32_t flags, uint64_t version)
{
    blob_t *value = NULL;
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_READ,
                                  .index = block,
                                  .flags = flags,
                                  .version = version},
                     &value),
                 HX_OK);
    cr_assert_eq(blob_size(value), blocks.blocks[block].count * sizeof(float));
    const float first = *(const float *)blob_data(value);
    blob_release(&value);
    return first;
}

Test(shard_jobs, init_draws_what_the_model_says)
{
    init_all();
    float wanted = 0;
    model_init_group(model, blocks.blocks[0].group, 3, 0, 1, &wanted);
    cr_assert_eq(first_of(0, 0, 0), wanted);
}

Test(shard_jobs, sum_answers_a_double_for_each_block)
{
    init_all();
    hold_all(5, 2);
    hold_all(6, 1);
    round_member_t members[] = {{.attempt = 5, .factor = 0.5}, {.attempt = 6, .factor = 2}};
    blob_t *payload = payload_prepare_encode(&(prepare_t){.members = members, .members_count = 2});
    blob_t *result = NULL;
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_SUM, .version = 1, .blob = payload}, &result),
                 HX_OK);
    double *squares = NULL;
    uint32_t count = 0;
    cr_assert_eq(payload_doubles_decode(result, &squares, &count), HX_OK);
    cr_assert_eq(count, blocks.count);
    for (uint32_t block = 0; block < count; block++) {
        cr_assert_float_eq(squares[block], 9.0 * (double)blocks.blocks[block].count, 1e-9);
    }
    free(squares);
    blob_release(&result);
    blob_release(&payload);
}

Test(shard_jobs, apply_steps_pins_and_frees)
{
    init_all();
    hold_all(5, 2);
    const float before = first_of(0, 0, 0);
    round_member_t member = {.attempt = 5, .factor = 1};
    blob_t *record = payload_record_encode(&(record_t){.version = 1,
                                                       .scale = 1,
                                                       .rate = 0.25,
                                                       .step = 1,
                                                       .snapshot = true,
                                                       .members = &member,
                                                       .members_count = 1});
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_APPLY, .version = 1, .blob = record}, NULL),
                 HX_OK);
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    cr_assert_float_eq(first_of(0, 0, 0), before - 0.25 * (1 + optim.weight_decay * before), 1e-5,
                       "the first step of AdamW is the rate, against the gradient's sign");
    cr_assert_eq(first_of(0, SHARD_READ_EXACT, 1), first_of(0, 0, 0));
    blob_t *none = NULL;
    cr_assert_eq(
        run((step_job_t){.kind = SHARD_JOB_READ, .flags = SHARD_READ_EXACT, .version = 0}, &none),
        HX_E_ARG);
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_APPLY, .version = 2, .blob = record}, NULL),
                 HX_E_ARG, "a version is applied once");
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_UNPIN, .version = 1}, NULL), HX_OK);
    blob_release(&record);
}

Test(shard_jobs, hold_tells_of_damage_and_of_what_is_not_finite)
{
    init_all();
    blob_t *blob = constant(0, NAN);
    step_job_t job = {.kind = SHARD_JOB_HOLD, .rows = 1, .attempt = 5, .version = 1, .blob = blob};
    blob_t *result = NULL;
    cr_assert_eq(shard_jobs_run(jobs, &job, &result), HX_E_FORMAT);
    job.version = XXH3_64bits(blob_data(blob), blob_size(blob));
    cr_assert_eq(shard_jobs_run(jobs, &job, &result), HX_OK);
    cr_assert_eq(job.flags, SHARD_HOLD_NONFINITE);
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_DROP, .attempt = 5}, NULL), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_DROP, .attempt = 77}, NULL), HX_OK);
    blob_release(&blob);
}

Test(shard_jobs, load_sets_an_array_at_a_version)
{
    for (uint32_t block = 0; block < blocks.count; block++) {
        blob_t *blob = constant(block, 4);
        cr_assert_eq(run((step_job_t){.kind = SHARD_JOB_LOAD,
                                      .index = block,
                                      .part = block % 3,
                                      .version = 7,
                                      .blob = blob},
                         NULL),
                     HX_OK);
        blob_release(&blob);
    }
    cr_assert_eq(first_of(0, SHARD_READ_EXACT, 7), 4);
    cr_assert_eq(first_of(1, SHARD_READ_EXACT, 7), 0, "only its first moment was loaded");
}

Test(shard_jobs, payloads_that_are_none_are_refused)
{
    init_all();
    blob_t *junk = blob_copy("junk", 4);
    blob_t *result = NULL;
    cr_assert_neq(run((step_job_t){.kind = SHARD_JOB_SUM, .blob = junk}, &result), HX_OK);
    cr_assert_neq(run((step_job_t){.kind = SHARD_JOB_APPLY, .blob = junk}, &result), HX_OK);
    blob_release(&junk);
}
