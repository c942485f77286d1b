// layer_slope_test - the gradients of each kind of layer against finite differences.

#include "model/layer.h"
#include "tests/support/layer_world.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// A scalar of one layer alone: the loss of the head; else the product of its output with a fixed
// random tensor, which is then the gradient of that output.
typedef struct {
    world_t *world;
    world_stage_t *stage;
    float *x;       // The layer's input, if it has one.
    float *weight;  // The fixed tensor, if it has an output.
    size_t stream;  // Elements of either.
} probe_t;

static double probe_value(const probe_t *probe)
{
    world_stage_t *const stage = probe->stage;
    const bool embed = stage->first == 0;
    const bool head = stage->last == model_layers_count(probe->world->model);
    double value = 0;
    if (!embed) {
        memcpy(layer_input(stage->span, &stage->sets[0]), probe->x, sizeof(float) * probe->stream);
    }
    cr_assert_eq(layer_forward(stage->span, &stage->sets[0], &stage->weights,
                               embed ? probe->world->tokens : NULL,
                               head ? probe->world->targets : NULL, 1, &value),
                 HX_OK);
    if (head) {
        return value;
    }
    const float *const out = layer_output(stage->span, &stage->sets[0]);
    value = 0;
    for (size_t at = 0; at < probe->stream; at++) {
        value += (double)out[at] * (double)probe->weight[at];
    }
    return value;
}

// The derivative along `direction` in `at`, of fourth order in the step.
static double slope(const probe_t *probe, float *at, const float *direction, size_t count)
{
    const double step = 0.02;
    double values[4];
    float *const kept = calloc(count, sizeof *kept);
    memcpy(kept, at, sizeof *kept * count);
    for (uint32_t index = 0; index < 4; index++) {
        static const double steps[] = {-2, -1, 1, 2};
        for (size_t element = 0; element < count; element++) {
            at[element] =
                (float)((double)kept[element] + step * steps[index] * (double)direction[element]);
        }
        values[index] = probe_value(probe);
    }
    memcpy(at, kept, sizeof *kept * count);
    free(kept);
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step);
}

static double dot(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t at = 0; at < count; at++) {
        sum += (double)a[at] * (double)b[at];
    }
    return sum;
}

// The slope along the gradient itself, scaled to length 1, is the gradient's norm; along a random
// one it is their product.
static void check_slopes(hx_rng_t *rng, const probe_t *probe, const char *name, float *at,
                         const float *gradient, size_t count)
{
    float *const direction = calloc(count, sizeof *direction);
    const double norm = sqrt(dot(gradient, gradient, count));
    cr_assert(norm > 0 && isfinite(norm), "%s has no gradient", name);
    for (uint32_t round = 0; round < 3; round++) {
        world_randomise(rng, direction, count, 1, 0);
        if (round == 0) {
            memcpy(direction, gradient, sizeof *direction * count);
        }
        const double length = sqrt(dot(direction, direction, count));
        for (size_t element = 0; element < count; element++) {
            direction[element] = (float)((double)direction[element] / length);
        }
        const double wanted = dot(direction, gradient, count);
        const double found = slope(probe, at, direction, count);
        cr_assert_float_eq(found, wanted, 2e-3 * norm, "%s: slope %g, gradient gives %g of %g",
                           name, found, wanted, norm);
    }
    free(direction);
}

static void check_layer(hx_rng_t *rng, world_t *world, uint32_t layer)
{
    const layer_conf_t conf = world_conf(world, layer, layer + 1, world->rows);
    const bool head = layer + 1 == model_layers_count(world->model);
    probe_t probe = {.world = world, .stage = world_stage_new(world, &conf)};
    world_stage_t *const stage = probe.stage;
    probe.stream = layer_boundary_size(stage->span, &stage->sets[0]) / sizeof(float);
    probe.x = calloc(probe.stream, sizeof(float));
    probe.weight = calloc(probe.stream, sizeof(float));
    world_randomise(rng, probe.x, probe.stream, 1, 0);
    world_randomise(rng, probe.weight, probe.stream, 1, 0);
    world_clear_grads(world);
    probe_value(&probe);
    if (!head) {
        memcpy(layer_output(stage->span, &stage->sets[0]), probe.weight,
               sizeof(float) * probe.stream);
    }
    cr_assert_eq(layer_backward(stage->span, &stage->sets[0], &stage->weights), HX_OK);
    if (layer > 0) {
        float *const dx = calloc(probe.stream, sizeof *dx);
        memcpy(dx, layer_input(stage->span, &stage->sets[0]), sizeof *dx * probe.stream);
        check_slopes(rng, &probe, "input", probe.x, dx, probe.stream);
        free(dx);
    }
    for (uint32_t index = 0; index < model_tensors_count(world->model); index++) {
        const model_tensor_t *const tensor = model_tensor(world->model, index);
        uint32_t groups[WORLD_GROUPS];
        const uint32_t count = layer_groups(stage->span, groups);
        for (uint32_t at = 0; at < count; at++) {
            if (groups[at] == tensor->group) {
                check_slopes(rng, &probe, tensor->name,
                             world->params[tensor->group] + tensor->offset,
                             world->grads[tensor->group] + tensor->offset, tensor->size);
            }
        }
    }
    free(probe.x);
    free(probe.weight);
    world_stage_end(world, stage);
}

Test(layer_slope, gradients_equal_finite_differences)
{
    hx_rng_t rng = hx_rng_seed(seed_of("finite differences"));
    for (uint32_t round = 0; round < 4; round++) {
        world_t world = world_new(&rng, 1, 2);
        for (uint32_t layer = 0; layer < model_layers_count(world.model); layer++) {
            check_layer(&rng, &world, layer);
        }
        world_end(&world);
    }
}
