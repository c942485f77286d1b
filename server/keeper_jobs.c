// keeper_jobs - jobs of a keeper on files: see keeper.h for what each is to do.

#include "server/keeper_jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/blocks.h"
#include "model/model_file.h"
#include "server/keeper.h"
#include "net/run_folder.h"

struct keeper_jobs {
    keeper_jobs_conf_t conf;
    blocks_t blocks;
    int lock;
    checkpoint_reader_t *source;  // At most one of these two is open.
    model_file_t *init;
    checkpoint_writer_t *writer;  // Between BEGIN and FINISH or ABORT, unless a call failed.
};

keeper_jobs_t *keeper_jobs_new(const keeper_jobs_conf_t *conf)
{
    keeper_jobs_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->lock = -1;
    blocks_make(conf->model, conf->block_size, &self->blocks);
    return self;
}

void keeper_jobs_destroy(keeper_jobs_t **self_p)
{
    keeper_jobs_t *const self = *self_p;
    if (!self) {
        return;
    }
    checkpoint_abandon(&self->writer);
    checkpoint_close(&self->source);
    model_file_destroy(&self->init);
    run_folder_unlock(&self->lock);
    blocks_destroy(&self->blocks);
    free(self);
    *self_p = NULL;
}

static checkpoint_conf_t checkpoint_conf(const keeper_jobs_t *self)
{
    return (checkpoint_conf_t){
        .model = self->conf.model,
        .seed = self->conf.seed,
        .moments = self->conf.moments,
        .optimizer = self->conf.optimizer,
    };
}

// --- the source ---

static hx_err_t open_resume(keeper_jobs_t *self, uint64_t version, blob_t **record_p,
                            hx_fault_t *fault)
{
    const checkpoint_conf_t conf = checkpoint_conf(self);
    if (self->conf.resume[0] == '\0') {
        return hx_fault(fault, HX_E_ARG,
                        "the plan resumes from version %" PRIu64 ", and there is no checkpoint",
                        version);
    }
    HX_TRY(checkpoint_open(&conf, self->conf.resume, true, &self->source, fault));
    if (checkpoint_version(self->source) != version) {
        return hx_fault(fault, HX_E_ARG,
                        "%s: of version %" PRIu64 ", and the plan resumes from %" PRIu64,
                        self->conf.resume, checkpoint_version(self->source), version);
    }
    const blob_t *const record = checkpoint_record(self->source);
    *record_p = blob_copy(blob_data(record), blob_size(record));
    return HX_OK;
}

// A file, or a folder of Hugging Face's layout, which a checkpoint is too.
static hx_err_t open_init(keeper_jobs_t *self, hx_fault_t *fault)
{
    char path[CHECKPOINT_PATH_MAX];
    char manifest[CHECKPOINT_PATH_MAX];
    const char *const init = self->conf.init;
    struct stat status;
    if (stat(init, &status) == 0 && S_ISDIR(status.st_mode)) {
        if (snprintf(path, sizeof path, "%s/model.safetensors", init) >= (int)sizeof path ||
            snprintf(manifest, sizeof manifest, "%s/manifest.json", init) >= (int)sizeof manifest) {
            return hx_fault(fault, HX_E_ARG, "%.200s...: the path is too long (model.init)", init);
        }
        if (stat(manifest, &status) == 0) {
            HX_TRY(checkpoint_verify(init, fault));
        }
        return model_file_open(path, self->conf.model, &self->init, fault);
    }
    return model_file_open(init, self->conf.model, &self->init, fault);
}

static hx_err_t open_source(keeper_jobs_t *self, const step_job_t *job, blob_t **record_p,
                            hx_fault_t *fault)
{
    HX_TRY(run_folder_make(self->conf.run, fault));
    if (self->lock < 0) {
        HX_TRY(run_folder_lock(self->conf.run, "lock", &self->lock, fault));
    }
    checkpoint_clean(self->conf.run);
    if (job->flags & KEEPER_OPEN_RESUME) {
        return open_resume(self, job->version, record_p, fault);
    }
    return job->flags & KEEPER_OPEN_INIT ? open_init(self, fault) : HX_OK;
}

static hx_err_t read_block(keeper_jobs_t *self, const step_job_t *job, blob_t **value_p,
                           hx_fault_t *fault)
{
    const block_t *const block = &self->blocks.blocks[job->index];
    if (!self->source && (!self->init || job->part > 0)) {
        return hx_fault(fault, HX_E_ARG, "there is no source to read from");
    }
    blob_t *value = blob_new(block->count * sizeof(float));
    hx_err_t err = HX_OK;
    if (self->source) {
        err = checkpoint_read(self->source, job->part, block->group, block->first, block->count,
                              blob_edit(value), fault);
    } else {
        model_file_read_group(self->init, block->group, block->first, block->count,
                              blob_edit(value));
    }
    if (err != HX_OK) {
        blob_release(&value);
        return err;
    }
    *value_p = value;
    return HX_OK;
}

// --- saving ---

static hx_err_t begin(keeper_jobs_t *self, const step_job_t *job, hx_fault_t *fault)
{
    const checkpoint_conf_t conf = checkpoint_conf(self);
    checkpoint_abandon(&self->writer);
    return checkpoint_begin(&conf, self->conf.run, job->version, job->blob, &self->writer, fault);
}

static hx_err_t write_block(keeper_jobs_t *self, const step_job_t *job, hx_fault_t *fault)
{
    const block_t *const block = &self->blocks.blocks[job->index];
    if (!self->writer) {
        return hx_fault(fault, HX_E_ARG, "no checkpoint is begun");
    }
    const hx_err_t err = checkpoint_write(self->writer, job->part, block->group, block->first,
                                          block->count, blob_data(job->blob), fault);
    if (err != HX_OK) {
        checkpoint_abandon(&self->writer);
    }
    return err;
}

static hx_err_t finish(keeper_jobs_t *self, hx_fault_t *fault)
{
    if (!self->writer) {
        return hx_fault(fault, HX_E_ARG, "no checkpoint is begun");
    }
    return checkpoint_finish(&self->writer, self->conf.keep, fault);
}

static hx_err_t run(keeper_jobs_t *self, const step_job_t *job, blob_t **result_p,
                    hx_fault_t *fault)
{
    switch ((keeper_job_t)job->kind) {
    case KEEPER_JOB_OPEN:
        return open_source(self, job, result_p, fault);
    case KEEPER_JOB_READ:
        return read_block(self, job, result_p, fault);
    case KEEPER_JOB_BEGIN:
        return begin(self, job, fault);
    case KEEPER_JOB_WRITE:
        return write_block(self, job, fault);
    case KEEPER_JOB_FINISH:
        return finish(self, fault);
    case KEEPER_JOB_ABORT:
        checkpoint_abandon(&self->writer);
        return HX_OK;
    }
    HX_ASSERT(false && "a job kind of ours");
    return HX_E_ARG;
}

hx_err_t keeper_jobs_run(void *self, step_job_t *job, blob_t **result_p)
{
    hx_fault_t fault = {{0}};
    const hx_err_t err = run(self, job, result_p, &fault);
    if (err != HX_OK && fault.text[0] != '\0') {
        blob_release(result_p);
        *result_p = blob_copy(fault.text, strlen(fault.text));
    }
    return err;
}
