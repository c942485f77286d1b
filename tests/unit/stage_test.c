// stage: slices and cuts do not change what is computed; memory is reserved whole or not at all.

#include "worker/stage.h"
#include "worker/worker_job.h"

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 3u
#define LAYERS 5u  // Blocks; the chain has seven.

typedef struct {
    hx_backend_t *backend;
    model_t *model;
    blocks_t blocks;
    float **params;  // Of all groups, on the host.
    int32_t *tokens;
    int32_t *targets;
} world_t;

static void begin(world_t *self)
{
    model_conf_t conf = model_conf_default();
    conf.layers = LAYERS;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 24;
    self->backend = hx_backend_cpu_new(1);
    cr_assert_eq(model_open(&conf, &self->model, NULL), HX_OK);
    blocks_make(self->model, 4096, &self->blocks);
    const uint32_t groups = model_groups_count(self->model);
    self->params = hx_new(groups, sizeof *self->params);
    for (uint32_t group = 0; group < groups; group++) {
        const size_t count = (size_t)model_group(self->model, group)->size;
        self->params[group] = hx_new(count, sizeof(float));
        hx_rng_normal_fill(3, group, 0, 0.2f, self->params[group], count);
    }
    const size_t places = (size_t)ROWS * conf.context;
    self->tokens = hx_new(places, sizeof *self->tokens);
    self->targets = hx_new(places, sizeof *self->targets);
    hx_rng_t rng = hx_rng_seed(4);
    for (size_t place = 0; place < places; place++) {
        self->tokens[place] = (int32_t)hx_rng_below(&rng, conf.vocab);
        self->targets[place] = (int32_t)hx_rng_below(&rng, conf.vocab);
    }
}

static void finish(world_t *self)
{
    for (uint32_t group = 0; group < model_groups_count(self->model); group++) {
        free(self->params[group]);
    }
    free(self->params);
    free(self->tokens);
    free(self->targets);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    hx_backend_destroy(&self->backend);
}

static stage_conf_t conf_of(const world_t *self, uint32_t first, uint32_t end)
{
    return (stage_conf_t){.backend = self->backend,
                          .model = self->model,
                          .blocks = &self->blocks,
                          .first = first,
                          .end = end,
                          .rows = ROWS,
                          .sets = 2};
}

static stage_t *open_stage(const world_t *self, const stage_conf_t *conf)
{
    stage_t *stage = NULL;
    cr_assert_eq(stage_open(conf, &stage), HX_OK);
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        const block_t *const cut = &self->blocks.blocks[block];
        if (stage_has_block(stage, block)) {
            cr_assert_eq(stage_load(stage, 1, block, self->params[cut->group] + cut->first), HX_OK);
        }
    }
    return stage;
}

// Adds the stage's gradients to `sum`, by block, and checks that taking left zeros.
static void take(const world_t *self, stage_t *stage, float **sum)
{
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        const block_t *const cut = &self->blocks.blocks[block];
        if (!stage_has_block(stage, block)) {
            continue;
        }
        float *const part = hx_new(cut->count, sizeof *part);
        cr_assert_eq(stage_take_gradient(stage, block, part), HX_OK);
        for (uint64_t at = 0; at < cut->count; at++) {
            sum[cut->group][cut->first + at] += part[at];
        }
        cr_assert_eq(stage_take_gradient(stage, block, part), HX_OK);
        for (uint64_t at = 0; at < cut->count; at++) {
            cr_assert_eq(part[at], 0);
        }
        free(part);
    }
}

static float **zeros(const world_t *self)
{
    const uint32_t groups = model_groups_count(self->model);
    float **const sum = hx_new(groups, sizeof *sum);
    for (uint32_t group = 0; group < groups; group++) {
        sum[group] = hx_new((size_t)model_group(self->model, group)->size, sizeof(float));
    }
    return sum;
}

static void free_sum(const world_t *self, float **sum)
{
    for (uint32_t group = 0; group < model_groups_count(self->model); group++) {
        free(sum[group]);
    }
    free(sum);
}

// The model in one span, without stages: what every cut must agree with.
static double reference(const world_t *self, float **sum)
{
    const uint32_t layers = model_layers_count(self->model);
    const layer_conf_t conf = {
        .backend = self->backend, .model = self->model, .last = layers, .rows = ROWS};
    layer_span_t *span = NULL;
    cr_assert_eq(layer_open(&conf, &span), HX_OK);
    layer_set_t set = {.rows = ROWS, .time = model_conf(self->model)->context};
    cr_assert_eq(self->backend->ops->alloc(self->backend, layer_set_size(&conf), &set.memory),
                 HX_OK);
    uint32_t groups[LAYERS + 4];
    const float *params[LAYERS + 4];
    float *grads[LAYERS + 4];
    const uint32_t count = layer_groups(span, groups);
    for (uint32_t place = 0; place < count; place++) {
        params[place] = self->params[groups[place]];
        grads[place] = sum[groups[place]];
    }
    const layer_weights_t weights = {.params = params, .grads = grads};
    double loss = 0;
    cr_assert_eq(layer_forward(span, &set, &weights, self->tokens, self->targets, 0.5, &loss),
                 HX_OK);
    cr_assert_eq(layer_backward(span, &set, &weights), HX_OK);
    self->backend->ops->release(self->backend, &set.memory);
    layer_destroy(&span);
    return loss;
}

static void check_equal(const world_t *self, float **sum, float **expected, double bound)
{
    for (uint32_t group = 0; group < model_groups_count(self->model); group++) {
        double difference = 0;
        double norm = 0;
        for (uint64_t at = 0; at < model_group(self->model, group)->size; at++) {
            difference += pow((double)sum[group][at] - expected[group][at], 2);
            norm += pow(expected[group][at], 2);
        }
        cr_assert_gt(norm, 0);
        cr_assert_leq(sqrt(difference / norm), bound, "group %u: %g", group,
                      sqrt(difference / norm));
    }
}

typedef enum { WHOLE, SLICES, HALVES } how_t;

static void run_backward(stage_t *stage, stage_backward_t args, how_t how)
{
    const stage_conf_t *const conf = stage_conf(stage);
    args.first = conf->first;
    args.end = conf->end;
    args.input = args.weight = true;
    if (how == HALVES) {
        args.weight = false;
        cr_assert_eq(stage_backward(stage, &args), HX_OK);
        args.input = false;
        args.weight = true;
        cr_assert_eq(stage_backward(stage, &args), HX_OK);
        return;
    }
    if (how == WHOLE) {
        cr_assert_eq(stage_backward(stage, &args), HX_OK);
        return;
    }
    for (uint32_t slice = worker_slices(conf->first, conf->end); slice-- > 0;) {
        args.first = worker_slice_first(conf->first, conf->end, slice);
        args.end = worker_slice_first(conf->first, conf->end, slice + 1);
        cr_assert_eq(stage_backward(stage, &args), HX_OK);
    }
}

// A pipeline of stages that end at `ends`, one microbatch, run by hand.
static void check_cut(const world_t *self, const uint32_t *ends, uint32_t stages, how_t how,
                      bool recompute, float **expected, double expected_loss)
{
    stage_t *list[8] = {NULL};
    const size_t boundary = (size_t)ROWS * 8 * 16;
    float *const wire = hx_new(boundary, sizeof *wire);
    double loss = 0;
    for (uint32_t index = 0; index < stages; index++) {
        stage_conf_t conf = conf_of(self, index > 0 ? ends[index - 1] : 0, ends[index]);
        conf.recompute = recompute;
        list[index] = open_stage(self, &conf);
        const stage_forward_t args = {
            .set = 1,
            .buffer = 1,
            .rows = ROWS,
            .input = wire,
            .tokens = self->tokens,
            .targets = self->targets,
            .loss_scale = 0.5,
            .output = wire,
            .loss = &loss,
        };
        cr_assert_eq(stage_forward(list[index], &args), HX_OK);
    }
    cr_assert_float_eq(loss, expected_loss, 1e-4);
    float **const sum = zeros(self);
    for (uint32_t index = stages; index-- > 0;) {
        const stage_backward_t args = {.set = 1, .buffer = 1, .gradient = wire, .output = wire};
        run_backward(list[index], args, how);
        take(self, list[index], sum);
        stage_destroy(&list[index]);
    }
    check_equal(self, sum, expected, 1e-5);
    free_sum(self, sum);
    free(wire);
}

Test(stage, any_cut_gives_the_gradient_of_the_whole)
{
    world_t world;
    begin(&world);
    float **const expected = zeros(&world);
    const double loss = reference(&world, expected);
    hx_rng_t rng = hx_rng_seed(seed_of("stage"));
    for (uint32_t trial = 0; trial < 24; trial++) {
        uint32_t ends[LAYERS + 2];
        uint32_t stages = 0;
        for (uint32_t layer = 1; layer < LAYERS + 2; layer++) {
            if (hx_rng_below(&rng, 3) == 0) {
                ends[stages++] = layer;
            }
        }
        ends[stages++] = LAYERS + 2;
        check_cut(&world, ends, stages, (how_t)(trial % 3), trial % 2 == 1, expected, loss);
    }
    free_sum(&world, expected);
    finish(&world);
}

Test(stage, smaller_microbatch_and_several_sets_add_up)
{
    world_t world;
    begin(&world);
    float **const expected = zeros(&world);
    (void)reference(&world, expected);
    const stage_conf_t conf = conf_of(&world, 0, LAYERS + 2);
    stage_t *stage = open_stage(&world, &conf);
    const size_t context = 8;
    double losses[2];
    for (uint32_t micro = 0; micro < 2; micro++) {  // Two rows, then one.
        const stage_forward_t args = {
            .set = micro,
            .buffer = 1,
            .rows = 2 - micro,
            .tokens = world.tokens + 2 * context * micro,
            .targets = world.targets + 2 * context * micro,
            .loss_scale = 0.5,
            .loss = &losses[micro],
        };
        cr_assert_eq(stage_forward(stage, &args), HX_OK);
    }
    for (uint32_t micro = 0; micro < 2; micro++) {
        run_backward(stage, (stage_backward_t){.set = micro, .buffer = 1}, WHOLE);
    }
    float **const sum = zeros(&world);
    take(&world, stage, sum);
    check_equal(&world, sum, expected, 1e-5);
    stage_destroy(&stage);
    free_sum(&world, sum);
    free_sum(&world, expected);
    finish(&world);
}

// A backend that has so many bytes.
typedef struct {
    hx_backend_t base;
    hx_backend_ops_t ops;
    hx_backend_t *cpu;
    size_t left;
    size_t live;  // Allocations that were not given back.
} small_t;

static hx_err_t small_alloc(hx_backend_t *base, size_t size, void **memory_p)
{
    small_t *const self = (small_t *)base;
    if (size > self->left) {
        return HX_E_NOMEM;
    }
    self->left -= size;
    self->live++;
    return self->cpu->ops->alloc(self->cpu, size, memory_p);
}

static void small_release(hx_backend_t *base, void **memory_p)
{
    small_t *const self = (small_t *)base;
    self->live -= *memory_p != NULL;
    self->cpu->ops->release(self->cpu, memory_p);
}

static hx_err_t small_fill(hx_backend_t *base, hx_stream_t stream, hx_dtype_t dtype, void *to,
                           double value, size_t count)
{
    small_t *const self = (small_t *)base;
    return self->cpu->ops->fill(self->cpu, stream, dtype, to, value, count);
}

static hx_err_t small_sync(hx_backend_t *base, hx_stream_t stream)
{
    (void)base;
    (void)stream;
    return HX_OK;
}

Test(stage, reserves_what_it_says_or_nothing)
{
    world_t world;
    begin(&world);
    small_t small = {.cpu = world.backend};
    small.ops = (hx_backend_ops_t){
        .alloc = small_alloc, .release = small_release, .fill = small_fill, .sync = small_sync};
    small.base = (hx_backend_t){.ops = &small.ops, .name = "small", .streams_count = 1};
    stage_conf_t conf = conf_of(&world, 1, 6);
    conf.backend = &small.base;
    stage_t *stage = NULL;
    const size_t size = stage_size(&conf);
    for (size_t part = 0; part < 20; part++) {
        small.left = (size - 1) * part / 19;
        cr_assert_eq(stage_open(&conf, &stage), HX_E_NOMEM);
        cr_assert_null(stage);
        cr_assert_eq(small.live, 0);
    }
    small.left = size;
    cr_assert_eq(stage_open(&conf, &stage), HX_OK);
    cr_assert_eq(small.left, 0);
    stage_destroy(&stage);
    cr_assert_eq(small.live, 0);
    finish(&world);
}

Test(stage, set_beyond_the_reserved_is_a_bug, .signal = SIGABRT)
{
    world_t world;
    begin(&world);
    const stage_conf_t conf = conf_of(&world, 0, LAYERS + 2);
    stage_t *stage = open_stage(&world, &conf);
    const hx_err_t err = stage_forward(stage, &(stage_forward_t){.set = 2, .rows = 1});
    cr_assert_fail("it came back: %s", hx_strerror(err));
}
