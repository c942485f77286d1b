// layer_kinds - the arithmetic of each kind of layer: one function a kind and direction.
//
// Used by layer.c alone, which owns memory and order. A call names every tensor that one layer may
// touch for one microbatch; n is rows x time, C channels. All memory is the backend's.

#ifndef LAYER_KINDS_H
#define LAYER_KINDS_H

#include "model/model.h"
#include "tensor/hx_backend.h"

// The tensors of a block.
typedef enum {
    BLOCK_NORM_1,    // (n, C)
    BLOCK_QKV,       // (n, 3 C)
    BLOCK_ATTENDED,  // (n, C)
    BLOCK_MIDDLE,    // (n, C), the stream between attention and the wide layer
    BLOCK_NORM_2,    // (n, C)
    BLOCK_WIDE,      // (n, 4 C), before GELU
    BLOCK_GELU,      // (n, 4 C)
    BLOCK_STATS,     // (rows, heads, time)
    BLOCK_MEAN_1,    // (n), as the next three
    BLOCK_RSTD_1,
    BLOCK_MEAN_2,
    BLOCK_RSTD_2,
    BLOCK_TENSORS_COUNT,
} block_tensor_t;

typedef struct {
    hx_backend_t *backend;
    hx_stream_t queue;
    const model_t *model;
    const model_layer_t *layer;
    const float *params[MODEL_LAYER_GROUPS_MAX];  // Flat vector of each group that the layer uses.
    float *grads[MODEL_LAYER_GROUPS_MAX];         // Not used in a forward.
    size_t rows;
    size_t time;
    float *stream;  // (n, C): the layer's input; not of the embedding.
    float *next;    // (n, C): its output; not of the head. May be `stream` if no backward follows.
    float *block[BLOCK_TENSORS_COUNT];
    int32_t *tokens;   // (n); embedding
    int32_t *targets;  // (n); head, as all below
    float *norm;       // (n, C)
    float *mean;       // (n)
    float *rstd;       // (n)
    float *losses;     // (n)
    float *logits;     // (logits_rows, logits_pitch); in training logits_rows >= n
    size_t logits_rows;
    size_t logits_pitch;
    float loss_scale;
    float *big;    // (n, 4 C), scratch; only in a backward
    float *small;  // (n, C), scratch
    bool apart;    // Of the input part: leave all that the weight part needs, it comes later.
} layer_call_t;

// What the parts of a backward find and leave is drawn in layer.c. `again` makes a block's tensors
// anew from its input, for a backward that finds them gone.
typedef struct {
    hx_err_t (*forward)(const layer_call_t *call);
    hx_err_t (*again)(const layer_call_t *call);
    hx_err_t (*input)(const layer_call_t *call);
    hx_err_t (*weight)(const layer_call_t *call);
} layer_kind_ops_t;

// Embedding, block: stream to next. Head: stream to norm; the loss is apart, below.
const layer_kind_ops_t *layer_kind_ops(layer_kind_t kind);

// The head's logits of all positions, from `norm`, and their loss into `losses`. With `gradient`
// (logits_rows >= n) the logits become their gradient, which the head's backward begins with.
hx_err_t layer_kind_loss(const layer_call_t *call, bool gradient);

// The logits of `count` positions (at most logits_rows) from `first`, straight from `stream`.
hx_err_t layer_kind_logits(const layer_call_t *call, size_t first, size_t count);

#endif
