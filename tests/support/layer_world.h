// layer_world - a small random model with data, and stages of it, for tests of layers.

#ifndef LAYER_WORLD_H
#define LAYER_WORLD_H

#include "model/layer.h"
#include "tensor/hx_rng.h"

#define WORLD_MICROS 4u   // Activation sets of a stage.
#define WORLD_GROUPS 16u  // Groups of a model at most.

// A model with parameters, gradients and data, all in plain memory.
typedef struct {
    hx_backend_t *backend;
    model_t *model;
    float *params[WORLD_GROUPS];
    float *grads[WORLD_GROUPS];
    int32_t *tokens;   // (rows, context)
    int32_t *targets;  // (rows, context)
    uint32_t rows;
} world_t;

// A stage with one activation set for each microbatch; parameters and gradients are the world's.
typedef struct {
    layer_span_t *span;
    layer_set_t sets[WORLD_MICROS];
    const float *params[WORLD_GROUPS];
    float *grads[WORLD_GROUPS];
    layer_weights_t weights;
    uint32_t first;
    uint32_t last;
} world_stage_t;

// A model of random shape, `layers` blocks and `rows` rows of data; nothing is left at 0 or 1, so
// that no gradient is hidden.
world_t world_new(hx_rng_t *rng, uint32_t layers, uint32_t rows);
void world_end(world_t *world);

void world_clear_grads(world_t *world);
void world_randomise(hx_rng_t *rng, float *to, uint64_t count, double deviation, double mean);

// Layers [first, last), for microbatches of `rows` rows.
layer_conf_t world_conf(const world_t *world, uint32_t first, uint32_t last, uint32_t rows);
// A failure ends the program.
world_stage_t *world_stage_new(const world_t *world, const layer_conf_t *conf);
void world_stage_end(const world_t *world, world_stage_t *stage);

#endif
