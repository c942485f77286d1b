// stage - see the header.

#include "worker/stage.h"

#include "worker/worker_job.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    layer_span_t *span;
    layer_set_t *sets;        // conf.sets of them.
    const float **params[2];  // Of the span's groups, in each buffer.
    float **grads;
} slice_t;

struct stage {
    stage_conf_t conf;
    const hx_backend_ops_t *ops;
    slice_t slices[WORKER_SLICES_MAX];
    uint32_t slices_count;
    uint32_t *groups;  // Of the stage, ascending.
    uint32_t groups_count;
    float **params[2];  // By place in `groups`: flat vectors on the backend.
    float **grads;
};

static layer_conf_t span_conf(const stage_conf_t *conf, uint32_t slice)
{
    return (layer_conf_t){
        .backend = conf->backend,
        .model = conf->model,
        .first = worker_slice_first(conf->first, conf->end, slice),
        .last = worker_slice_first(conf->first, conf->end, slice + 1),
        .rows = conf->rows,
        .recompute = conf->recompute,
    };
}

uint64_t stage_size(const stage_conf_t *conf)
{
    uint32_t *const groups = hx_new(model_groups_count(conf->model), sizeof *groups);
    const uint32_t count = model_groups_of(conf->model, conf->first, conf->end, groups);
    uint64_t size = 0;
    for (uint32_t place = 0; place < count; place++) {
        size += 3 * sizeof(float) * model_group(conf->model, groups[place])->size;
    }
    free(groups);
    for (uint32_t slice = 0; slice < worker_slices(conf->first, conf->end); slice++) {
        const layer_conf_t span = span_conf(conf, slice);
        size += layer_scratch_size(&span) + (uint64_t)conf->sets * layer_set_size(&span);
    }
    return size;
}

static uint32_t place_of(const stage_t *self, uint32_t group)
{
    for (uint32_t place = 0; place < self->groups_count; place++) {
        if (self->groups[place] == group) {
            return place;
        }
    }
    return UINT32_MAX;
}

static size_t group_size(const stage_t *self, uint32_t place)
{
    return (size_t)model_group(self->conf.model, self->groups[place])->size;
}

static hx_err_t open_groups(stage_t *self)
{
    hx_backend_t *const backend = self->conf.backend;
    for (uint32_t place = 0; place < self->groups_count; place++) {
        const size_t size = group_size(self, place) * sizeof(float);
        HX_TRY(self->ops->alloc(backend, size, (void **)&self->params[0][place]));
        HX_TRY(self->ops->alloc(backend, size, (void **)&self->params[1][place]));
        HX_TRY(self->ops->alloc(backend, size, (void **)&self->grads[place]));
    }
    return stage_zero_gradients(self);
}

// The span's own order of groups, as pointers into the stage's vectors.
static void point_groups(stage_t *self, slice_t *slice)
{
    uint32_t *const groups = hx_new(model_groups_count(self->conf.model), sizeof *groups);
    const uint32_t count = layer_groups(slice->span, groups);
    slice->params[0] = hx_new(count, sizeof *slice->params[0]);
    slice->params[1] = hx_new(count, sizeof *slice->params[1]);
    slice->grads = hx_new(count, sizeof *slice->grads);
    for (uint32_t index = 0; index < count; index++) {
        const uint32_t place = place_of(self, groups[index]);
        HX_ASSERT(place < self->groups_count);
        slice->params[0][index] = self->params[0][place];
        slice->params[1][index] = self->params[1][place];
        slice->grads[index] = self->grads[place];
    }
    free(groups);
}

static hx_err_t open_slice(stage_t *self, uint32_t index)
{
    slice_t *const slice = &self->slices[index];
    const layer_conf_t conf = span_conf(&self->conf, index);
    HX_TRY(layer_open(&conf, &slice->span));
    point_groups(self, slice);
    slice->sets = hx_new(self->conf.sets, sizeof *slice->sets);
    for (uint32_t set = 0; set < self->conf.sets; set++) {
        HX_TRY(
            self->ops->alloc(self->conf.backend, layer_set_size(&conf), &slice->sets[set].memory));
    }
    return HX_OK;
}

hx_err_t stage_open(const stage_conf_t *conf, stage_t **stage_p)
{
    HX_ASSERT(conf->first < conf->end && conf->end <= model_layers_count(conf->model));
    HX_ASSERT(conf->rows > 0 && conf->sets > 0);
    stage_t *self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->ops = conf->backend->ops;
    self->slices_count = worker_slices(conf->first, conf->end);
    self->groups = hx_new(model_groups_count(conf->model), sizeof *self->groups);
    self->groups_count = model_groups_of(conf->model, conf->first, conf->end, self->groups);
    self->params[0] = hx_new(self->groups_count, sizeof *self->params[0]);
    self->params[1] = hx_new(self->groups_count, sizeof *self->params[1]);
    self->grads = hx_new(self->groups_count, sizeof *self->grads);
    hx_err_t err = open_groups(self);
    for (uint32_t slice = 0; slice < self->slices_count && err == HX_OK; slice++) {
        err = open_slice(self, slice);
    }
    if (err != HX_OK) {
        stage_destroy(&self);
        return err;
    }
    *stage_p = self;
    return HX_OK;
}

static void close_slice(stage_t *self, slice_t *slice)
{
    for (uint32_t set = 0; slice->sets && set < self->conf.sets; set++) {
        self->ops->release(self->conf.backend, &slice->sets[set].memory);
    }
    layer_destroy(&slice->span);
    free(slice->sets);
    free(slice->params[0]);
    free(slice->params[1]);
    free(slice->grads);
}

void stage_destroy(stage_t **stage_p)
{
    stage_t *const self = *stage_p;
    if (!self) {
        return;
    }
    for (uint32_t slice = 0; slice < self->slices_count; slice++) {
        close_slice(self, &self->slices[slice]);
    }
    for (uint32_t place = 0; place < self->groups_count; place++) {
        self->ops->release(self->conf.backend, (void **)&self->params[0][place]);
        self->ops->release(self->conf.backend, (void **)&self->params[1][place]);
        self->ops->release(self->conf.backend, (void **)&self->grads[place]);
    }
    free(self->params[0]);
    free(self->params[1]);
    free(self->grads);
    free(self->groups);
    free(self);
    *stage_p = NULL;
}

const stage_conf_t *stage_conf(const stage_t *self)
{
    return &self->conf;
}

uint32_t stage_vectors_count(const stage_t *self)
{
    return self->groups_count;
}

stage_vector_t stage_vector(const stage_t *self, uint32_t buffer, uint32_t place)
{
    HX_ASSERT(buffer < 2 && place < self->groups_count);
    return (stage_vector_t){
        .group = self->groups[place],
        .size = group_size(self, place),
        .params = self->params[buffer][place],
        .grads = self->grads[place],
    };
}

bool stage_has_block(const stage_t *self, uint32_t block)
{
    HX_ASSERT(block < self->conf.blocks->count);
    return place_of(self, self->conf.blocks->blocks[block].group) != UINT32_MAX;
}

hx_err_t stage_load(stage_t *self, uint32_t buffer, uint32_t block, const void *values)
{
    HX_ASSERT(buffer < 2 && stage_has_block(self, block));
    const block_t *const cut = &self->conf.blocks->blocks[block];
    float *const to = self->params[buffer][place_of(self, cut->group)] + cut->first;
    hx_backend_t *const backend = self->conf.backend;
    HX_TRY(self->ops->upload(backend, 0, to, values, (size_t)cut->count * sizeof(float)));
    return self->ops->sync(backend, 0);
}

static bool is_first(const stage_t *self, uint32_t slice)
{
    return slice == 0 && self->conf.first == 0;
}

static bool is_last(const stage_t *self, uint32_t slice)
{
    return slice + 1 == self->slices_count &&
           self->conf.end == model_layers_count(self->conf.model);
}

static layer_weights_t weights_of(const slice_t *slice, uint32_t buffer)
{
    return (layer_weights_t){.params = slice->params[buffer], .grads = slice->grads};
}

static float *input_of(const slice_t *slice, uint32_t set)
{
    return layer_input(slice->span, &slice->sets[set]);
}

static float *output_of(const slice_t *slice, uint32_t set)
{
    return layer_output(slice->span, &slice->sets[set]);
}

static hx_err_t forward_slice(stage_t *self, const stage_forward_t *args, uint32_t index)
{
    hx_backend_t *const backend = self->conf.backend;
    slice_t *const slice = &self->slices[index];
    layer_set_t *const set = &slice->sets[args->set];
    set->rows = args->rows;
    set->time = model_conf(self->conf.model)->context;
    const size_t size = layer_boundary_size(slice->span, set);
    if (index > 0) {
        const float *const from = output_of(&self->slices[index - 1], args->set);
        HX_TRY(self->ops->copy(backend, 0, input_of(slice, args->set), from, size));
    } else if (!is_first(self, 0)) {
        HX_TRY(self->ops->upload(backend, 0, input_of(slice, args->set), args->input, size));
    }
    const layer_weights_t weights = weights_of(slice, args->buffer);
    double loss = 0;
    HX_TRY(layer_forward(slice->span, set, &weights, is_first(self, index) ? args->tokens : NULL,
                         is_last(self, index) ? args->targets : NULL, args->loss_scale, &loss));
    if (is_last(self, index)) {
        *args->loss = loss;
    } else if (index + 1 == self->slices_count) {
        HX_TRY(self->ops->download(backend, 0, args->output, output_of(slice, args->set), size));
    }
    return HX_OK;
}

hx_err_t stage_forward(stage_t *self, const stage_forward_t *args)
{
    HX_ASSERT(args->set < self->conf.sets && args->buffer < 2);
    HX_ASSERT(args->rows > 0 && args->rows <= self->conf.rows);
    for (uint32_t slice = 0; slice < self->slices_count; slice++) {
        HX_TRY(forward_slice(self, args, slice));
    }
    return self->ops->sync(self->conf.backend, 0);
}

// The gradient of a slice's output, from the host or from the slice behind.
static hx_err_t give_gradient(stage_t *self, const stage_backward_t *args, uint32_t index)
{
    hx_backend_t *const backend = self->conf.backend;
    const slice_t *const slice = &self->slices[index];
    if (is_last(self, index)) {
        return HX_OK;
    }
    const size_t size = layer_boundary_size(slice->span, &slice->sets[args->set]);
    float *const to = output_of(slice, args->set);
    if (index + 1 == self->slices_count) {
        return self->ops->upload(backend, 0, to, args->gradient, size);
    }
    const float *const from = input_of(&self->slices[index + 1], args->set);
    return self->ops->copy(backend, 0, to, from, size);
}

static hx_err_t backward_slice(stage_t *self, const stage_backward_t *args, uint32_t index)
{
    slice_t *const slice = &self->slices[index];
    layer_set_t *const set = &slice->sets[args->set];
    const layer_weights_t weights = weights_of(slice, args->buffer);
    if (!args->input) {
        return layer_backward_weight(slice->span, set, &weights);
    }
    HX_TRY(give_gradient(self, args, index));
    if (!args->weight) {
        HX_TRY(layer_backward_input(slice->span, set, &weights));
    } else {
        HX_TRY(layer_backward(slice->span, set, &weights));
    }
    if (index > 0 || is_first(self, index)) {
        return HX_OK;
    }
    return self->ops->download(self->conf.backend, 0, args->output, input_of(slice, args->set),
                               layer_boundary_size(slice->span, set));
}

hx_err_t stage_backward(stage_t *self, const stage_backward_t *args)
{
    HX_ASSERT(args->set < self->conf.sets && args->buffer < 2);
    HX_ASSERT(args->input || args->weight);
    HX_ASSERT(self->conf.first <= args->first && args->end <= self->conf.end);
    bool any = false;
    for (uint32_t index = self->slices_count; index-- > 0;) {
        const layer_conf_t span = span_conf(&self->conf, index);
        if (args->first <= span.first && span.last <= args->end) {
            HX_TRY(backward_slice(self, args, index));
            any = true;
        }
    }
    HX_ASSERT(any);
    return self->ops->sync(self->conf.backend, 0);
}

hx_err_t stage_take_gradient(stage_t *self, uint32_t block, void *out)
{
    HX_ASSERT(stage_has_block(self, block));
    const block_t *const cut = &self->conf.blocks->blocks[block];
    float *const from = self->grads[place_of(self, cut->group)] + cut->first;
    hx_backend_t *const backend = self->conf.backend;
    HX_TRY(self->ops->download(backend, 0, out, from, (size_t)cut->count * sizeof(float)));
    HX_TRY(self->ops->fill(backend, 0, HX_F32, from, 0, (size_t)cut->count));
    return self->ops->sync(backend, 0);
}

hx_err_t stage_zero_gradients(stage_t *self)
{
    for (uint32_t place = 0; place < self->groups_count; place++) {
        HX_TRY(self->ops->fill(self->conf.backend, 0, HX_F32, self->grads[place], 0,
                               group_size(self, place)));
    }
    return self->ops->sync(self->conf.backend, 0);
}
