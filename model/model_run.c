// model_run - see the header.

#include "model/model_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILL_ELEMENTS 65536u  // Read and uploaded at once.

struct model_run {
    model_run_conf_t conf;
    const hx_backend_ops_t *ops;
    layer_span_t *span;
    layer_set_t set;
    uint32_t groups_count;
    void *memory;    // Parameters, gradients, both moments: each all groups, one after another.
    float **params;  // Of each group, as the next three; NULL in inference.
    float **grads;
    float **moments[2];
    uint64_t params_count;
};

static void point_at(const model_run_t *self, float **groups, uint64_t from)
{
    float *at = (float *)self->memory + from;
    for (uint32_t group = 0; group < self->groups_count; group++) {
        groups[group] = at;
        at += model_group(self->conf.model, group)->size;
    }
}

static hx_err_t zero(model_run_t *self, float *from, uint64_t count)
{
    return self->ops->fill(self->conf.backend, 0, HX_F32, from, 0, count);
}

static hx_err_t reserve(model_run_t *self)
{
    const model_run_conf_t *const conf = &self->conf;
    const layer_conf_t span = {
        .backend = conf->backend,
        .model = conf->model,
        .last = model_layers_count(conf->model),
        .rows = conf->rows,
        .recompute = conf->recompute,
        .inference = conf->inference,
    };
    const uint64_t count = self->params_count;
    const uint64_t copies = conf->inference ? 1 : 4;
    HX_TRY(layer_open(&span, &self->span));
    HX_TRY(self->ops->alloc(conf->backend, layer_set_size(&span), &self->set.memory));
    HX_TRY(self->ops->alloc(conf->backend, sizeof(float) * copies * count, &self->memory));
    point_at(self, self->params, 0);
    if (conf->inference) {
        return HX_OK;
    }
    point_at(self, self->grads, count);
    point_at(self, self->moments[0], 2 * count);
    point_at(self, self->moments[1], 3 * count);
    return zero(self, self->moments[0][0], 2 * count);
}

hx_err_t model_run_open(const model_run_conf_t *conf, model_run_t **run_p)
{
    HX_ASSERT(conf && conf->backend && conf->model && conf->rows >= 1 && run_p);
    model_run_t *self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->ops = conf->backend->ops;
    self->params_count = model_params_count(conf->model);
    self->groups_count = model_groups_count(conf->model);
    self->params = hx_new(self->groups_count, sizeof *self->params);
    self->grads = hx_new(self->groups_count, sizeof *self->grads);
    self->moments[0] = hx_new(self->groups_count, sizeof *self->moments[0]);
    self->moments[1] = hx_new(self->groups_count, sizeof *self->moments[1]);
    const hx_err_t err = reserve(self);
    if (err != HX_OK) {
        model_run_destroy(&self);
        return err;
    }
    *run_p = self;
    return HX_OK;
}

void model_run_destroy(model_run_t **self_p)
{
    HX_ASSERT(self_p);
    model_run_t *const self = *self_p;
    if (!self) {
        return;
    }
    self->ops->release(self->conf.backend, &self->memory);
    self->ops->release(self->conf.backend, &self->set.memory);
    layer_destroy(&self->span);
    free(self->params);
    free(self->grads);
    free(self->moments[0]);
    free(self->moments[1]);
    free(self);
    *self_p = NULL;
}

static hx_err_t fill_group(model_run_t *self, uint32_t group, model_read_fn *read, void *read_self,
                           float *buffer)
{
    const uint64_t size = model_group(self->conf.model, group)->size;
    for (uint64_t first = 0; first < size; first += FILL_ELEMENTS) {
        const uint64_t count = HX_MIN(size - first, FILL_ELEMENTS);
        read(read_self, group, first, count, buffer);
        HX_TRY(self->ops->upload(self->conf.backend, 0, self->params[group] + first, buffer,
                                 sizeof *buffer * count));
        HX_TRY(self->ops->sync(self->conf.backend, 0));
    }
    return HX_OK;
}

hx_err_t model_run_fill(model_run_t *self, model_read_fn *read, void *read_self)
{
    float *const buffer = hx_new(FILL_ELEMENTS, sizeof *buffer);
    hx_err_t err = HX_OK;
    for (uint32_t group = 0; group < self->groups_count && err == HX_OK; group++) {
        err = fill_group(self, group, read, read_self, buffer);
    }
    free(buffer);
    return err;
}

typedef struct {
    const model_t *model;
    uint64_t seed;
} seeded_t;

static void read_seeded(void *read_self, uint32_t group, uint64_t first, uint64_t count, float *out)
{
    const seeded_t *const seeded = read_self;
    model_init_group(seeded->model, group, seeded->seed, first, count, out);
}

hx_err_t model_run_init(model_run_t *self, uint64_t seed)
{
    seeded_t seeded = {.model = self->conf.model, .seed = seed};
    return model_run_fill(self, read_seeded, &seeded);
}

float *model_run_params(const model_run_t *self, uint32_t group)
{
    HX_ASSERT(group < self->groups_count);
    return self->params[group];
}

float *model_run_grads(const model_run_t *self, uint32_t group)
{
    HX_ASSERT(group < self->groups_count && !self->conf.inference);
    return self->grads[group];
}

static layer_weights_t weights_of(const model_run_t *self)
{
    return (layer_weights_t){
        .params = (const float *const *)self->params,
        .grads = self->conf.inference ? NULL : self->grads,
    };
}

// The sum of the loss over all rows, microbatch by microbatch, and the gradient of its mean.
static hx_err_t walk_rows(model_run_t *self, const int32_t *tokens, const int32_t *targets,
                          uint32_t rows, double *sum)
{
    const uint32_t context = model_conf(self->conf.model)->context;
    const layer_weights_t weights = weights_of(self);
    const double scale = 1.0 / ((double)rows * context);
    *sum = 0;
    for (uint32_t first = 0; first < rows; first += self->set.rows) {
        const size_t at = (size_t)first * context;
        double loss = 0;
        self->set.rows = HX_MIN(rows - first, self->conf.rows);
        self->set.time = context;
        HX_TRY(layer_forward(self->span, &self->set, &weights, tokens + at, targets + at, scale,
                             &loss));
        if (!self->conf.inference) {
            HX_TRY(layer_backward(self->span, &self->set, &weights));
        }
        *sum += loss;
    }
    return HX_OK;
}

static hx_err_t mean_loss(model_run_t *self, const int32_t *tokens, const int32_t *targets,
                          uint32_t rows, double *loss)
{
    HX_ASSERT(rows >= 1);
    double sum = 0;
    HX_TRY(walk_rows(self, tokens, targets, rows, &sum));
    *loss = sum / ((double)rows * model_conf(self->conf.model)->context);
    return HX_OK;
}

hx_err_t model_run_gradient(model_run_t *self, const int32_t *tokens, const int32_t *targets,
                            uint32_t rows, double *loss)
{
    HX_ASSERT(!self->conf.inference);
    HX_TRY(zero(self, self->grads[0], self->params_count));
    return mean_loss(self, tokens, targets, rows, loss);
}

hx_err_t model_run_norm(model_run_t *self, double *norm)
{
    double sum = 0;
    HX_ASSERT(!self->conf.inference);
    HX_TRY(self->ops->sumsq(self->conf.backend, 0, self->grads[0], self->params_count, &sum));
    *norm = sqrt(sum);
    return HX_OK;
}

typedef struct {
    model_run_t *run;
    uint32_t group;
    const optim_conf_t *conf;
    const optim_step_t *step;
    hx_err_t err;
} update_t;

static void update_range(void *each_self, uint64_t first, uint64_t count, bool decay)
{
    update_t *const update = each_self;
    const model_run_t *const run = update->run;
    const uint32_t moments = optim_moments_count(update->conf);
    float *const w = run->params[update->group] + first;
    float *const m = moments > 0 ? run->moments[0][update->group] + first : NULL;
    float *const v = moments > 1 ? run->moments[1][update->group] + first : NULL;
    const optim_block_t block = {
        .count = count,
        .decay = decay,
        .w = w,
        .m = m,
        .v = v,
        .g = run->grads[update->group] + first,
        .w_out = w,
        .m_out = m,
        .v_out = v,
    };
    if (update->err == HX_OK) {
        update->err = optim_apply(run->conf.backend, 0, update->conf, update->step, &block);
    }
}

hx_err_t model_run_update(model_run_t *self, const optim_conf_t *conf, const optim_step_t *step)
{
    HX_ASSERT(!self->conf.inference);
    update_t update = {.run = self, .conf = conf, .step = step, .err = HX_OK};
    for (uint32_t group = 0; group < self->groups_count; group++) {
        update.group = group;
        model_decay_runs(self->conf.model, group, 0, model_group(self->conf.model, group)->size,
                         update_range, &update);
    }
    return update.err;
}

hx_err_t model_run_loss(model_run_t *self, const int32_t *tokens, const int32_t *targets,
                        uint32_t rows, double *loss)
{
    HX_ASSERT(self->conf.inference);
    return mean_loss(self, tokens, targets, rows, loss);
}

hx_err_t model_run_logits(model_run_t *self, const int32_t *tokens, uint32_t time, uint32_t first,
                          float *logits)
{
    HX_ASSERT(self->conf.inference && first < time);
    const layer_weights_t weights = weights_of(self);
    self->set.rows = 1;
    self->set.time = time;
    HX_TRY(layer_forward(self->span, &self->set, &weights, tokens, NULL, 0, NULL));
    return layer_logits(self->span, &self->set, &weights, first, time - first, logits);
}
