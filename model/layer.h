// layer - forward and backward of consecutive layers of a model, on a backend.
//
// A span is what a pipeline stage runs: layers [first, last). It owns its scratch memory and
// nothing else: parameters, gradients and activation sets are the caller's, one set for each
// microbatch in flight. After layer_open no call allocates. A call returns when its work is queued
// on the backend; on the CPU that is when it is done.
//
// The backward has two parts that may run apart. The input part computes the gradient that the
// stage before waits for (and the cheap gradients of the norms); the weight part the gradients of
// matrices, biases and embeddings. The input part turns the activation set, in place, into what the
// weight part needs, so a set is free only after the weight part. With recompute a set holds the
// inputs of layers alone; then the input part does everything, and the weight part nothing.
//
// Gradients are added into `grads`: sums over microbatches come by calling again. The caller gives
// the factor of the loss, 1 / (nominal tokens of the lease), so that sums over any split of the
// same rows agree.
//
// Where activations and gradients of a boundary lie:
//
//     received activation -> layer_input    layer_output -> activation to send      (forward)
//     gradient to send    <- layer_input    layer_output <- received gradient       (backward)
//
// Both are (rows, time, channels) of f32. The gradient overwrites the activation, so an output must
// have been sent or copied before its gradient is put there.

#ifndef LAYER_H
#define LAYER_H

#include "model/model.h"
#include "tensor/hx_backend.h"

typedef struct layer_span layer_span_t;

typedef struct {
    hx_backend_t *backend;  // Borrowed, as the model, until layer_destroy.
    hx_stream_t stream;     // All work of the span is queued there.
    const model_t *model;
    uint32_t first;  // Layers [first, last).
    uint32_t last;
    uint32_t rows;   // The most rows of one microbatch.
    bool recompute;  // Keep only the layers' inputs.
    bool inference;  // No backward will come: a set is one tensor, in which all layers work.
} layer_conf_t;

// One microbatch's activations. `memory` is layer_set_size bytes of the backend.
typedef struct {
    void *memory;
    uint32_t rows;      // Set before layer_forward: rows of this microbatch, 1 to conf.rows,
    uint32_t time;      // and tokens of each: context in training, 1 to context in inference.
    double loss_scale;  // Of its forward; set by layer_forward.
} layer_set_t;

typedef struct {
    const float *const *params;  // Flat vectors of the span's groups, in the order of layer_groups.
    float *const *grads;         // Likewise; not used in a forward.
    // Called in a backward as soon as the gradients of a group are complete for this microbatch
    // (on an asynchronous device: queued). May be NULL.
    void (*group_done)(void *done_self, uint32_t group);
    void *done_self;
} layer_weights_t;

// Bytes of one activation set, and of the scratch that layer_open allocates on the backend.
size_t layer_set_size(const layer_conf_t *conf);
size_t layer_scratch_size(const layer_conf_t *conf);

// HX_E_NOMEM: no room for the scratch.
hx_err_t layer_open(const layer_conf_t *conf, layer_span_t **span_p) HX_MUST_USE;
void layer_destroy(layer_span_t **self_p);

// The groups that the span uses, ascending; returns how many (at most model_groups_count).
uint32_t layer_groups(const layer_span_t *self, uint32_t *groups);

// Where the boundary tensors of a set lie, on the backend, and the bytes of one for the set's rows
// and time. A span that begins with the embedding has no input, one that ends with the head no
// output.
float *layer_input(const layer_span_t *self, const layer_set_t *set);
float *layer_output(const layer_span_t *self, const layer_set_t *set);
size_t layer_boundary_size(const layer_span_t *self, const layer_set_t *set);

// Runs the span. `tokens` (rows, time), on the host: only if it begins with the embedding, else
// NULL. `targets` (rows, time), on the host: only if it ends with the head, else NULL; a negative
// target is left out; NULL in inference: no loss is computed. `*loss` gets the sum over tokens of
// -log p(target), added in double; 0 without targets. `loss_scale` multiplies all gradients.
// HX_E_ARG: a token or target outside the vocabulary.
hx_err_t layer_forward(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights,
                       const int32_t *tokens, const int32_t *targets, double loss_scale,
                       double *loss) HX_MUST_USE;

// The backward of the set's microbatch, with the same parameters as its forward, for the gradient
// in layer_output (a span that ends with the head begins with its own). Both parts at once, which
// announces groups early, or one after the other; the sums are the same to the bit.
hx_err_t layer_backward(layer_span_t *self, layer_set_t *set,
                        const layer_weights_t *weights) HX_MUST_USE;
hx_err_t layer_backward_input(layer_span_t *self, layer_set_t *set,
                              const layer_weights_t *weights) HX_MUST_USE;
hx_err_t layer_backward_weight(layer_span_t *self, layer_set_t *set,
                               const layer_weights_t *weights) HX_MUST_USE;

// Logits of positions [first, first + count) of the set, counted over its rows x time, after a
// forward and before a backward: (count, vocab) of f32, copied to the host. Only a span that ends
// with the head.
hx_err_t layer_logits(layer_span_t *self, layer_set_t *set, const layer_weights_t *weights,
                      uint64_t first, uint64_t count, float *logits) HX_MUST_USE;

#endif
