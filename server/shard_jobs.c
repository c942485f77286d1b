// shard_jobs - jobs of a shard, mapped to its store: see ps_shard.h for what each is to do.

#include "server/shard_jobs.h"

#include <stdlib.h>

#include "server/ps_shard.h"

struct shard_jobs {
    blocks_t blocks;
    hx_backend_t *backend;
    ps_store_t *store;
    blob_t *record_blob;  // Of the commit that is being applied, NULL if none is;
    record_t record;      // what it says.
};

shard_jobs_t *shard_jobs_new(const shard_jobs_conf_t *conf)
{
    shard_jobs_t *const self = hx_new(1, sizeof *self);
    blocks_make(conf->model, conf->block_size, &self->blocks);
    self->backend = hx_backend_cpu_new(conf->threads);
    self->store = ps_store_new(&(ps_store_conf_t){
        .model = conf->model,
        .blocks = &self->blocks,
        .backend = self->backend,
        .optim = conf->optim,
        .seed = conf->seed,
    });
    return self;
}

static void let_record_go(shard_jobs_t *self)
{
    record_destroy(&self->record);
    blob_release(&self->record_blob);
    self->record = (record_t){0};
}

void shard_jobs_destroy(shard_jobs_t **self_p)
{
    shard_jobs_t *const self = *self_p;
    if (!self) {
        return;
    }
    let_record_go(self);
    ps_store_destroy(&self->store);
    hx_backend_destroy(&self->backend);
    blocks_destroy(&self->blocks);
    free(self);
    *self_p = NULL;
}

static hx_err_t hold(shard_jobs_t *self, step_job_t *job)
{
    bool finite = true;
    HX_TRY(ps_store_hold(self->store, job->attempt, job->index, job->part, job->rows, job->version,
                         job->blob, &finite));
    job->flags = finite ? 0 : SHARD_HOLD_NONFINITE;
    return HX_OK;
}

static hx_err_t sum(shard_jobs_t *self, const step_job_t *job, blob_t **result_p)
{
    prepare_t prepare = {0};
    HX_TRY(payload_prepare_decode(job->blob, &prepare));
    const uint32_t blocks = ps_store_count(self->store);
    const uint32_t more = prepare.agreement ? 1 + 2 * prepare.members_count : 0;
    double *const values = hx_new((size_t)blocks + more, sizeof *values);
    hx_err_t err = ps_store_sum(self->store, prepare.members, prepare.members_count, values);
    if (err == HX_OK && prepare.agreement) {
        err = ps_store_agree(self->store, prepare.members, prepare.members_count, values + blocks);
    }
    prepare_destroy(&prepare);
    if (err == HX_OK) {
        *result_p = payload_doubles_encode(values, blocks + more);
    }
    free(values);
    return err;
}

// The record that the jobs of one commit share.
static hx_err_t take_record(shard_jobs_t *self, const step_job_t *job)
{
    if (self->record_blob == job->blob) {
        return HX_OK;
    }
    let_record_go(self);
    HX_TRY(payload_record_decode(job->blob, &self->record));
    self->record_blob = blob_retain(job->blob);
    return HX_OK;
}

static hx_err_t step(shard_jobs_t *self, const step_job_t *job)
{
    HX_TRY(take_record(self, job));
    return ps_store_step(self->store, &self->record, job->index);
}

static hx_err_t apply(shard_jobs_t *self, const step_job_t *job)
{
    HX_TRY(take_record(self, job));
    const hx_err_t err = ps_store_apply(self->store, &self->record);
    let_record_go(self);
    return err;
}

hx_err_t shard_jobs_run(void *self_, step_job_t *job, blob_t **result_p)
{
    shard_jobs_t *const self = self_;
    switch ((shard_job_t)job->kind) {
    case SHARD_JOB_INIT:
        return ps_store_init(self->store, job->index);
    case SHARD_JOB_LOAD:
        return ps_store_load(self->store, job->index, job->part, job->version, job->blob);
    case SHARD_JOB_HOLD:
        return hold(self, job);
    case SHARD_JOB_DROP:
        ps_store_drop(self->store, job->attempt);
        return HX_OK;
    case SHARD_JOB_SUM:
        return sum(self, job, result_p);
    case SHARD_JOB_STEP:
        return step(self, job);
    case SHARD_JOB_APPLY:
        return apply(self, job);
    case SHARD_JOB_UNPIN:
        ps_store_unpin(self->store, job->version);
        return HX_OK;
    case SHARD_JOB_READ:
        return ps_store_read(self->store, job->index, job->part, job->flags & SHARD_READ_EXACT,
                             job->version, result_p);
    }
    HX_ASSERT(false && "a job kind of ours");
    return HX_E_ARG;
}
