// sim_learn - see the header.

#include "bench/sim_learn.h"

#include <stdlib.h>

#include "server/shard_jobs.h"
#include "worker/stage_jobs.h"

#define SHARDS_MAX 64u
#define WORKERS_MAX 64u
#define EVAL_ROWS 16u  // At once.

struct sim_learn {
    sim_learn_conf_t conf;
    sim_real_t real;
    model_t *model;
    blocks_t blocks;
    hx_backend_t *backend;
    stage_jobs_t *eval;
    shard_jobs_t *shards[SHARDS_MAX];
    uint32_t shards_count;
    stage_jobs_t *workers[WORKERS_MAX];
    uint32_t workers_count;
    uint64_t next_tokens;
    sim_point_t *points;
    uint32_t points_count;
    uint32_t points_room;
};

static stage_jobs_t *make_stage(const sim_learn_t *self)
{
    return stage_jobs_new(&(stage_jobs_conf_t){
        .backend = self->backend,
        .model = self->model,
        .blocks = &self->blocks,
        .data = self->conf.data,
        .order_seed = self->conf.seed,
    });
}

static void run_stage(stage_jobs_t *stage, step_job_t *job)
{
    blob_t *result = NULL;
    if (stage_jobs_run(stage, job, &result, NULL) != HX_OK) {
        HX_ASSERT(false && "an evaluation that cannot be");
    }
    blob_release(&result);
}

static hx_err_t run_worker(void *jobs, step_job_t *job, blob_t **result)
{
    return stage_jobs_run(jobs, job, result, NULL);
}

static void give_worker(void *learn, sim_work_t *work)
{
    sim_learn_t *const self = learn;
    HX_ASSERT(self->workers_count < WORKERS_MAX);
    work->jobs = self->workers[self->workers_count++] = make_stage(self);
    work->run = run_worker;
}

static void give_shard(void *learn, sim_work_t *work)
{
    sim_learn_t *const self = learn;
    HX_ASSERT(self->shards_count < SHARDS_MAX);
    work->jobs = self->shards[self->shards_count++] =
        shard_jobs_new(&(shard_jobs_conf_t){.model = self->model,
                                            .block_size = self->conf.block_size,
                                            .optim = self->conf.optim,
                                            .seed = self->conf.seed,
                                            .threads = 1});
    work->run = shard_jobs_run;
}

// --- evaluation ---

static blob_t *value_of(sim_learn_t *self, uint32_t block, uint64_t version)
{
    blob_t *value = NULL;
    for (uint32_t at = 0; at < self->shards_count && !value; at++) {
        step_job_t read = {
            .kind = SHARD_JOB_READ, .index = block, .flags = SHARD_READ_EXACT, .version = version};
        if (shard_jobs_run(self->shards[at], &read, &value) != HX_OK) {
            value = NULL;  // Another shard keeps it.
        }
    }
    HX_ASSERT(value);
    return value;
}

static double evaluate(sim_learn_t *self, uint64_t version)
{
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        blob_t *value = value_of(self, block, version);
        step_job_t load = {.kind = WORKER_JOB_LOAD, .index = block, .blob = value};
        run_stage(self->eval, &load);
        blob_release(&value);
    }
    const uint32_t context = model_conf(self->model)->context;
    double loss = 0;
    uint64_t tokens = 0;
    for (uint32_t row = 0; row < self->conf.valid_rows; row += EVAL_ROWS) {
        const uint32_t rows = HX_MIN(EVAL_ROWS, self->conf.valid_rows - row);
        step_job_t forward = {.kind = WORKER_JOB_FORWARD,
                              .attempt = 1,
                              .part = model_layers_count(self->model),
                              .row_first = row,
                              .rows = rows,
                              .flags = WORKER_JOB_EVALUATION,
                              .tokens = (uint64_t)rows * context};
        run_stage(self->eval, &forward);
        loss += forward.value;
        tokens += forward.tokens;
    }
    return loss / (double)HX_MAX(tokens, 1u);
}

static void note_version(void *learn, double seconds, uint64_t tokens, uint64_t commits, bool last)
{
    sim_learn_t *const self = learn;
    if (tokens < self->next_tokens && !last) {
        return;
    }
    self->next_tokens = (tokens / self->conf.valid_tokens + 1) * self->conf.valid_tokens;
    if (self->points_count == self->points_room) {
        self->points_room = HX_MAX(64u, self->points_room * 2);
        self->points = hx_grow(self->points, self->points_room, sizeof *self->points);
    }
    self->points[self->points_count++] = (sim_point_t){
        .seconds = seconds, .tokens = tokens, .commits = commits, .loss = evaluate(self, commits)};
}

// --- the whole ---

sim_learn_t *sim_learn_new(const sim_learn_conf_t *conf)
{
    HX_ASSERT(conf->data && conf->valid_tokens > 0 && conf->valid_rows > 0);
    sim_learn_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->real = (sim_real_t){.self = self,
                              .arrays = 1 + optim_moments_count(&conf->optim),
                              .worker = give_worker,
                              .shard = give_shard,
                              .version = note_version};
    if (model_open(&conf->model, &self->model, NULL) != HX_OK) {
        HX_ASSERT(false && "a model that cannot be");
    }
    blocks_make(self->model, conf->block_size, &self->blocks);
    self->conf.valid_rows =
        (uint32_t)HX_MIN((uint64_t)conf->valid_rows, data_valid_rows(conf->data));
    self->backend = hx_backend_cpu_new(1);
    self->eval = make_stage(self);
    step_job_t open = {.kind = WORKER_JOB_OPEN,
                       .part = model_layers_count(self->model),
                       .micro = 1,
                       .rows = EVAL_ROWS};
    run_stage(self->eval, &open);
    return self;
}

void sim_learn_destroy(sim_learn_t **self_p)
{
    sim_learn_t *const self = *self_p;
    if (!self) {
        return;
    }
    stage_jobs_destroy(&self->eval);
    for (uint32_t at = 0; at < self->workers_count; at++) {
        stage_jobs_destroy(&self->workers[at]);
    }
    for (uint32_t at = 0; at < self->shards_count; at++) {
        shard_jobs_destroy(&self->shards[at]);
    }
    hx_backend_destroy(&self->backend);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    free(self->points);
    free(self);
    *self_p = NULL;
}

const sim_real_t *sim_learn_real(const sim_learn_t *self)
{
    return &self->real;
}

const sim_point_t *sim_learn_points(const sim_learn_t *self, uint32_t *count)
{
    *count = self->points_count;
    return self->points;
}
