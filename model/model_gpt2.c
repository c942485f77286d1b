// model_gpt2 - see the header.

#include "model/model_gpt2.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// A dimension as a multiple of a size of the model.
typedef enum { UNIT_NONE, UNIT_VOCAB, UNIT_CONTEXT, UNIT_CHANNELS } unit_t;

typedef struct {
    const char *name;
    unit_t rows;  // UNIT_NONE: rank 1.
    uint32_t rows_factor;
    uint32_t columns_factor;  // Of channels.
    model_init_t init;
    bool residual;  // Its output joins the residual stream: smaller initial weights.
} row_t;

static const row_t embedding_rows[] = {
    {"wte.weight", UNIT_VOCAB, 1, 1, MODEL_INIT_NORMAL, false},
    {"wpe.weight", UNIT_CONTEXT, 1, 1, MODEL_INIT_NORMAL, false},
};

static const row_t block_rows[MODEL_BLOCK_TENSORS] = {
    [GPT2_LN_1_WEIGHT] = {"ln_1.weight", UNIT_NONE, 0, 1, MODEL_INIT_ONES, false},
    [GPT2_LN_1_BIAS] = {"ln_1.bias", UNIT_NONE, 0, 1, MODEL_INIT_ZEROS, false},
    [GPT2_ATTN_WEIGHT] = {"attn.c_attn.weight", UNIT_CHANNELS, 1, 3, MODEL_INIT_NORMAL, false},
    [GPT2_ATTN_BIAS] = {"attn.c_attn.bias", UNIT_NONE, 0, 3, MODEL_INIT_ZEROS, false},
    [GPT2_ATTN_PROJ_WEIGHT] = {"attn.c_proj.weight", UNIT_CHANNELS, 1, 1, MODEL_INIT_NORMAL, true},
    [GPT2_ATTN_PROJ_BIAS] = {"attn.c_proj.bias", UNIT_NONE, 0, 1, MODEL_INIT_ZEROS, false},
    [GPT2_LN_2_WEIGHT] = {"ln_2.weight", UNIT_NONE, 0, 1, MODEL_INIT_ONES, false},
    [GPT2_LN_2_BIAS] = {"ln_2.bias", UNIT_NONE, 0, 1, MODEL_INIT_ZEROS, false},
    [GPT2_FC_WEIGHT] = {"mlp.c_fc.weight", UNIT_CHANNELS, 1, 4, MODEL_INIT_NORMAL, false},
    [GPT2_FC_BIAS] = {"mlp.c_fc.bias", UNIT_NONE, 0, 4, MODEL_INIT_ZEROS, false},
    [GPT2_FC_PROJ_WEIGHT] = {"mlp.c_proj.weight", UNIT_CHANNELS, 4, 1, MODEL_INIT_NORMAL, true},
    [GPT2_FC_PROJ_BIAS] = {"mlp.c_proj.bias", UNIT_NONE, 0, 1, MODEL_INIT_ZEROS, false},
};

static const row_t final_rows[] = {
    {"ln_f.weight", UNIT_NONE, 0, 1, MODEL_INIT_ONES, false},
    {"ln_f.bias", UNIT_NONE, 0, 1, MODEL_INIT_ZEROS, false},
};

uint32_t model_gpt2_tensors_count(const model_conf_t *conf)
{
    return (uint32_t)(HX_COUNT(embedding_rows) + HX_COUNT(final_rows)) +
           MODEL_BLOCK_TENSORS * conf->layers;
}

uint32_t model_gpt2_groups_count(const model_conf_t *conf)
{
    return conf->layers + 3;
}

static uint64_t unit_size(const model_conf_t *conf, unit_t unit)
{
    switch (unit) {
    case UNIT_VOCAB:
        return conf->vocab;
    case UNIT_CONTEXT:
        return conf->context;
    case UNIT_CHANNELS:
    case UNIT_NONE:
        break;
    }
    return conf->channels;
}

static double init_std(const model_conf_t *conf, const row_t *row)
{
    const double std = 0.02;
    if (row->init != MODEL_INIT_NORMAL) {
        return 0;
    }
    return row->residual ? std / sqrt(2.0 * conf->layers) : std;
}

static model_tensor_t tensor_of(const model_conf_t *conf, const row_t *row, const char *prefix)
{
    model_tensor_t tensor = {.init = row->init, .init_std = init_std(conf, row)};
    const uint64_t columns = (uint64_t)row->columns_factor * conf->channels;
    snprintf(tensor.name, sizeof tensor.name, "%s%s", prefix, row->name);
    if (row->rows == UNIT_NONE) {
        tensor.rank = 1;
        tensor.dims[0] = columns;
        tensor.dims[1] = 1;
    } else {
        tensor.rank = 2;
        tensor.dims[0] = row->rows_factor * unit_size(conf, row->rows);
        tensor.dims[1] = columns;
        tensor.decay = true;
    }
    tensor.size = tensor.dims[0] * tensor.dims[1];
    return tensor;
}

// Where the next tensor and group go.
typedef struct {
    const model_conf_t *conf;
    const model_parts_t *parts;
    uint32_t tensor;
    uint32_t group;
} builder_t;

static void add_group(builder_t *builder, const row_t *rows, uint32_t rows_count,
                      const char *prefix)
{
    model_group_t *const group = &builder->parts->groups[builder->group];
    group->tensors_first = builder->tensor;
    group->tensors_count = rows_count;
    for (uint32_t row = 0; row < rows_count; row++) {
        model_tensor_t *const tensor = &builder->parts->tensors[builder->tensor++];
        *tensor = tensor_of(builder->conf, &rows[row], prefix);
        tensor->group = builder->group;
        tensor->offset = group->size;
        group->size += tensor->size;
    }
    builder->group++;
}

// Activations of one token in a block, in floats: two norms, the packed qkv, the attention's
// output, the residual stream between and after, the wide layer before and after GELU; the
// log-sum-exp of each head; mean and deviation of both norms.
static uint64_t block_floats(const model_conf_t *conf)
{
    return 16 * (uint64_t)conf->channels + conf->heads + 4;
}

static void describe_layer(const model_conf_t *conf, const model_parts_t *parts, uint32_t index)
{
    const double time = conf->context;
    const double channels = conf->channels;
    const uint64_t tokens_size = 4 * (uint64_t)conf->context;
    const uint64_t stream_size = tokens_size * conf->channels;
    model_layer_t *const layer = &parts->layers[index];
    layer->input_size = layer->output_size = stream_size;
    if (index == 0) {
        layer->kind = LAYER_EMBED;
        layer->groups[layer->groups_count++] = 0;
        layer->groups[layer->groups_count++] = 1;
        layer->input_size = tokens_size;
        layer->activation_size = tokens_size + stream_size;
        layer->forward_flops = time * channels;
    } else if (index <= conf->layers) {
        layer->kind = LAYER_BLOCK;
        layer->block = index - 1;
        layer->groups[layer->groups_count++] = index + 1;
        layer->activation_size = tokens_size * block_floats(conf);
        layer->forward_flops = 24 * time * channels * channels + 2 * time * (time + 1) * channels;
    } else {
        layer->kind = LAYER_HEAD;
        layer->groups[layer->groups_count++] = conf->layers + 2;
        layer->groups[layer->groups_count++] = 0;
        layer->output_size = 0;
        layer->activation_size = stream_size + 3 * tokens_size;
        layer->logits_size = tokens_size * conf->vocab;
        layer->forward_flops = 2 * time * channels * conf->vocab;
    }
    layer->backward_flops = 2 * layer->forward_flops;
    for (uint32_t use = 0; use < layer->groups_count; use++) {
        layer->params_size += sizeof(float) * parts->groups[layer->groups[use]].size;
    }
}

void model_gpt2_describe(const model_conf_t *conf, const model_parts_t *parts)
{
    builder_t builder = {.conf = conf, .parts = parts};
    for (size_t row = 0; row < HX_COUNT(embedding_rows); row++) {
        add_group(&builder, &embedding_rows[row], 1, "");
    }
    for (uint32_t block = 0; block < conf->layers; block++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "h.%" PRIu32 ".", block);
        add_group(&builder, block_rows, HX_COUNT(block_rows), prefix);
    }
    add_group(&builder, final_rows, HX_COUNT(final_rows), "");
    HX_ASSERT(builder.tensor == model_gpt2_tensors_count(conf));
    HX_ASSERT(builder.group == model_gpt2_groups_count(conf));
    for (uint32_t layer = 0; layer < conf->layers + 2; layer++) {
        describe_layer(conf, parts, layer);
    }
}
