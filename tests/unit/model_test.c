// model_test - the description of GPT-2: tensors, groups, layers, initial values, decay.

#include "model/model.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const model_conf_t small = {.family = MODEL_GPT2,
                                   .layers = 3,
                                   .heads = 4,
                                   .channels = 24,
                                   .context = 7,
                                   .vocab = 31,
                                   .ln_eps = 1e-5};

static model_t *open_model(const model_conf_t *conf)
{
    model_t *model = NULL;
    cr_assert_eq(model_open(conf, &model, NULL), HX_OK);
    return model;
}

Test(model, of_124_million_parameters_is_known)
{
    model_conf_t conf = model_conf_default();
    conf.layers = conf.heads = 12;
    conf.channels = 768;
    conf.context = 1024;
    conf.vocab = 50257;
    model_t *model = open_model(&conf);
    cr_assert_eq(model_params_count(model), 124439808);
    cr_assert_eq(model_layers_count(model), 14);
    cr_assert_eq(model_tensors_count(model), 148);
    cr_assert_str_eq(model_tensor(model, 14)->name, "h.1.ln_1.weight");
    model_destroy(&model);
    cr_assert_null(model);
}

Test(model, refuses_what_it_cannot_be_and_says_why)
{
    const model_conf_t good = small;
    hx_fault_t fault;
    model_conf_t bad = good;
    cr_assert_eq(model_check(&good, NULL), HX_OK);
    bad.heads = 5;
    cr_assert_eq(model_check(&bad, &fault), HX_E_ARG);
    cr_assert_str_eq(fault.text, "model.channels 24 is not a multiple of model.heads 5: each head "
                                 "takes an equal part of the channels");
    uint32_t *const values[] = {&bad.layers, &bad.heads, &bad.channels, &bad.context, &bad.vocab};
    static const char *const names[] = {"layers", "heads", "channels", "context", "vocab"};
    for (size_t index = 0; index < HX_COUNT(values); index++) {
        bad = good;
        *values[index] = 0;
        cr_assert_eq(model_check(&bad, &fault), HX_E_ARG);
        cr_assert_not_null(strstr(fault.text, names[index]));
        *values[index] = UINT32_MAX;
        cr_assert_eq(model_check(&bad, &fault), HX_E_ARG);
    }
    bad = good;
    bad.ln_eps = 0;
    cr_assert_eq(model_check(&bad, &fault), HX_E_ARG);
    bad.ln_eps = NAN;
    cr_assert_eq(model_check(&bad, &fault), HX_E_ARG);
}

Test(model, tensors_tile_their_groups)
{
    model_t *model = open_model(&small);
    uint32_t tensor = 0;
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const model_group_t *const in = model_group(model, group);
        uint64_t at = 0;
        cr_assert_eq(in->tensors_first, tensor);
        for (uint32_t index = 0; index < in->tensors_count; index++, tensor++) {
            const model_tensor_t *const one = model_tensor(model, tensor);
            cr_assert_eq(one->group, group);
            cr_assert_eq(one->offset, at);
            cr_assert_eq(one->size, one->dims[0] * one->dims[1]);
            cr_assert_eq(one->decay, one->rank == 2);
            cr_assert_eq(model_tensor_find(model, one->name), one);
            at += one->size;
        }
        cr_assert_eq(in->size, at);
    }
    cr_assert_eq(tensor, model_tensors_count(model));
    cr_assert_eq(model_group(model, 0)->size, 31 * 24);
    cr_assert_eq(model_group(model, 2)->size, 12 * 24 * 24 + 13 * 24);
    cr_assert_eq(model_tensor_find(model, "transformer.wte.weight"), model_tensor(model, 0));
    cr_assert_null(model_tensor_find(model, "h.3.ln_1.weight"));
    model_destroy(&model);
}

Test(model, layers_name_the_groups_that_they_use)
{
    model_t *model = open_model(&small);
    uint32_t groups[6];
    cr_assert_eq(model_groups_of(model, 0, 1, groups), 2);
    cr_assert_arr_eq(groups, ((uint32_t[]){0, 1}), 2 * sizeof *groups);
    cr_assert_eq(model_groups_of(model, 2, 4, groups), 2);
    cr_assert_arr_eq(groups, ((uint32_t[]){3, 4}), 2 * sizeof *groups);
    cr_assert_eq(model_groups_of(model, 3, 5, groups), 3);
    cr_assert_arr_eq(groups, ((uint32_t[]){0, 4, 5}), 3 * sizeof *groups);
    cr_assert_eq(model_groups_of(model, 0, 5, groups), 6);
    cr_assert_eq(model_groups_of(model, 2, 2, groups), 0);
    model_destroy(&model);
}

Test(model, prices_its_layers)
{
    model_t *model = open_model(&small);
    const model_layer_t *const embed = model_layer(model, 0);
    const model_layer_t *const block = model_layer(model, 2);
    const model_layer_t *const head = model_layer(model, 4);
    cr_assert_eq(embed->kind, LAYER_EMBED);
    cr_assert_eq(block->kind, LAYER_BLOCK);
    cr_assert_eq(block->block, 1);
    cr_assert_eq(head->kind, LAYER_HEAD);
    cr_assert_eq(embed->params_size, 4 * (31 + 7) * 24);
    cr_assert_eq(head->params_size, 4 * (31 + 2) * 24);
    cr_assert_eq(block->output_size, 4 * 7 * 24);
    cr_assert_eq(head->output_size, 0);
    cr_assert_eq(head->logits_size, 4 * 7 * 31);
    cr_assert_float_eq(head->forward_flops, 2.0 * 7 * 24 * 31, 1e-9);
    // Four products of 12 C^2 together, and half of two of time x time x C.
    cr_assert_float_eq(block->forward_flops, 2.0 * 7 * 12 * 24 * 24 + 2.0 * 7 * 8 * 24, 1e-9);
    cr_assert_float_eq(block->backward_flops, 2 * block->forward_flops, 1e-9);
    model_destroy(&model);
}

Test(model, initial_values_depend_on_seed_name_and_element_alone)
{
    model_t *model = open_model(&small);
    hx_rng_t rng = hx_rng_seed(seed_of("initial values"));
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const uint64_t size = model_group(model, group)->size;
        float *const whole = calloc(size, sizeof *whole);
        float *const part = calloc(size, sizeof *part);
        model_init_group(model, group, 7, 0, size, whole);
        for (uint32_t round = 0; round < 50; round++) {
            const uint64_t first = hx_rng_below(&rng, size);
            const uint64_t count = 1 + hx_rng_below(&rng, size - first);
            model_init_group(model, group, 7, first, count, part);
            cr_assert_arr_eq(part, whole + first, sizeof *part * count);
        }
        free(whole);
        free(part);
    }
    model_destroy(&model);
}

static double deviation_of(const model_t *model, const char *name, uint64_t seed)
{
    const model_tensor_t *const tensor = model_tensor_find(model, name);
    float *const values = calloc(tensor->size, sizeof *values);
    double sum = 0;
    model_init_tensor(tensor, seed, 0, tensor->size, values);
    for (uint64_t index = 0; index < tensor->size; index++) {
        sum += (double)values[index] * (double)values[index];
    }
    free(values);
    return sqrt(sum / (double)tensor->size);
}

Test(model, initial_values_have_the_spread_that_they_should)
{
    model_conf_t conf = small;
    conf.channels = 64;
    conf.vocab = 512;
    model_t *model = open_model(&conf);
    cr_assert_float_eq(deviation_of(model, "wte.weight", 1), 0.02, 0.0005);
    cr_assert_float_eq(deviation_of(model, "h.1.mlp.c_fc.weight", 1), 0.02, 0.0005);
    cr_assert_float_eq(deviation_of(model, "h.1.mlp.c_proj.weight", 1), 0.02 / sqrt(6), 0.0003);
    cr_assert_float_eq(deviation_of(model, "h.0.attn.c_proj.weight", 1), 0.02 / sqrt(6), 0.0006);
    cr_assert_eq(deviation_of(model, "h.0.attn.c_proj.bias", 1), 0);
    cr_assert_eq(deviation_of(model, "ln_f.weight", 1), 1);
    cr_assert_neq(deviation_of(model, "wte.weight", 1), deviation_of(model, "wte.weight", 2));
    cr_assert_neq(deviation_of(model, "h.0.mlp.c_fc.weight", 1),
                  deviation_of(model, "h.1.mlp.c_fc.weight", 1));
    model_destroy(&model);
}

typedef struct {
    uint8_t *decay;  // Of each element: 1 no, 2 yes.
    uint64_t next;
    uint32_t runs;
    bool last;
} runs_t;

static void note_run(void *each_self, uint64_t first, uint64_t count, bool decay)
{
    runs_t *const runs = each_self;
    cr_assert_eq(first, runs->next);
    cr_assert_gt(count, 0);
    cr_assert(runs->runs == 0 || decay != runs->last, "a run could have been longer");
    memset(runs->decay + first, decay ? 2 : 1, count);
    runs->next = first + count;
    runs->last = decay;
    runs->runs++;
}

Test(model, decay_runs_cover_any_range_by_rank)
{
    model_t *model = open_model(&small);
    hx_rng_t rng = hx_rng_seed(seed_of("decay runs"));
    for (uint32_t round = 0; round < 400; round++) {
        const uint32_t group = (uint32_t)hx_rng_below(&rng, model_groups_count(model));
        const model_group_t *const in = model_group(model, group);
        const uint64_t first = hx_rng_below(&rng, in->size);
        const uint64_t count = 1 + hx_rng_below(&rng, in->size - first);
        runs_t runs = {.decay = calloc(in->size, 1), .next = first};
        model_decay_runs(model, group, first, count, note_run, &runs);
        cr_assert_eq(runs.next, first + count);
        for (uint32_t index = 0; index < in->tensors_count; index++) {
            const model_tensor_t *const one = model_tensor(model, in->tensors_first + index);
            for (uint64_t at = one->offset; at < one->offset + one->size; at++) {
                const bool inside = at >= first && at < first + count;
                cr_assert_eq(runs.decay[at], inside ? (one->rank >= 2 ? 2 : 1) : 0);
            }
        }
        free(runs.decay);
    }
    model_destroy(&model);
}
