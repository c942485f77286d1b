// model_gpt2 - the tensors, groups and layers of GPT-2 (Radford et al. 2019), with Hugging Face's
// names.
//
// Used by model.c alone; everyone else sees model.h.

#ifndef MODEL_GPT2_H
#define MODEL_GPT2_H

#include "model/model.h"

// The tensors of a block, in the order in which they lie in its group.
typedef enum {
    GPT2_LN_1_WEIGHT,
    GPT2_LN_1_BIAS,
    GPT2_ATTN_WEIGHT,  // (channels, 3 channels): q, k, v
    GPT2_ATTN_BIAS,
    GPT2_ATTN_PROJ_WEIGHT,  // (channels, channels)
    GPT2_ATTN_PROJ_BIAS,
    GPT2_LN_2_WEIGHT,
    GPT2_LN_2_BIAS,
    GPT2_FC_WEIGHT,  // (channels, 4 channels)
    GPT2_FC_BIAS,
    GPT2_FC_PROJ_WEIGHT,  // (4 channels, channels)
    GPT2_FC_PROJ_BIAS,
} gpt2_tensor_t;
_Static_assert(GPT2_FC_PROJ_BIAS + 1 == MODEL_BLOCK_TENSORS, "a block has these tensors");

// What a family fills. The arrays have room: 2 + 12 layers + 2 tensors, layers + 3 groups, layers +
// 2 layers; zeroed.
typedef struct {
    model_tensor_t *tensors;
    model_group_t *groups;
    model_layer_t *layers;
} model_parts_t;

uint32_t model_gpt2_tensors_count(const model_conf_t *conf);
uint32_t model_gpt2_groups_count(const model_conf_t *conf);

// Fills all of it. `conf` has passed model_check.
void model_gpt2_describe(const model_conf_t *conf, const model_parts_t *parts);

#endif
