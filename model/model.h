// model - what is trained: a chain of layers, their parameters, and how parameters lie in memory.
//
// A pure description, a function of model_conf_t alone: it holds no number of any parameter. Three
// words:
//
//   tensor  one parameter with its Hugging Face name, such as `h.0.attn.c_attn.weight`.
//   group   a set of consecutive tensors, laid end to end (no padding) in one flat vector of f32.
//           Whoever holds parameters or gradients holds them as such vectors: servers cut them into
//           blocks, workers keep one buffer a group, and a tensor is a view (an offset) into it.
//   layer   a unit of the chain that a pipeline may be cut at. Layer 0 is the embedding, the last
//           one the head, what lies between are blocks; so there are conf.layers + 2 of them.
//
//   group:   0 = {wte.weight}   1 = {wpe.weight}   2 + i = the tensors of block i   last = {ln_f.*}
//   uses:    embedding {0, 1}   block i {2 + i}    head {last, 0}: its matrix is tied to wte.weight
//
// A group that two stages use (wte, when embedding and head lie in different ones) gets one
// gradient part from each; the parts are added.

#ifndef MODEL_H
#define MODEL_H

#include "tensor/hx.h"

#define MODEL_LAYERS_MAX 4096u     // Blocks.
#define MODEL_DIM_MAX (1u << 22)   // Channels, context, vocab.
#define MODEL_NAME_MAX 64          // Bytes of a tensor's name, with its zero.
#define MODEL_LAYER_GROUPS_MAX 2u  // Groups that one layer uses.
#define MODEL_BLOCK_TENSORS 12u    // Tensors of one GPT-2 block, in the order of model_gpt2.c.

typedef enum { MODEL_GPT2 = 1 } model_family_t;

typedef struct {
    model_family_t family;
    uint32_t layers;  // Blocks; the chain has two layers more.
    uint32_t heads;   // Divides channels.
    uint32_t channels;
    uint32_t context;  // Tokens of a row (a sequence); all rows have this length in training.
    uint32_t vocab;
    double ln_eps;  // Epsilon of every layer norm; GPT-2: 1e-5.
} model_conf_t;

typedef enum { LAYER_EMBED, LAYER_BLOCK, LAYER_HEAD } layer_kind_t;

typedef enum { MODEL_INIT_ZEROS, MODEL_INIT_ONES, MODEL_INIT_NORMAL } model_init_t;

typedef struct {
    char name[MODEL_NAME_MAX];
    uint32_t group;
    uint32_t rank;     // 1 or 2.
    uint64_t dims[2];  // Slowest first. A linear weight is (in, out), as Hugging Face's Conv1D.
    uint64_t size;     // Elements.
    uint64_t offset;   // Elements, from the start of the group's flat vector.
    bool decay;        // Weight decay applies: rank >= 2.
    model_init_t init;
    double init_std;  // Of MODEL_INIT_NORMAL, else 0.
} model_tensor_t;

typedef struct {
    uint32_t tensors_first;  // Into the model's tensors.
    uint32_t tensors_count;
    uint64_t size;  // Elements of the flat vector.
} model_group_t;

// Costs are for one row. Flops count a multiply-add as two; attention counts its causal half.
typedef struct {
    layer_kind_t kind;
    uint32_t block;  // Which block it is, for LAYER_BLOCK.
    uint32_t groups[MODEL_LAYER_GROUPS_MAX];
    uint32_t groups_count;
    uint64_t
        params_size;  // Bytes of all its groups (a tied one counts in each layer that uses it).
    double forward_flops;
    double
        backward_flops;  // Both parts; the weight part is about half. Recompute adds forward_flops.
    uint64_t activation_size;  // Bytes kept from forward to backward, its input not counted.
    uint64_t input_size;       // Bytes of its input: tokens (i32), or (context, channels) f32.
    uint64_t output_size;  // Bytes of its output, which is what crosses a stage boundary; head: 0.
    uint64_t
        logits_size;  // Bytes of scratch for logits (once a stage, not a microbatch); head only.
} model_layer_t;

typedef struct model model_t;

// Values that GPT-2 has and a conf may leave alone: family, ln_eps. The rest is 0.
model_conf_t model_conf_default(void);

// Checks the values alone. HX_E_ARG and one line in `fault` (may be NULL) that names key and value.
hx_err_t model_check(const model_conf_t *conf, hx_fault_t *fault) HX_MUST_USE;

// Describes the model. Fails as model_check.
hx_err_t model_open(const model_conf_t *conf, model_t **model_p, hx_fault_t *fault) HX_MUST_USE;
void model_destroy(model_t **self_p);

const model_conf_t *model_conf(const model_t *self);

uint32_t model_layers_count(const model_t *self);
const model_layer_t *model_layer(const model_t *self, uint32_t layer);

uint32_t model_groups_count(const model_t *self);
const model_group_t *model_group(const model_t *self, uint32_t group);

// All tensors, in the order of groups. Those of a group are consecutive and ascend by offset.
uint32_t model_tensors_count(const model_t *self);
const model_tensor_t *model_tensor(const model_t *self, uint32_t tensor);

// The tensor of that name (with or without a leading "transformer."), or NULL.
const model_tensor_t *model_tensor_find(const model_t *self, const char *name);

// Elements of all groups together: the model's number of parameters.
uint64_t model_params_count(const model_t *self);

// The groups that layers [first, last) use, ascending, each once; returns how many. `groups` has
// room for model_groups_count of them.
uint32_t model_groups_of(const model_t *self, uint32_t first, uint32_t last, uint32_t *groups);

// Initial values of elements [first, first + count) of a tensor: a pure function of (seed, name,
// element), so that any server can make any block by itself. Normal values have standard deviation
// 0.02, residual projections (c_proj.weight) 0.02 / sqrt(2 layers), wpe 0.02 as in nanoGPT; biases
// are 0, norms 1.
void model_init_tensor(const model_tensor_t *tensor, uint64_t seed, uint64_t first, uint64_t count,
                       float *out);

// The same for elements [first, first + count) of a group's flat vector.
void model_init_group(const model_t *self, uint32_t group, uint64_t seed, uint64_t first,
                      uint64_t count, float *out);

// Gives elements [first, first + count) of a group's flat vector: from a file, a seed, a buffer.
typedef void model_read_fn(void *read_self, uint32_t group, uint64_t first, uint64_t count,
                           float *out);

// Weight decay within elements [first, first + count) of a group's flat vector: calls `each` with
// maximal runs of equal decay, ascending. (Optimizer steps work on blocks, which may cut a tensor
// anywhere.)
typedef void model_decay_fn(void *each_self, uint64_t first, uint64_t count, bool decay);
void model_decay_runs(const model_t *self, uint32_t group, uint64_t first, uint64_t count,
                      model_decay_fn *each, void *each_self);

#endif
