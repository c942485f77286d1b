// keeper_jobs_test - each kind of job does to files what keeper.h says.

#include "server/keeper_jobs.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/blocks.h"
#include "net/payload.h"
#include "server/keeper.h"

static char root[64];
static char run_path[96];
static model_t *model;
static blocks_t blocks;
static keeper_jobs_conf_t conf;

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/keeper_jobs_XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(run_path, sizeof run_path, "%s/runs/one", root);
    model_conf_t values = model_conf_default();
    values.layers = 1;
    values.heads = 2;
    values.channels = 16;
    values.context = 8;
    values.vocab = 100;
    cr_assert_eq(model_open(&values, &model, NULL), HX_OK);
    blocks_make(model, 4096, &blocks);
    conf = (keeper_jobs_conf_t){.model = model,
                                .block_size = 4096,
                                .seed = 1,
                                .moments = 2,
                                .optimizer = "adamw",
                                .run = run_path,
                                .resume = "",
                                .init = "",
                                .keep = 2};
}

static void tear_down(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
    blocks_destroy(&blocks);
    model_destroy(&model);
}

TestSuite(keeper_jobs, .init = set_up, .fini = tear_down);

static hx_err_t run_job(keeper_jobs_t *jobs, step_job_t job, blob_t **result_p)
{
    blob_t *result = NULL;
    const hx_err_t err = keeper_jobs_run(jobs, &job, &result);
    if (result_p) {
        *result_p = result;
    } else {
        cr_assert_null(result, "%.*s", (int)blob_size(result), (const char *)blob_data(result));
    }
    return err;
}

// Runs a job that must fail with a line that holds `part`.
static void fails(keeper_jobs_t *jobs, step_job_t job, const char *part)
{
    blob_t *result = NULL;
    cr_assert_neq(run_job(jobs, job, &result), HX_OK);
    cr_assert_not_null(result);
    char line[HX_FAULT_MAX];
    snprintf(line, sizeof line, "%.*s", (int)blob_size(result), (const char *)blob_data(result));
    cr_assert_not_null(strstr(line, part), "\"%s\" lacks \"%s\"", line, part);
    blob_release(&result);
}

static blob_t *constant(uint32_t block, float value)
{
    blob_t *const blob = blob_new(blocks.blocks[block].count * sizeof(float));
    for (uint64_t at = 0; at < blocks.blocks[block].count; at++) {
        ((float *)blob_edit(blob))[at] = value;
    }
    return blob;
}

static void write_one(keeper_jobs_t *jobs, uint64_t version, uint32_t block, uint32_t part)
{
    blob_t *blob = constant(block, (float)(100 * version + 10 * part + block % 10));
    cr_assert_eq(run_job(jobs,
                         (step_job_t){.kind = KEEPER_JOB_WRITE,
                                      .index = block,
                                      .part = part,
                                      .version = version,
                                      .blob = blob},
                         NULL),
                 HX_OK);
    blob_release(&blob);
}

static void begin_one(keeper_jobs_t *jobs, uint64_t version)
{
    blob_t *record = payload_record_encode(&(record_t){.version = version});
    cr_assert_eq(run_job(jobs,
                         (step_job_t){.kind = KEEPER_JOB_BEGIN, .version = version, .blob = record},
                         NULL),
                 HX_OK);
    blob_release(&record);
}

static void save(keeper_jobs_t *jobs, uint64_t version)
{
    begin_one(jobs, version);
    for (uint32_t block = 0; block < blocks.count; block++) {
        for (uint32_t part = 0; part < 3; part++) {
            write_one(jobs, version, block, part);
        }
    }
    cr_assert_eq(run_job(jobs, (step_job_t){.kind = KEEPER_JOB_FINISH, .version = version}, NULL),
                 HX_OK);
}

static float first_of(keeper_jobs_t *jobs, uint32_t block, uint32_t part)
{
    blob_t *value = NULL;
    cr_assert_eq(
        run_job(jobs, (step_job_t){.kind = KEEPER_JOB_READ, .index = block, .part = part}, &value),
        HX_OK);
    cr_assert_eq(blob_size(value), blocks.blocks[block].count * sizeof(float));
    const float first = *(const float *)blob_data(value);
    blob_release(&value);
    return first;
}

static keeper_jobs_t *open_fresh(void)
{
    keeper_jobs_t *const jobs = keeper_jobs_new(&conf);
    cr_assert_eq(run_job(jobs, (step_job_t){.kind = KEEPER_JOB_OPEN}, NULL), HX_OK);
    return jobs;
}

Test(keeper_jobs, what_is_saved_can_be_resumed_from)
{
    keeper_jobs_t *jobs = open_fresh();
    save(jobs, 4);
    save(jobs, 7);
    keeper_jobs_destroy(&jobs);
    char path[160];
    snprintf(path, sizeof path, "%s/checkpoint-7", run_path);
    conf.resume = path;
    jobs = keeper_jobs_new(&conf);
    blob_t *bytes = NULL;
    cr_assert_eq(
        run_job(jobs,
                (step_job_t){.kind = KEEPER_JOB_OPEN, .flags = KEEPER_OPEN_RESUME, .version = 7},
                &bytes),
        HX_OK);
    record_t record = {0};
    cr_assert_eq(payload_record_decode(bytes, &record), HX_OK);
    cr_assert_eq(record.version, 7);
    record_destroy(&record);
    blob_release(&bytes);
    for (uint32_t block = 0; block < blocks.count; block++) {
        for (uint32_t part = 0; part < 3; part++) {
            cr_assert_eq(first_of(jobs, block, part), (float)(700 + 10 * part + block % 10));
        }
    }
    keeper_jobs_destroy(&jobs);
}

Test(keeper_jobs, a_plan_that_resumes_from_another_version_is_refused)
{
    keeper_jobs_t *jobs = open_fresh();
    save(jobs, 4);
    keeper_jobs_destroy(&jobs);
    const step_job_t job = {.kind = KEEPER_JOB_OPEN, .flags = KEEPER_OPEN_RESUME, .version = 5};
    jobs = keeper_jobs_new(&conf);
    fails(jobs, job, "there is no checkpoint");
    keeper_jobs_destroy(&jobs);
    char path[160];
    snprintf(path, sizeof path, "%s/checkpoint-4", run_path);
    conf.resume = path;
    jobs = keeper_jobs_new(&conf);
    fails(jobs, job, "of version 4");
    keeper_jobs_destroy(&jobs);
}

Test(keeper_jobs, two_runs_do_not_share_a_folder)
{
    keeper_jobs_t *jobs = open_fresh();
    keeper_jobs_t *second = keeper_jobs_new(&conf);
    fails(second, (step_job_t){.kind = KEEPER_JOB_OPEN}, "another run writes to this folder");
    keeper_jobs_destroy(&jobs);
    cr_assert_eq(run_job(second, (step_job_t){.kind = KEEPER_JOB_OPEN}, NULL), HX_OK);
    keeper_jobs_destroy(&second);
}

Test(keeper_jobs, init_serves_weights_from_a_file_or_a_folder)
{
    keeper_jobs_t *jobs = open_fresh();
    save(jobs, 4);
    keeper_jobs_destroy(&jobs);
    char file[160];
    snprintf(file, sizeof file, "%s/checkpoint-4/model.safetensors", run_path);
    char folder[160];
    snprintf(folder, sizeof folder, "%s/latest", run_path);
    const char *const sources[] = {file, folder};
    const step_job_t job = {.kind = KEEPER_JOB_OPEN, .flags = KEEPER_OPEN_INIT};
    for (size_t at = 0; at < HX_COUNT(sources); at++) {
        conf.init = sources[at];
        jobs = keeper_jobs_new(&conf);
        cr_assert_eq(run_job(jobs, job, NULL), HX_OK);
        cr_assert_eq(first_of(jobs, 1, 0), 401);
        fails(jobs, (step_job_t){.kind = KEEPER_JOB_READ, .index = 1, .part = 1}, "no source");
        keeper_jobs_destroy(&jobs);
    }
    cr_assert_eq(truncate(file, 200), 0);
    for (size_t at = 0; at < HX_COUNT(sources); at++) {
        conf.init = sources[at];
        jobs = keeper_jobs_new(&conf);
        fails(jobs, job, "model.safetensors");
        keeper_jobs_destroy(&jobs);
    }
    conf.init = "/nowhere/at/all";
    jobs = keeper_jobs_new(&conf);
    fails(jobs, job, "/nowhere/at/all");
    keeper_jobs_destroy(&jobs);
}

Test(keeper_jobs, what_a_killed_run_left_is_removed)
{
    keeper_jobs_t *jobs = open_fresh();
    char path[160];
    snprintf(path, sizeof path, "%s/checkpoint-9.tmp", run_path);
    cr_assert_eq(mkdir(path, 0777), 0);
    keeper_jobs_destroy(&jobs);
    jobs = open_fresh();
    cr_assert_neq(access(path, F_OK), 0);
    keeper_jobs_destroy(&jobs);
}

Test(keeper_jobs, giving_up_leaves_nothing_and_the_next_one_works)
{
    keeper_jobs_t *jobs = open_fresh();
    char path[160];
    snprintf(path, sizeof path, "%s/checkpoint-4.tmp", run_path);
    begin_one(jobs, 4);
    write_one(jobs, 4, 0, 0);
    cr_assert_eq(access(path, F_OK), 0);
    cr_assert_eq(run_job(jobs, (step_job_t){.kind = KEEPER_JOB_ABORT}, NULL), HX_OK);
    cr_assert_eq(run_job(jobs, (step_job_t){.kind = KEEPER_JOB_ABORT}, NULL), HX_OK);
    cr_assert_neq(access(path, F_OK), 0);
    fails(jobs, (step_job_t){.kind = KEEPER_JOB_FINISH, .version = 4}, "no checkpoint is begun");
    begin_one(jobs, 5);
    write_one(jobs, 5, 0, 0);
    fails(jobs, (step_job_t){.kind = KEEPER_JOB_FINISH, .version = 5}, "incomplete");
    save(jobs, 6);
    begin_one(jobs, 4);
    keeper_jobs_destroy(&jobs);
    cr_assert_neq(access(path, F_OK), 0, "the end gives it up too");
}
