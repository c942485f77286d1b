// layer_world - see the header.

#include "tests/support/layer_world.h"

#include <stdlib.h>
#include <string.h>

void world_randomise(hx_rng_t *rng, float *to, uint64_t count, double deviation, double mean)
{
    for (uint64_t index = 0; index < count; index++) {
        to[index] = (float)(mean + deviation * hx_rng_normal(rng));
    }
}

world_t world_new(hx_rng_t *rng, uint32_t layers, uint32_t rows)
{
    const uint32_t heads = 1 + (uint32_t)hx_rng_below(rng, 3);
    const model_conf_t conf = {
        .family = MODEL_GPT2,
        .layers = layers,
        .heads = heads,
        .channels = heads * (uint32_t)(4 + hx_rng_below(rng, 9)),
        .context = 5 + (uint32_t)hx_rng_below(rng, 12),
        .vocab = 11 + (uint32_t)hx_rng_below(rng, 40),
        .ln_eps = 1e-5,
    };
    world_t world = {.backend = hx_backend_cpu_new(1), .rows = rows};
    HX_ASSERT(model_open(&conf, &world.model, NULL) == HX_OK);
    for (uint32_t index = 0; index < model_groups_count(world.model); index++) {
        const model_group_t *const group = model_group(world.model, index);
        world.params[index] = calloc(group->size, sizeof(float));
        world.grads[index] = calloc(group->size, sizeof(float));
        for (uint32_t at = 0; at < group->tensors_count; at++) {
            const model_tensor_t *const tensor =
                model_tensor(world.model, group->tensors_first + at);
            world_randomise(rng, world.params[index] + tensor->offset, tensor->size, 0.3,
                            tensor->init == MODEL_INIT_ONES ? 1 : 0);
        }
    }
    const size_t count = (size_t)rows * conf.context;
    world.tokens = calloc(count, sizeof(int32_t));
    world.targets = calloc(count, sizeof(int32_t));
    for (size_t at = 0; at < count; at++) {
        world.tokens[at] = (int32_t)hx_rng_below(rng, conf.vocab);
        world.targets[at] = (int32_t)hx_rng_below(rng, conf.vocab);
    }
    return world;
}

void world_end(world_t *world)
{
    for (uint32_t group = 0; group < model_groups_count(world->model); group++) {
        free(world->params[group]);
        free(world->grads[group]);
    }
    free(world->tokens);
    free(world->targets);
    model_destroy(&world->model);
    hx_backend_destroy(&world->backend);
}

void world_clear_grads(world_t *world)
{
    for (uint32_t group = 0; group < model_groups_count(world->model); group++) {
        memset(world->grads[group], 0, sizeof(float) * model_group(world->model, group)->size);
    }
}

layer_conf_t world_conf(const world_t *world, uint32_t first, uint32_t last, uint32_t rows)
{
    return (layer_conf_t){.backend = world->backend,
                          .model = world->model,
                          .first = first,
                          .last = last,
                          .rows = rows};
}

world_stage_t *world_stage_new(const world_t *world, const layer_conf_t *conf)
{
    world_stage_t *const stage = calloc(1, sizeof *stage);
    uint32_t groups[WORLD_GROUPS];
    HX_ASSERT(layer_open(conf, &stage->span) == HX_OK);
    const uint32_t count = layer_groups(stage->span, groups);
    for (uint32_t at = 0; at < count; at++) {
        stage->params[at] = world->params[groups[at]];
        stage->grads[at] = world->grads[groups[at]];
    }
    for (uint32_t micro = 0; micro < WORLD_MICROS; micro++) {
        HX_ASSERT(world->backend->ops->alloc(world->backend, layer_set_size(conf),
                                             &stage->sets[micro].memory) == HX_OK);
        // What a set held before must not matter.
        memset(stage->sets[micro].memory, 0xff, layer_set_size(conf));
        stage->sets[micro].rows = conf->rows;
        stage->sets[micro].time = model_conf(world->model)->context;
    }
    stage->weights = (layer_weights_t){.params = stage->params, .grads = stage->grads};
    stage->first = conf->first;
    stage->last = conf->last;
    return stage;
}

void world_stage_end(const world_t *world, world_stage_t *stage)
{
    for (uint32_t micro = 0; micro < WORLD_MICROS; micro++) {
        world->backend->ops->release(world->backend, &stage->sets[micro].memory);
    }
    layer_destroy(&stage->span);
    free(stage);
}
