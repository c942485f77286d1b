// layer_test - no way of running a model changes its loss or gradients: cuts into stages,
// microbatches, recompute, a backward in two parts, schedules with sets in flight.

#include "model/layer.h"
#include "tests/support/layer_world.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGES 8u

// How a whole step is run.
typedef struct {
    uint32_t stages;
    uint32_t cuts[STAGES + 1];  // First layer of each stage, then the number of layers.
    uint32_t micros;            // Divides the world's rows.
    bool recompute;
    bool apart;  // The backward in two parts, the weight parts after all input parts.
    bool gpipe;  // All forwards before the first backward.
} way_t;

static void forward(const world_t *world, world_stage_t **stages, const way_t *way, uint32_t micro,
                    double *loss)
{
    const uint32_t context = model_conf(world->model)->context;
    const uint32_t rows = world->rows / way->micros;
    const size_t at = (size_t)micro * rows * context;
    const double scale = 1.0 / ((double)world->rows * context);
    for (uint32_t index = 0; index < way->stages; index++) {
        world_stage_t *const stage = stages[index];
        double sum = 0;
        if (index > 0) {
            memcpy(layer_input(stage->span, &stage->sets[micro]),
                   layer_output(stages[index - 1]->span, &stages[index - 1]->sets[micro]),
                   layer_boundary_size(stage->span, &stage->sets[micro]));
        }
        cr_assert_eq(layer_forward(stage->span, &stage->sets[micro], &stage->weights,
                                   index == 0 ? world->tokens + at : NULL,
                                   index + 1 == way->stages ? world->targets + at : NULL, scale,
                                   &sum),
                     HX_OK);
        *loss += sum;
    }
}

static void backward(world_stage_t **stages, const way_t *way, uint32_t micro)
{
    for (uint32_t index = way->stages; index-- > 0;) {
        world_stage_t *const stage = stages[index];
        if (index + 1 < way->stages) {
            memcpy(layer_output(stage->span, &stage->sets[micro]),
                   layer_input(stages[index + 1]->span, &stages[index + 1]->sets[micro]),
                   layer_boundary_size(stage->span, &stage->sets[micro]));
        }
        cr_assert_eq(way->apart
                         ? layer_backward_input(stage->span, &stage->sets[micro], &stage->weights)
                         : layer_backward(stage->span, &stage->sets[micro], &stage->weights),
                     HX_OK);
    }
}

// Runs a step the given way; gradients in world->grads. Returns the summed loss.
static double run(world_t *world, const way_t *way)
{
    world_stage_t *stages[STAGES];
    double loss = 0;
    for (uint32_t index = 0; index < way->stages; index++) {
        layer_conf_t conf =
            world_conf(world, way->cuts[index], way->cuts[index + 1], world->rows / way->micros);
        conf.recompute = way->recompute;
        stages[index] = world_stage_new(world, &conf);
    }
    world_clear_grads(world);
    for (uint32_t micro = 0; way->gpipe && micro < way->micros; micro++) {
        forward(world, stages, way, micro, &loss);
    }
    for (uint32_t micro = 0; micro < way->micros; micro++) {
        if (!way->gpipe) {
            forward(world, stages, way, micro, &loss);
        }
        backward(stages, way, micro);
    }
    for (uint32_t index = 0; index < way->stages; index++) {
        for (uint32_t micro = 0; way->apart && micro < way->micros; micro++) {
            cr_assert_eq(layer_backward_weight(stages[index]->span, &stages[index]->sets[micro],
                                               &stages[index]->weights),
                         HX_OK);
        }
        world_stage_end(world, stages[index]);
    }
    return loss;
}

static way_t plain(const world_t *world)
{
    return (way_t){.stages = 1, .cuts = {0, model_layers_count(world->model)}, .micros = 1};
}

static float *copy_grads(const world_t *world)
{
    float *const all = calloc(model_params_count(world->model), sizeof *all);
    float *at = all;
    for (uint32_t group = 0; group < model_groups_count(world->model); group++) {
        memcpy(at, world->grads[group], sizeof *at * model_group(world->model, group)->size);
        at += model_group(world->model, group)->size;
    }
    return all;
}

// The largest relative difference over the tensors between `all` and the world's gradients.
static double difference(const world_t *world, const float *all)
{
    double worst = 0;
    for (uint32_t index = 0; index < model_tensors_count(world->model); index++) {
        const model_tensor_t *const tensor = model_tensor(world->model, index);
        const float *const now = world->grads[tensor->group] + tensor->offset;
        double sum = 0;
        double norm = 0;
        for (uint64_t at = 0; at < tensor->size; at++) {
            sum += pow((double)now[at] - (double)all[at], 2);
            norm += pow((double)all[at], 2);
        }
        cr_assert(norm > 0 && isfinite(norm), "%s has no gradient", tensor->name);
        worst = fmax(worst, sqrt(sum / norm));
        all += tensor->size;
    }
    return worst;
}

static void check_way(world_t *world, const way_t *way, double loss, const float *all, double bound)
{
    const double now = run(world, way);
    const double off = difference(world, all);
    cr_assert_float_eq(now, loss, fabs(loss) * bound, "loss %.9g, was %.9g", now, loss);
    cr_assert_leq(
        off, bound,
        "gradients off by %g: %u stages, %u microbatches, recompute %d, apart %d, gpipe %d", off,
        way->stages, way->micros, way->recompute, way->apart, way->gpipe);
}

Test(layer, recompute_gives_the_same_bits)
{
    hx_rng_t rng = hx_rng_seed(seed_of("recompute"));
    for (uint32_t round = 0; round < 6; round++) {
        world_t world = world_new(&rng, 1 + round % 3, 2);
        way_t way = plain(&world);
        const double loss = run(&world, &way);
        float *const all = copy_grads(&world);
        way.recompute = true;
        check_way(&world, &way, loss, all, 0);
        way.apart = true;
        check_way(&world, &way, loss, all, 0);
        free(all);
        world_end(&world);
    }
}

Test(layer, two_parts_give_the_same_bits_as_one)
{
    hx_rng_t rng = hx_rng_seed(seed_of("two parts"));
    for (uint32_t round = 0; round < 6; round++) {
        world_t world = world_new(&rng, 1 + round % 3, 4);
        way_t way = plain(&world);
        way.micros = 1 + round % 2;
        const double loss = run(&world, &way);
        float *const all = copy_grads(&world);
        way.apart = true;
        // With two microbatches all weight parts come last, so the tied matrix sums in another
        // order.
        check_way(&world, &way, loss, all, way.micros == 1 ? 0 : 3e-7);
        free(all);
        world_end(&world);
    }
}

Test(layer, logits_overwritten_by_other_microbatches_are_made_again)
{
    hx_rng_t rng = hx_rng_seed(seed_of("gpipe"));
    world_t world = world_new(&rng, 2, 4);
    way_t way = plain(&world);
    way.micros = 4;
    const double loss = run(&world, &way);
    float *const all = copy_grads(&world);
    way.gpipe = true;
    check_way(&world, &way, loss, all, 0);
    free(all);
    world_end(&world);
}

static void cut_anywhere(hx_rng_t *rng, const world_t *world, way_t *way)
{
    const uint32_t layers = model_layers_count(world->model);
    way->stages = 0;
    for (uint32_t first = 0; first < layers;) {
        const uint32_t left = layers - first;
        way->cuts[way->stages++] = first;
        first += way->stages == STAGES ? left : 1 + (uint32_t)hx_rng_below(rng, left);
    }
    way->cuts[way->stages] = layers;
}

Test(layer, no_cut_microbatch_or_order_changes_loss_or_gradient)
{
    hx_rng_t rng = hx_rng_seed(seed_of("ways"));
    static const uint32_t micros[] = {1, 2, 4};
    for (uint32_t round = 0; round < 8; round++) {
        world_t world = world_new(&rng, 1 + (uint32_t)hx_rng_below(&rng, 4), 4);
        way_t way = plain(&world);
        const double loss = run(&world, &way);
        float *const all = copy_grads(&world);
        for (uint32_t other = 0; other < 12; other++) {
            cut_anywhere(&rng, &world, &way);
            way.micros = micros[hx_rng_below(&rng, 3)];
            way.recompute = hx_rng_below(&rng, 2) > 0;
            way.apart = hx_rng_below(&rng, 2) > 0;
            way.gpipe = hx_rng_below(&rng, 2) > 0;
            check_way(&world, &way, loss, all, 3e-6);
        }
        free(all);
        world_end(&world);
    }
}

typedef struct {
    uint32_t groups[WORLD_GROUPS];
    uint32_t count;
} done_t;

static void note_done(void *done_self, uint32_t group)
{
    done_t *const done = done_self;
    cr_assert_lt(done->count, WORLD_GROUPS);
    done->groups[done->count++] = group;
}

Test(layer, announces_each_group_once_deepest_first)
{
    hx_rng_t rng = hx_rng_seed(seed_of("announcements"));
    world_t world = world_new(&rng, 2, 1);
    const layer_conf_t conf = world_conf(&world, 0, 4, 1);
    world_stage_t *stage = world_stage_new(&world, &conf);
    done_t done = {.count = 0};
    double loss = 0;
    stage->weights.group_done = note_done;
    stage->weights.done_self = &done;
    cr_assert_eq(layer_forward(stage->span, stage->sets, &stage->weights, world.tokens,
                               world.targets, 1, &loss),
                 HX_OK);
    cr_assert_eq(layer_backward(stage->span, stage->sets, &stage->weights), HX_OK);
    // ln_f first; wte only when the embedding too has added its share.
    cr_assert_eq(done.count, 5);
    cr_assert_arr_eq(done.groups, ((uint32_t[]){4, 3, 2, 0, 1}), 5 * sizeof(uint32_t));
    world_stage_end(&world, stage);

    const layer_conf_t tail = world_conf(&world, 2, 4, 1);
    stage = world_stage_new(&world, &tail);
    stage->weights.group_done = note_done;
    stage->weights.done_self = &done;
    done.count = 0;
    world_randomise(&rng, layer_input(stage->span, stage->sets),
                    layer_boundary_size(stage->span, stage->sets) / sizeof(float), 1, 0);
    cr_assert_eq(
        layer_forward(stage->span, stage->sets, &stage->weights, NULL, world.targets, 1, &loss),
        HX_OK);
    cr_assert_eq(layer_backward_input(stage->span, stage->sets, &stage->weights), HX_OK);
    cr_assert_eq(done.count, 0);
    cr_assert_eq(layer_backward_weight(stage->span, stage->sets, &stage->weights), HX_OK);
    cr_assert_eq(done.count, 3);
    cr_assert_arr_eq(done.groups, ((uint32_t[]){0, 4, 3}), 3 * sizeof(uint32_t));
    world_stage_end(&world, stage);
    world_end(&world);
}

Test(layer, leaves_out_negative_targets)
{
    hx_rng_t rng = hx_rng_seed(seed_of("left out"));
    world_t world = world_new(&rng, 1, 2);
    const size_t half = model_conf(world.model)->context;
    way_t way = plain(&world);
    way.micros = 2;
    for (size_t at = half; at < 2 * half; at++) {
        world.targets[at] = -1;
    }
    const double loss = run(&world, &way);
    float *const all = copy_grads(&world);
    // The same as the first row alone, with its factor: half of the tokens count.
    world.rows = 1;
    way.micros = 1;
    cr_assert_float_eq(run(&world, &way), loss, 1e-6 * loss);
    for (uint32_t group = 0; group < model_groups_count(world.model); group++) {
        for (uint64_t at = 0; at < model_group(world.model, group)->size; at++) {
            world.grads[group][at] *= 0.5F;
        }
    }
    cr_assert_leq(difference(&world, all), 1e-6);
    free(all);
    world_end(&world);
}

Test(layer, refuses_tokens_and_targets_outside_the_vocabulary)
{
    hx_rng_t rng = hx_rng_seed(seed_of("outside"));
    world_t world = world_new(&rng, 1, 1);
    const layer_conf_t conf = world_conf(&world, 0, 3, 1);
    const int32_t vocab = (int32_t)model_conf(world.model)->vocab;
    world_stage_t *const stage = world_stage_new(&world, &conf);
    double loss = 0;
    int32_t *const places[] = {world.tokens, world.targets};
    for (size_t index = 0; index < HX_COUNT(places); index++) {
        const int32_t kept = places[index][1];
        places[index][1] = vocab;
        cr_assert_eq(layer_forward(stage->span, stage->sets, &stage->weights, world.tokens,
                                   world.targets, 1, &loss),
                     HX_E_ARG);
        places[index][1] = kept;
    }
    world_stage_end(&world, stage);
    world_end(&world);
}

Test(layer, inference_gives_the_loss_of_training_and_its_logits)
{
    hx_rng_t rng = hx_rng_seed(seed_of("inference"));
    world_t world = world_new(&rng, 3, 2);
    way_t way = plain(&world);
    const double wanted = run(&world, &way);
    layer_conf_t conf = world_conf(&world, 0, model_layers_count(world.model), 2);
    conf.inference = true;
    world_stage_t *const stage = world_stage_new(&world, &conf);
    const uint32_t context = model_conf(world.model)->context;
    const uint32_t vocab = model_conf(world.model)->vocab;
    double loss = 0;
    cr_assert_eq(layer_forward(stage->span, stage->sets, &stage->weights, world.tokens,
                               world.targets, 0, &loss),
                 HX_OK);
    cr_assert_float_eq(loss, wanted, 1e-6 * wanted);
    float *const logits = calloc((size_t)2 * context * vocab, sizeof *logits);
    cr_assert_eq(layer_logits(stage->span, stage->sets, &stage->weights, 0, 2 * context, logits),
                 HX_OK);
    double sum = 0;
    for (size_t at = 0; at < (size_t)2 * context; at++) {
        double total = 0;
        for (uint32_t token = 0; token < vocab; token++) {
            total += exp((double)logits[at * vocab + token]);
        }
        sum += log(total) - (double)logits[at * vocab + (size_t)world.targets[at]];
    }
    cr_assert_float_eq(sum, wanted, 1e-6 * wanted);

    // What comes later does not change a position: a short row gives the same logits.
    float *const shorter = calloc(vocab, sizeof *shorter);
    stage->sets[0].rows = 1;
    stage->sets[0].time = 3;
    cr_assert_eq(
        layer_forward(stage->span, stage->sets, &stage->weights, world.tokens, NULL, 0, NULL),
        HX_OK);
    cr_assert_eq(layer_logits(stage->span, stage->sets, &stage->weights, 2, 1, shorter), HX_OK);
    for (uint32_t token = 0; token < vocab; token++) {
        cr_assert_float_eq(shorter[token], logits[2 * vocab + token], 1e-4F);
    }
    free(shorter);
    free(logits);
    world_stage_end(&world, stage);
    world_end(&world);
}

Test(layer, sets_take_what_the_model_says)
{
    model_conf_t model_conf_ = model_conf_default();
    model_t *model = NULL;
    model_conf_.layers = 4;
    model_conf_.heads = 4;
    model_conf_.channels = 128;
    model_conf_.context = 64;
    model_conf_.vocab = 256;
    cr_assert_eq(model_open(&model_conf_, &model, NULL), HX_OK);
    hx_backend_t *backend = hx_backend_cpu_new(1);
    for (uint32_t first = 0; first < 6; first++) {
        for (uint32_t last = first + 1; last <= 6; last++) {
            layer_conf_t conf = {
                .backend = backend, .model = model, .first = first, .last = last, .rows = 8};
            uint64_t wanted = first > 0 ? 8 * model_layer(model, first)->input_size : 0;
            for (uint32_t layer = first; layer < last; layer++) {
                wanted += 8 * model_layer(model, layer)->activation_size;
            }
            const double size = (double)layer_set_size(&conf);
            cr_assert_float_eq(size, (double)wanted, 0.02 * (double)wanted,
                               "layers %u to %u: %g bytes, %g said", first, last, size,
                               (double)wanted);
            conf.recompute = true;
            cr_assert_leq(layer_set_size(&conf), size);
        }
    }
    hx_backend_destroy(&backend);
    model_destroy(&model);
}
