// sim_jobs - see the header.

#include "bench/sim_jobs.h"

#include <math.h>
#include <stdlib.h>

#include "net/payload.h"
#include "server/keeper.h"
#include "worker/worker_job.h"

#define MEMORY_RATE 4e9  // Bytes a second that a copy or an optimizer step moves.
#define DISK_RATE 2e8

// Seconds of computing as they become through the device's slow phases.
static double through_phases(sim_work_t *self, hx_rng_t *rng, double seconds)
{
    double time = 0;
    while (self->phase_gap > 0 && seconds > 0) {
        if (self->phase_left <= 0) {
            self->slow = self->phases++ > 0 && !self->slow;
            const double mean = self->slow ? self->phase_length : self->phase_gap;
            self->phase_left = 1e-6 - mean * log(1 - hx_rng_unit(rng));
        }
        const double factor = self->slow ? self->phase_factor : 1;
        const double part = fmin(seconds * factor, self->phase_left);
        time += part;
        seconds -= part / factor;
        self->phase_left -= part;
    }
    return time + seconds;
}

// Seconds to virtual time, with this device's noise.
static hx_time_t noisy(const sim_work_t *self, hx_rng_t *rng, double seconds)
{
    double time = seconds * (1 + self->jitter * hx_rng_unit(rng));
    if (hx_rng_unit(rng) < self->hiccup_chance) {
        time *= self->hiccup_factor;
    }
    return (hx_time_t)(1e9 * time) + HX_US(1);
}

// Flops of layers [first, end) for one row; `backward` counts both halves.
static double flops_of(const model_t *model, uint32_t first, uint32_t end, bool backward)
{
    double sum = 0;
    for (uint32_t layer = first; layer < end; layer++) {
        const model_layer_t *const at = model_layer(model, layer);
        sum += backward ? at->backward_flops : at->forward_flops;
    }
    return sum;
}

static blob_t *profile(const sim_work_t *self)
{
    const uint32_t last = model_layers_count(self->model) - 1;
    const double flops = self->flops;
    profile_t made = {
        .microbatch = 4,
        .memory = (uint64_t)1 << 34,
        .threads = 1,
        .slowdown = 1,
    };
    const uint32_t layers[3] = {0, 1, last};
    profile_time_t *const times[3] = {&made.embed, &made.block, &made.head};
    for (int at = 0; at < 3; at++) {
        const uint32_t layer = layers[at];
        times[at]->forward = 4 * flops_of(self->model, layer, layer + 1, false) / flops + 1e-6;
        times[at]->backward = 4 * flops_of(self->model, layer, layer + 1, true) / flops + 1e-6;
    }
    return payload_profile_encode(&made);
}

static size_t boundary_size(const sim_work_t *self, const step_job_t *job)
{
    return (size_t)model_layer(self->model, 0)->output_size * job->rows;
}

hx_err_t sim_worker_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                        hx_time_t *duration)
{
    sim_work_t *const self = worker;
    const uint32_t context = model_conf(self->model)->context;
    double seconds = 1e-6;
    hx_err_t err = HX_OK;
    switch ((worker_job_kind_t)job->kind) {
    case WORKER_JOB_PROFILE:
        seconds = 0.1;
        *result = profile(self);
        break;
    case WORKER_JOB_OPEN:
        self->layer_first = job->index;
        seconds = 0.01;
        break;
    case WORKER_JOB_LOAD:
        seconds = (double)blob_size(job->blob) / MEMORY_RATE;
        break;
    case WORKER_JOB_FORWARD:
        seconds = job->rows * flops_of(self->model, job->index, job->part, false) / self->flops;
        if (job->part < model_layers_count(self->model)) {
            *result = blob_virtual(boundary_size(self, job));
        } else if (!self->run) {
            job->tokens = (uint64_t)job->rows * (context - self->blanks);
            job->value = 2.0 * (double)job->tokens;
        }
        break;
    case WORKER_JOB_BACKWARD:
        seconds = job->rows * flops_of(self->model, job->index, job->part, true) / self->flops;
        if (job->index > 0 && job->index == self->layer_first &&
            (job->flags & WORKER_JOB_BACKWARD_INPUT)) {
            *result = blob_virtual(boundary_size(self, job));
        }
        break;
    case WORKER_JOB_GRAD:
    case WORKER_JOB_SUM:
        *result = blob_virtual(self->blocks->blocks[job->index].count * sizeof(float));
        seconds = (double)blob_size(*result) / MEMORY_RATE;
        job->tokens = 1;
        break;
    case WORKER_JOB_STASH:
    case WORKER_JOB_DROP:
    case WORKER_JOB_SLOWDOWN:
        break;
    }
    if (self->run && job->kind != WORKER_JOB_PROFILE) {
        blob_release(result);
        err = self->run(self->jobs, job, result);
    }
    *duration = noisy(self, rng, through_phases(self, rng, seconds));
    self->busy += (double)*duration / 1e9;
    return err;
}

static blob_t *votes(const sim_work_t *self, hx_rng_t *rng)
{
    const uint32_t count = ps_shard_info(self->shard).blocks;
    double *const sums = hx_new(count, sizeof *sums);
    for (uint32_t at = 0; at < count; at++) {
        sums[at] = 0.1 * hx_rng_unit(rng);  // Some rounds are clipped, some are not.
    }
    blob_t *const blob = payload_doubles_encode(sums, count);
    free(sums);
    return blob;
}

hx_err_t sim_shard_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                       hx_time_t *duration)
{
    const sim_work_t *const self = worker;
    double bytes = (double)blob_size(job->blob);
    hx_err_t err = HX_OK;
    switch ((shard_job_t)job->kind) {
    case SHARD_JOB_HOLD:
        if (hx_rng_unit(rng) < self->nonfinite) {
            job->flags = SHARD_HOLD_NONFINITE;
        }
        break;
    case SHARD_JOB_SUM:
        *result = votes(self, rng);
        bytes = 4.0 * (double)model_params_count(self->model);
        break;
    case SHARD_JOB_STEP:
        bytes = 24.0 * (double)self->blocks->blocks[job->index].count;
        break;
    case SHARD_JOB_APPLY:
        break;
    case SHARD_JOB_READ:
        *result = blob_virtual(self->blocks->blocks[job->index].count * sizeof(float));
        break;
    case SHARD_JOB_INIT:
    case SHARD_JOB_LOAD:
    case SHARD_JOB_DROP:
    case SHARD_JOB_UNPIN:
        break;
    }
    if (self->run) {
        blob_release(result);
        err = self->run(self->jobs, job, result);
    }
    *duration = noisy(self, rng, bytes / MEMORY_RATE);
    return err;
}

hx_err_t sim_keeper_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                        hx_time_t *duration)
{
    const sim_work_t *const self = worker;
    hx_err_t err = HX_OK;
    if (job->kind == KEEPER_JOB_READ) {
        *result = blob_virtual(self->blocks->blocks[job->index].count * sizeof(float));
    }
    if (job->kind == KEEPER_JOB_FINISH && hx_rng_unit(rng) < self->save_failure) {
        static const char why[] = "no space left on the virtual disk";
        *result = blob_copy(why, sizeof why - 1);
        err = HX_E_NOSPC;
    }
    *duration = noisy(self, rng, 1e-4 + (double)blob_size(job->blob) / DISK_RATE);
    return err;
}

hx_err_t sim_file_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                      hx_time_t *duration)
{
    (void)job;
    (void)result;
    *duration = noisy(worker, rng, 1e-3);
    return HX_OK;
}
