// layer - forward and backward of consecutive layers of a model, on a backend.
//
// A span is what a pipeline stage runs: layers [first, last). It owns its scratch memory and nothing else:
// parameters, gradients and activation sets are the caller's, one activation set for each microbatch in
// flight. After layer_open no call allocates. A call returns when its work is queued on the backend; on
// the CPU that is when it is done.
//
// The backward has two parts that may run apart: the input part computes the gradient that the stage
// before waits for (and the cheap gradients of norms and biases), the weight part the matrix products of
// the parameters' gradients. The input part turns the activation set, in place, into what the weight
// part needs, so a set is free only after the weight part. With recompute a set holds the layers' inputs only;
// the input part then does everything, and the weight part nothing.
//
// Gradients are added into `grads`: sums over microbatches come by calling again. The caller gives the
// factor of the loss, 1 / (nominal tokens of the lease), so that sums over any split of the same rows agree.
//
// Where activations and gradients of a boundary lie:
//
//     received activation -> layer_input    layer_output -> activation to send      (forward)
//     gradient to send    <- layer_input    layer_output <- received gradient       (backward)
//
// Both are (rows, context, channels) of f32. The gradient overwrites the activation, so an output must
// have been sent or copied before its gradient is put there.

#ifndef LAYER_H
#define LAYER_H

#include "model/model.h"
#include "tensor/hx_backend.h"

typedef struct layer_span layer_span_t;

typedef struct {
    hx_backend_t *backend;  // Borrowed, as the model, until layer_destroy.
    const model_t *model;
    uint32_t first;  // Layers [first, last).
    uint32_t last;
    uint32_t rows;   // The most rows of one microbatch.
    bool recompute;  // Keep only the layers' inputs.
    bool inference;  // No backward will come: sets are small, logits are kept for layer_logits.
} layer_conf_t;

// One microbatch's activations. `memory` is of layer_set_size bytes, on the backend.
typedef struct {
    hx_mem_t memory;
    uint32_t rows;  // Set before layer_forward: rows of this microbatch, from 1 to conf.rows,
    uint32_t time;  // and tokens of each: context in training, 1 to context in inference.
} layer_set_t;

typedef struct {
    const hx_mem_t *params;  // Flat vectors of the span's groups, in the order of layer_groups.
    hx_mem_t *grads;         // Likewise; NULL in a forward.
    // Called in a backward as soon as the gradients of a group are complete for this microbatch. May be NULL.
    void (*group_done)(void *done_self, uint32_t group);
    void *done_self;
} layer_weights_t;

// Bytes of one activation set, and of the scratch that the span allocates.
size_t layer_set_size(const layer_conf_t *conf);
size_t layer_scratch_size(const layer_conf_t *conf);

hx_err_t layer_open(const layer_conf_t *conf, layer_span_t **span_p) HX_MUST_USE;
void layer_destroy(layer_span_t **self_p);

// The groups that the span uses, ascending; returns how many (at most model_groups_count).
uint32_t layer_groups(const layer_span_t *self, uint32_t *groups);

// Where the boundary tensors of a set lie: rows x time x channels f32. Not for the embedding's input, nor
// for the head's output.
hx_mem_t layer_input(const layer_span_t *self, const layer_set_t *set);
hx_mem_t layer_output(const layer_span_t *self, const layer_set_t *set);

// Runs the span. `tokens` (rows, time) on the host: only if it begins with the embedding, else NULL.
// `targets` (rows, time) on the host: only if it ends with the head (in inference may be NULL: no loss),
// a negative target is left out. `*loss` gets the sum over tokens of -log p(target), in double.
// `loss_scale`: factor of the loss in all gradients; not used in inference.
hx_err_t layer_forward(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights,
                       const int32_t *tokens, const int32_t *targets, double loss_scale,
                       double *loss) HX_MUST_USE;

// The backward of the set's microbatch, with the same parameters as its forward. Both parts at once is
// faster than one after the other.
hx_err_t layer_backward(layer_span_t *self, layer_set_t *set,
                        const layer_weights_t *weights) HX_MUST_USE;
hx_err_t layer_backward_input(layer_span_t *self, layer_set_t *set,
                              const layer_weights_t *weights) HX_MUST_USE;
hx_err_t layer_backward_weight(layer_span_t *self, layer_set_t *set,
                               const layer_weights_t *weights) HX_MUST_USE;

// Logits of one position of one row of the newest forward in inference: vocab of f32, copied to the host.
hx_err_t layer_logits(layer_span_t *self, uint32_t row, uint32_t position,
                      float *logits) HX_MUST_USE;

#endif
