// layer - see the header.
//
// Memory of a set, in this order; n is rows x context, C channels:
//
//     training   tokens, targets | streams: the input of each layer, the output of the last |
//                the head's tensors | the tensors of each block
//     recompute  the same without those of blocks: one copy in the scratch serves them all
//     inference  as recompute, with a single stream, in which each layer leaves its output
//
// In the backward of a block its tensors turn into gradients, each when its value has been used:
//
//     output stream = its gradient, given      wide = d wide      middle = d middle
//     qkv = d qkv (only if the weight part comes apart)           input stream = its gradient
//
// so that the weight part finds input and output gradient of all four matrices in the set.

#include "model/layer.h"

#include "model/layer_kinds.h"

#include <stdlib.h>

#define ALIGN_FLOATS 16u            // Every region begins on a cache line.
#define LOGITS_ROWS_INFERENCE 512u  // Where no backward will want the logits of all rows.

// Where everything of a set lies, in floats from its start.
typedef struct {
    size_t tokens;
    size_t targets;
    size_t streams;
    size_t stream_step;  // 0: all layers share one.
    size_t head_norm;    // (n, C)
    size_t head_mean;    // (n)
    size_t head_rstd;    // (n)
    size_t blocks;
    size_t block_step;  // 0: blocks use the scratch.
    size_t end;
} layout_t;

// Where everything of the scratch lies, likewise.
typedef struct {
    size_t big;     // (n, 4 C)
    size_t small;   // (n, C)
    size_t block;   // The tensors of one block, if sets have none.
    size_t losses;  // (n)
    size_t logits;  // (logits_rows, logits_pitch)
    size_t logits_rows;
    size_t logits_pitch;
    size_t end;
} scratch_t;

struct layer_span {
    layer_conf_t conf;
    const hx_backend_ops_t *ops;
    size_t channels;
    size_t vocab;
    layout_t layout;
    scratch_t at;
    size_t tensors[BLOCK_TENSORS_COUNT];  // Of a block, in floats from its start.
    void *scratch;
    float *losses_host;     // (n)
    const void *logits_of;  // The set whose gradient the logits hold, or NULL.
    uint32_t *groups;       // Of the span, ascending.
    uint32_t *last_use;     // Of each group: the lowest layer that uses it, the last in a backward.
    uint32_t groups_count;
};

static size_t aligned(size_t floats)
{
    return (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static bool has_kind(const layer_conf_t *conf, layer_kind_t kind)
{
    for (uint32_t layer = conf->first; layer < conf->last; layer++) {
        if (model_layer(conf->model, layer)->kind == kind) {
            return true;
        }
    }
    return false;
}

static size_t places(const layer_conf_t *conf)
{
    return (size_t)conf->rows * model_conf(conf->model)->context;
}

static size_t floats_of(const layer_conf_t *conf, block_tensor_t tensor)
{
    const model_conf_t *const model = model_conf(conf->model);
    static const size_t widths[BLOCK_TENSORS_COUNT] = {
        [BLOCK_NORM_1] = 1, [BLOCK_QKV] = 3,  [BLOCK_ATTENDED] = 1, [BLOCK_MIDDLE] = 1,
        [BLOCK_NORM_2] = 1, [BLOCK_WIDE] = 4, [BLOCK_GELU] = 4,
    };
    const size_t width = widths[tensor] * model->channels;
    return aligned(places(conf) * (tensor == BLOCK_STATS ? model->heads : HX_MAX(width, 1)));
}

static size_t lay_block(const layer_conf_t *conf, size_t *tensors)
{
    size_t at = 0;
    for (uint32_t tensor = 0; tensor < BLOCK_TENSORS_COUNT; tensor++) {
        if (tensors) {
            tensors[tensor] = at;
        }
        at += floats_of(conf, (block_tensor_t)tensor);
    }
    return at;
}

static size_t take(size_t *at, size_t floats)
{
    const size_t here = *at;
    *at += aligned(floats);
    return here;
}

static layout_t lay_set(const layer_conf_t *conf)
{
    const size_t n = places(conf);
    const size_t stream = n * model_conf(conf->model)->channels;
    const bool embed = has_kind(conf, LAYER_EMBED);
    const bool head = has_kind(conf, LAYER_HEAD);
    const size_t streams = conf->inference ? 1 : conf->last - conf->first + 1 - embed - head;
    const bool blocks = !conf->recompute && !conf->inference;
    layout_t set = {0};
    size_t at = 0;
    set.tokens = take(&at, embed ? n : 0);
    set.targets = take(&at, head ? n : 0);
    set.stream_step = conf->inference ? 0 : aligned(stream);
    set.streams = take(&at, streams * aligned(stream));
    set.head_norm = take(&at, head ? stream : 0);
    set.head_mean = take(&at, head ? n : 0);
    set.head_rstd = take(&at, head ? n : 0);
    set.block_step = blocks ? lay_block(conf, NULL) : 0;
    set.blocks = take(&at, (conf->last - conf->first - embed - head) * set.block_step);
    set.end = at;
    return set;
}

static scratch_t lay_scratch(const layer_conf_t *conf)
{
    const model_conf_t *const model = model_conf(conf->model);
    const size_t n = places(conf);
    const bool shared = conf->recompute || conf->inference;
    const bool head = has_kind(conf, LAYER_HEAD);
    scratch_t scratch = {0};
    size_t at = 0;
    scratch.big = take(&at, conf->inference ? 0 : n * 4 * model->channels);
    scratch.small = take(&at, n * model->channels);
    scratch.block = take(&at, shared ? lay_block(conf, NULL) : 0);
    scratch.losses = take(&at, n);
    scratch.logits_pitch = aligned(model->vocab);
    scratch.logits_rows = n;
    if (conf->inference) {
        scratch.logits_rows = HX_MIN(n, LOGITS_ROWS_INFERENCE);
    }
    scratch.logits = take(&at, head ? scratch.logits_rows * scratch.logits_pitch : 0);
    scratch.end = at;
    return scratch;
}

size_t layer_set_size(const layer_conf_t *conf)
{
    return sizeof(float) * lay_set(conf).end;
}

size_t layer_scratch_size(const layer_conf_t *conf)
{
    return sizeof(float) * lay_scratch(conf).end;
}

static void find_groups(layer_span_t *self)
{
    const layer_conf_t *const conf = &self->conf;
    self->groups = hx_new(model_groups_count(conf->model), sizeof *self->groups);
    self->last_use = hx_new(model_groups_count(conf->model), sizeof *self->last_use);
    self->groups_count = model_groups_of(conf->model, conf->first, conf->last, self->groups);
    for (uint32_t position = 0; position < self->groups_count; position++) {
        uint32_t unused[MODEL_LAYER_GROUPS_MAX];
        uint32_t index = conf->first;
        for (bool found = false; !found; index += !found) {
            const uint32_t uses = model_groups_of(conf->model, index, index + 1, unused);
            for (uint32_t use = 0; use < uses; use++) {
                found = found || unused[use] == self->groups[position];
            }
        }
        self->last_use[position] = index;
    }
}

hx_err_t layer_open(const layer_conf_t *conf, layer_span_t **span_p)
{
    HX_ASSERT(conf && conf->backend && conf->model && span_p);
    HX_ASSERT(conf->first < conf->last && conf->last <= model_layers_count(conf->model));
    HX_ASSERT(conf->rows >= 1);
    layer_span_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->ops = conf->backend->ops;
    self->channels = model_conf(conf->model)->channels;
    self->vocab = model_conf(conf->model)->vocab;
    self->layout = lay_set(conf);
    self->at = lay_scratch(conf);
    lay_block(conf, self->tensors);
    const hx_err_t err = self->ops->alloc(conf->backend, layer_scratch_size(conf), &self->scratch);
    if (err != HX_OK) {
        free(self);
        return err;
    }
    self->losses_host = hx_new(places(conf), sizeof *self->losses_host);
    find_groups(self);
    *span_p = self;
    return HX_OK;
}

void layer_destroy(layer_span_t **self_p)
{
    HX_ASSERT(self_p);
    layer_span_t *const self = *self_p;
    if (self) {
        self->ops->release(self->conf.backend, &self->scratch);
        free(self->losses_host);
        free(self->groups);
        free(self->last_use);
        free(self);
        *self_p = NULL;
    }
}

uint32_t layer_groups(const layer_span_t *self, uint32_t *groups)
{
    for (uint32_t position = 0; position < self->groups_count; position++) {
        groups[position] = self->groups[position];
    }
    return self->groups_count;
}

static float *in_set(const layer_span_t *self, const layer_set_t *set, size_t offset)
{
    HX_ASSERT(set->memory && offset <= self->layout.end);
    return (float *)set->memory + offset;
}

static float *in_scratch(const layer_span_t *self, size_t offset)
{
    return (float *)self->scratch + offset;
}

// The stream into a layer. None leads into the embedding or out of the head: NULL.
static float *stream_of(const layer_span_t *self, const layer_set_t *set, uint32_t layer)
{
    if (layer == 0 || layer == model_layers_count(self->conf.model)) {
        return NULL;
    }
    const uint32_t index = layer - HX_MAX(self->conf.first, 1);
    return in_set(self, set, self->layout.streams + index * self->layout.stream_step);
}

float *layer_input(const layer_span_t *self, const layer_set_t *set)
{
    HX_ASSERT(self->conf.first > 0);
    return stream_of(self, set, self->conf.first);
}

float *layer_output(const layer_span_t *self, const layer_set_t *set)
{
    HX_ASSERT(self->conf.last < model_layers_count(self->conf.model));
    return stream_of(self, set, self->conf.last);
}

size_t layer_boundary_size(const layer_span_t *self, const layer_set_t *set)
{
    return sizeof(float) * set->rows * set->time * self->channels;
}

static void point_at(const layer_span_t *self, const layer_set_t *set,
                     const layer_weights_t *weights, layer_call_t *call)
{
    for (uint32_t use = 0; use < call->layer->groups_count; use++) {
        uint32_t position = 0;
        while (self->groups[position] != call->layer->groups[use]) {
            position++;
        }
        call->params[use] = weights->params[position];
        call->grads[use] = weights->grads ? weights->grads[position] : NULL;
    }
    if (call->layer->kind == LAYER_BLOCK) {
        const uint32_t index = call->layer->block + 1 - HX_MAX(self->conf.first, 1);
        float *const base = self->layout.block_step > 0 ? in_set(self, set, self->layout.blocks) +
                                                              index * self->layout.block_step
                                                        : in_scratch(self, self->at.block);
        for (uint32_t tensor = 0; tensor < BLOCK_TENSORS_COUNT; tensor++) {
            call->block[tensor] = base + self->tensors[tensor];
        }
    }
}

static layer_call_t call_of(const layer_span_t *self, const layer_set_t *set,
                            const layer_weights_t *weights, uint32_t layer)
{
    layer_call_t call = {
        .backend = self->conf.backend,
        .queue = self->conf.stream,
        .model = self->conf.model,
        .layer = model_layer(self->conf.model, layer),
        .rows = set->rows,
        .time = set->time,
        .stream = stream_of(self, set, layer),
        .next = stream_of(self, set, layer + 1),
        .tokens = (int32_t *)in_set(self, set, self->layout.tokens),
        .targets = (int32_t *)in_set(self, set, self->layout.targets),
        .norm = in_set(self, set, self->layout.head_norm),
        .mean = in_set(self, set, self->layout.head_mean),
        .rstd = in_set(self, set, self->layout.head_rstd),
        .losses = in_scratch(self, self->at.losses),
        .logits = in_scratch(self, self->at.logits),
        .logits_rows = self->at.logits_rows,
        .logits_pitch = self->at.logits_pitch,
        .loss_scale = (float)set->loss_scale,
        .big = in_scratch(self, self->at.big),
        .small = in_scratch(self, self->at.small),
    };
    point_at(self, set, weights, &call);
    return call;
}

static bool begins_with_embedding(const layer_span_t *self)
{
    return self->conf.first == 0;
}

static bool ends_with_head(const layer_span_t *self)
{
    return self->conf.last == model_layers_count(self->conf.model);
}

static void check_set(const layer_span_t *self, const layer_set_t *set)
{
    HX_ASSERT(set->memory);
    HX_ASSERT(set->rows >= 1 && set->rows <= self->conf.rows);
    HX_ASSERT(set->time >= 1 && set->time <= model_conf(self->conf.model)->context);
}

// The host's tokens may change after the call, so the upload ends here.
static hx_err_t upload(const layer_span_t *self, const layer_set_t *set, size_t offset,
                       const int32_t *from)
{
    HX_TRY(self->ops->upload(self->conf.backend, self->conf.stream, in_set(self, set, offset), from,
                             sizeof *from * set->rows * set->time));
    return self->ops->sync(self->conf.backend, self->conf.stream);
}

static hx_err_t sum_losses(layer_span_t *self, const layer_set_t *set, double *loss)
{
    const size_t count = (size_t)set->rows * set->time;
    HX_TRY(self->ops->download(self->conf.backend, self->conf.stream, self->losses_host,
                               in_scratch(self, self->at.losses), sizeof(float) * count));
    HX_TRY(self->ops->sync(self->conf.backend, self->conf.stream));
    *loss = 0;
    for (size_t index = 0; index < count; index++) {
        *loss += (double)self->losses_host[index];
    }
    return HX_OK;
}

hx_err_t layer_forward(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights,
                       const int32_t *tokens, const int32_t *targets, double loss_scale,
                       double *loss)
{
    check_set(self, set);
    HX_ASSERT((tokens != NULL) == begins_with_embedding(self));
    HX_ASSERT(ends_with_head(self) ? targets || self->conf.inference : !targets);
    set->loss_scale = loss_scale;
    if (loss) {
        *loss = 0;
    }
    if (tokens) {
        HX_TRY(upload(self, set, self->layout.tokens, tokens));
    }
    for (uint32_t layer = self->conf.first; layer < self->conf.last; layer++) {
        const layer_call_t call = call_of(self, set, weights, layer);
        HX_TRY(layer_kind_ops(call.layer->kind)->forward(&call));
    }
    if (!targets) {
        return HX_OK;
    }
    HX_ASSERT(loss);
    HX_TRY(upload(self, set, self->layout.targets, targets));
    const layer_call_t call = call_of(self, set, weights, self->conf.last - 1);
    self->logits_of = NULL;
    HX_TRY(layer_kind_loss(&call, !self->conf.inference));
    self->logits_of = self->conf.inference ? NULL : set->memory;
    return sum_losses(self, set, loss);
}

// A schedule that runs other forwards in between has overwritten the logits: they are made again.
static hx_err_t find_logits(layer_span_t *self, const layer_set_t *set, const layer_call_t *call)
{
    if (self->logits_of != set->memory) {
        HX_TRY(layer_kind_loss(call, true));
    }
    self->logits_of = NULL;
    return HX_OK;
}

static void announce(const layer_span_t *self, const layer_weights_t *weights, uint32_t layer)
{
    for (uint32_t position = 0; position < self->groups_count; position++) {
        if (weights->group_done && self->last_use[position] == layer) {
            weights->group_done(weights->done_self, self->groups[position]);
        }
    }
}

typedef enum { PART_INPUT, PART_WEIGHT, PART_BOTH } part_t;

static hx_err_t backward(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights,
                         part_t part)
{
    check_set(self, set);
    HX_ASSERT(!self->conf.inference && weights->grads);
    for (uint32_t layer = self->conf.last; layer-- > self->conf.first;) {
        layer_call_t call = call_of(self, set, weights, layer);
        const layer_kind_ops_t *const kind = layer_kind_ops(call.layer->kind);
        call.apart = part != PART_BOTH;
        if (part != PART_WEIGHT && self->conf.recompute) {
            HX_TRY(kind->again(&call));
        }
        if (part != PART_WEIGHT && call.layer->kind == LAYER_HEAD) {
            HX_TRY(find_logits(self, set, &call));
        }
        if (part != PART_WEIGHT) {
            HX_TRY(kind->input(&call));
        }
        if (part != PART_INPUT) {
            HX_TRY(kind->weight(&call));
            announce(self, weights, layer);
        }
    }
    return HX_OK;
}

hx_err_t layer_backward(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights)
{
    return backward(self, set, weights, PART_BOTH);
}

hx_err_t layer_backward_input(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights)
{
    return backward(self, set, weights, self->conf.recompute ? PART_BOTH : PART_INPUT);
}

hx_err_t layer_backward_weight(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights)
{
    return self->conf.recompute ? HX_OK : backward(self, set, weights, PART_WEIGHT);
}

hx_err_t layer_logits(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights,
                      uint64_t first, uint64_t count, float *logits)
{
    check_set(self, set);
    HX_ASSERT(ends_with_head(self) && first + count <= (uint64_t)set->rows * set->time);
    const layer_call_t call = call_of(self, set, weights, self->conf.last - 1);
    self->logits_of = NULL;
    for (uint64_t done = 0; done < count;) {
        const size_t rows = HX_MIN(count - done, self->at.logits_rows);
        HX_TRY(layer_kind_logits(&call, first + done, rows));
        for (size_t row = 0; row < rows; row++) {
            HX_TRY(self->ops->download(
                self->conf.backend, self->conf.stream, logits + (done + row) * self->vocab,
                call.logits + row * self->at.logits_pitch, sizeof(float) * self->vocab));
        }
        HX_TRY(self->ops->sync(self->conf.backend, self->conf.stream));
        done += rows;
    }
    return HX_OK;
}
