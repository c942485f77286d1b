// model - see the header. The families fill the tables (model_gpt2.c); this file looks things up.

#include "model/model.h"

#include "model/model_gpt2.h"
#include "tensor/hx_rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct model {
    model_conf_t conf;
    model_parts_t parts;
    uint32_t tensors_count;
    uint32_t groups_count;
};

model_conf_t model_conf_default(void)
{
    return (model_conf_t){.family = MODEL_GPT2, .ln_eps = 1e-5};
}

static hx_err_t check_range(const char *key, uint32_t value, uint32_t max, hx_fault_t *fault)
{
    if (value < 1 || value > max) {
        return hx_fault(fault, HX_E_ARG, "model.%s is %" PRIu32 ": it must be from 1 to %" PRIu32,
                        key, value, max);
    }
    return HX_OK;
}

hx_err_t model_check(const model_conf_t *conf, hx_fault_t *fault)
{
    HX_ASSERT(conf);
    if (conf->family != MODEL_GPT2) {
        return hx_fault(fault, HX_E_UNSUPPORTED, "model.family %d is not known: only gpt2 is",
                        (int)conf->family);
    }
    HX_TRY(check_range("layers", conf->layers, MODEL_LAYERS_MAX, fault));
    HX_TRY(check_range("heads", conf->heads, MODEL_DIM_MAX, fault));
    HX_TRY(check_range("channels", conf->channels, MODEL_DIM_MAX, fault));
    HX_TRY(check_range("context", conf->context, MODEL_DIM_MAX, fault));
    HX_TRY(check_range("vocab", conf->vocab, MODEL_DIM_MAX, fault));
    if (conf->channels % conf->heads != 0) {
        return hx_fault(fault, HX_E_ARG,
                        "model.channels %" PRIu32 " is not a multiple of model.heads %" PRIu32
                        ": each head takes an equal part of the channels",
                        conf->channels, conf->heads);
    }
    if (!(conf->ln_eps > 0 && conf->ln_eps < 1)) {
        return hx_fault(fault, HX_E_ARG,
                        "the epsilon of the layer norms is %g: it must be above 0 and below 1",
                        conf->ln_eps);
    }
    return HX_OK;
}

hx_err_t model_open(const model_conf_t *conf, model_t **model_p, hx_fault_t *fault)
{
    HX_ASSERT(model_p);
    HX_TRY(model_check(conf, fault));
    model_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->tensors_count = model_gpt2_tensors_count(conf);
    self->groups_count = model_gpt2_groups_count(conf);
    self->parts.tensors = hx_new(self->tensors_count, sizeof *self->parts.tensors);
    self->parts.groups = hx_new(self->groups_count, sizeof *self->parts.groups);
    self->parts.layers = hx_new(conf->layers + 2, sizeof *self->parts.layers);
    model_gpt2_describe(conf, &self->parts);
    *model_p = self;
    return HX_OK;
}

void model_destroy(model_t **self_p)
{
    HX_ASSERT(self_p);
    if (*self_p) {
        free((*self_p)->parts.tensors);
        free((*self_p)->parts.groups);
        free((*self_p)->parts.layers);
        free(*self_p);
        *self_p = NULL;
    }
}

const model_conf_t *model_conf(const model_t *self)
{
    return &self->conf;
}

uint32_t model_layers_count(const model_t *self)
{
    return self->conf.layers + 2;
}

const model_layer_t *model_layer(const model_t *self, uint32_t layer)
{
    HX_ASSERT(layer < model_layers_count(self));
    return &self->parts.layers[layer];
}

uint32_t model_groups_count(const model_t *self)
{
    return self->groups_count;
}

const model_group_t *model_group(const model_t *self, uint32_t group)
{
    HX_ASSERT(group < self->groups_count);
    return &self->parts.groups[group];
}

uint32_t model_tensors_count(const model_t *self)
{
    return self->tensors_count;
}

const model_tensor_t *model_tensor(const model_t *self, uint32_t tensor)
{
    HX_ASSERT(tensor < self->tensors_count);
    return &self->parts.tensors[tensor];
}

const model_tensor_t *model_tensor_find(const model_t *self, const char *name)
{
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        name += sizeof prefix - 1;
    }
    for (uint32_t tensor = 0; tensor < self->tensors_count; tensor++) {
        if (strcmp(self->parts.tensors[tensor].name, name) == 0) {
            return &self->parts.tensors[tensor];
        }
    }
    return NULL;
}

uint64_t model_params_count(const model_t *self)
{
    uint64_t count = 0;
    for (uint32_t group = 0; group < self->groups_count; group++) {
        count += self->parts.groups[group].size;
    }
    return count;
}

static bool layers_use(const model_t *self, uint32_t first, uint32_t last, uint32_t group)
{
    for (uint32_t index = first; index < last; index++) {
        const model_layer_t *const layer = model_layer(self, index);
        for (uint32_t use = 0; use < layer->groups_count; use++) {
            if (layer->groups[use] == group) {
                return true;
            }
        }
    }
    return false;
}

uint32_t model_groups_of(const model_t *self, uint32_t first, uint32_t last, uint32_t *groups)
{
    HX_ASSERT(first <= last && last <= model_layers_count(self));
    uint32_t count = 0;
    for (uint32_t group = 0; group < self->groups_count; group++) {
        if (layers_use(self, first, last, group)) {
            groups[count++] = group;
        }
    }
    return count;
}

void model_init_tensor(const model_tensor_t *tensor, uint64_t seed, uint64_t first, uint64_t count,
                       float *out)
{
    HX_ASSERT(first + count <= tensor->size);
    if (tensor->init == MODEL_INIT_NORMAL) {
        hx_rng_normal_fill(seed, hx_rng_hash(tensor->name), first, (float)tensor->init_std, out,
                           count);
        return;
    }
    const float value = tensor->init == MODEL_INIT_ONES ? 1.0F : 0.0F;
    for (uint64_t element = 0; element < count; element++) {
        out[element] = value;
    }
}

void model_init_group(const model_t *self, uint32_t group, uint64_t seed, uint64_t first,
                      uint64_t count, float *out)
{
    const model_group_t *const in = model_group(self, group);
    HX_ASSERT(first + count <= in->size);
    for (uint32_t index = 0; index < in->tensors_count; index++) {
        const model_tensor_t *const tensor = model_tensor(self, in->tensors_first + index);
        const uint64_t begin = HX_MAX(first, tensor->offset);
        const uint64_t end = HX_MIN(first + count, tensor->offset + tensor->size);
        if (begin < end) {
            model_init_tensor(tensor, seed, begin - tensor->offset, end - begin,
                              out + (begin - first));
        }
    }
}

void model_decay_runs(const model_t *self, uint32_t group, uint64_t first, uint64_t count,
                      model_decay_fn *each, void *each_self)
{
    const model_group_t *const in = model_group(self, group);
    HX_ASSERT(first + count <= in->size);
    uint64_t begin = first;
    for (uint32_t index = 0; index < in->tensors_count && begin < first + count; index++) {
        const model_tensor_t *const tensor = model_tensor(self, in->tensors_first + index);
        const bool more = index + 1 < in->tensors_count && tensor[1].decay == tensor->decay;
        const uint64_t end = HX_MIN(first + count, tensor->offset + tensor->size);
        if (end > begin && (!more || end == first + count)) {
            each(each_self, begin, end - begin, tensor->decay);
            begin = end;
        }
    }
}
