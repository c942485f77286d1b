// inner - see the header.

#include "worker/inner.h"

#include <math.h>
#include <stdlib.h>

#define ARRAYS_MAX 3u  // w0 and two moments.

struct inner {
    inner_conf_t conf;
    stage_t *stage;
    hx_backend_t *backend;
    uint32_t vectors_count;
    float **arrays[ARRAYS_MAX];  // By place: w0, m, v.
    uint32_t arrays_count;
    uint64_t steps;
    bool spoiled;
};

static uint32_t arrays_of(const inner_conf_t *conf)
{
    return 1 + optim_moments_count(&conf->optim);
}

uint64_t inner_size(const inner_conf_t *conf, const stage_t *stage)
{
    uint64_t size = 0;
    for (uint32_t place = 0; place < stage_vectors_count(stage); place++) {
        size += stage_vector(stage, 0, place).size * sizeof(float);
    }
    return size * arrays_of(conf);
}

static hx_err_t open_arrays(inner_t *self)
{
    const hx_backend_ops_t *const ops = self->backend->ops;
    for (uint32_t array = 0; array < self->arrays_count; array++) {
        for (uint32_t place = 0; place < self->vectors_count; place++) {
            const size_t size = stage_vector(self->stage, 0, place).size;
            float **const to = &self->arrays[array][place];
            HX_TRY(ops->alloc(self->backend, size * sizeof(float), (void **)to));
            HX_TRY(ops->fill(self->backend, 0, HX_F32, *to, 0, size));
        }
    }
    return ops->sync(self->backend, 0);
}

hx_err_t inner_open(const inner_conf_t *conf, stage_t *stage, inner_t **inner_p)
{
    inner_t *self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->stage = stage;
    self->backend = stage_conf(stage)->backend;
    self->vectors_count = stage_vectors_count(stage);
    self->arrays_count = arrays_of(conf);
    for (uint32_t array = 0; array < self->arrays_count; array++) {
        self->arrays[array] = hx_new(self->vectors_count, sizeof(float *));
    }
    const hx_err_t err = open_arrays(self);
    if (err != HX_OK) {
        inner_destroy(&self);
        return err;
    }
    *inner_p = self;
    return HX_OK;
}

void inner_destroy(inner_t **inner_p)
{
    inner_t *const self = *inner_p;
    if (!self) {
        return;
    }
    for (uint32_t array = 0; array < self->arrays_count; array++) {
        for (uint32_t place = 0; place < self->vectors_count; place++) {
            self->backend->ops->release(self->backend, (void **)&self->arrays[array][place]);
        }
        free(self->arrays[array]);
    }
    free(self);
    *inner_p = NULL;
}

hx_err_t inner_begin(inner_t *self, uint32_t buffer)
{
    const hx_backend_ops_t *const ops = self->backend->ops;
    self->spoiled = false;
    for (uint32_t place = 0; place < self->vectors_count; place++) {
        const stage_vector_t from = stage_vector(self->stage, buffer, place);
        HX_TRY(ops->copy(self->backend, 0, self->arrays[0][place], from.params,
                         from.size * sizeof(float)));
    }
    return ops->sync(self->backend, 0);
}

// ---- a step

static hx_err_t norm_of(inner_t *self, uint32_t buffer, double *norm)
{
    double sum = 0;
    for (uint32_t place = 0; place < self->vectors_count; place++) {
        const stage_vector_t vector = stage_vector(self->stage, buffer, place);
        double squares = 0;
        HX_TRY(self->backend->ops->sumsq(self->backend, 0, vector.grads, vector.size, &squares));
        sum += squares;
    }
    *norm = sqrt(sum);
    return HX_OK;
}

typedef struct {
    const inner_t *inner;
    const optim_step_t *step;
    stage_vector_t vector;
    uint32_t place;
    hx_err_t err;
} run_t;

static float *moment_at(const run_t *run, uint32_t array, uint64_t at)
{
    const inner_t *const self = run->inner;
    return array < self->arrays_count ? self->arrays[array][run->place] + at : NULL;
}

// A model_decay_fn.
static void step_run_of(void *each_self, uint64_t first, uint64_t count, bool decay)
{
    run_t *const run = each_self;
    const optim_block_t block = {
        .count = count,
        .decay = decay,
        .w = run->vector.params + first,
        .m = moment_at(run, 1, first),
        .v = moment_at(run, 2, first),
        .g = run->vector.grads + first,
        .w_out = run->vector.params + first,
        .m_out = moment_at(run, 1, first),
        .v_out = moment_at(run, 2, first),
    };
    if (run->err == HX_OK) {
        run->err = optim_apply(run->inner->backend, 0, &run->inner->conf.optim, run->step, &block);
    }
}

hx_err_t inner_step(inner_t *self, uint32_t buffer, double lr)
{
    double norm = 0;
    HX_TRY(norm_of(self, buffer, &norm));
    self->spoiled = self->spoiled || !isfinite(norm);
    const double clip = self->conf.clip;
    const optim_step_t step = {.lr = lr,
                               .scale = 1,
                               .gradient_scale = clip > 0 && norm > clip ? clip / norm : 1,
                               .step = self->steps + 1};
    for (uint32_t place = 0; place < self->vectors_count && !self->spoiled; place++) {
        run_t run = {.inner = self,
                     .step = &step,
                     .vector = stage_vector(self->stage, buffer, place),
                     .place = place};
        model_decay_runs(stage_conf(self->stage)->model, run.vector.group, 0, run.vector.size,
                         step_run_of, &run);
        HX_TRY(run.err);
    }
    self->steps += self->spoiled ? 0 : 1;
    return stage_zero_gradients(self->stage);
}

hx_err_t inner_delta(inner_t *self, uint32_t buffer, uint32_t block, float *out)
{
    const hx_backend_ops_t *const ops = self->backend->ops;
    const block_t *const cut = &stage_conf(self->stage)->blocks->blocks[block];
    const size_t count = (size_t)cut->count;
    if (self->spoiled) {
        for (size_t at = 0; at < count; at++) {
            out[at] = NAN;
        }
        return HX_OK;
    }
    uint32_t place = 0;
    while (stage_vector(self->stage, buffer, place).group != cut->group) {
        place++;
    }
    const stage_vector_t vector = stage_vector(self->stage, buffer, place);
    // The gradients are 0 and not in use: room to compute in.
    float *const room = vector.grads + cut->first;
    HX_TRY(ops->copy(self->backend, 0, room, self->arrays[0][place] + cut->first,
                     count * sizeof(float)));
    HX_TRY(ops->axpy(self->backend, 0, room, -1, vector.params + cut->first, count));
    return stage_take_gradient(self->stage, block, out);
}
