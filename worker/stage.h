// stage - the tensors of one pipeline stage, and the operations on them.
//
// Two parameter buffers (one in use, one being filled), one gradient accumulator, the activation
// sets of the microbatches in flight: all reserved by stage_open, nothing later. The layers run in
// slices (worker_job.h), each a span of model/layer.h; between two slices the boundary is copied.
// Knows no messages, leases or files.

#ifndef STAGE_H
#define STAGE_H

#include "model/blocks.h"
#include "model/layer.h"

typedef struct {
    hx_backend_t *backend;  // Borrowed, as model and blocks, until stage_destroy.
    const model_t *model;
    const blocks_t *blocks;
    uint32_t first;  // Layers [first, end).
    uint32_t end;
    uint32_t rows;  // Of a microbatch, at most.
    uint32_t sets;  // Microbatches between their forward and the end of their backward, at most.
    bool recompute;
} stage_conf_t;

typedef struct stage stage_t;

// One microbatch of a forward.
typedef struct {
    uint32_t set;
    uint32_t buffer;
    uint32_t rows;
    const void *input;       // Host, (rows, context, channels); NULL on the first stage.
    const int32_t *tokens;   // Host, (rows, context): first stage, else NULL.
    const int32_t *targets;  // Host, (rows, context): last stage, else NULL.
    double loss_scale;       // Multiplies all gradients: 1 / nominal tokens of the lease.
    void *output;            // Host, for the next stage; NULL on the last.
    double *loss;            // Last stage: the sum over tokens.
} stage_forward_t;

// Layers [first, end) of a microbatch's backward, a run of whole slices.
typedef struct {
    uint32_t set;
    uint32_t buffer;  // As in its forward.
    uint32_t first;
    uint32_t end;
    bool input;   // The input half,
    bool weight;  // the weight half, or both.
    const void
        *gradient;  // Host; read with the input half if `end` is the stage's; last stage: NULL.
    void *output;   // Host; written with the input half if `first` is the stage's; else NULL.
} stage_backward_t;

// Bytes that stage_open reserves on the backend.
uint64_t stage_size(const stage_conf_t *conf);

// HX_E_NOMEM: it does not fit; nothing is left reserved. Gradients are zero, parameters undefined.
HX_MUST_USE hx_err_t stage_open(const stage_conf_t *conf, stage_t **stage_p);
void stage_destroy(stage_t **stage_p);

const stage_conf_t *stage_conf(const stage_t *self);
bool stage_has_block(const stage_t *self, uint32_t block);

// Copies a block into a parameter buffer. The block is one of the stage's.
HX_MUST_USE hx_err_t stage_load(stage_t *self, uint32_t buffer, uint32_t block, const void *values);

HX_MUST_USE hx_err_t stage_forward(stage_t *self, const stage_forward_t *args);
HX_MUST_USE hx_err_t stage_backward(stage_t *self, const stage_backward_t *args);

// Copies a block's gradient sum to the host and zeroes it.
HX_MUST_USE hx_err_t stage_take_gradient(stage_t *self, uint32_t block, void *out);
// One parameter group of the stage: flat vectors on the backend, as long as the stage.
typedef struct {
    uint32_t group;
    size_t size;  // Floats.
    float *params;
    float *grads;
} stage_vector_t;

uint32_t stage_vectors_count(const stage_t *self);
// The group at `place` (ascending by group), with its parameters in that buffer.
stage_vector_t stage_vector(const stage_t *self, uint32_t buffer, uint32_t place);

// Zeroes all gradients.
HX_MUST_USE hx_err_t stage_zero_gradients(stage_t *self);

#endif
