// layer_kinds_test - what only a single kind of layer shows: the head in small pieces, the key
// bias.

#include "model/layer_kinds.h"
#include "model/model_gpt2.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 60u
#define TIME 10u
#define CHANNELS 12u
#define VOCAB 21u
#define PITCH 32u
#define PLACES (ROWS * TIME)

static const model_conf_t small = {.family = MODEL_GPT2,
                                   .layers = 1,
                                   .heads = 3,
                                   .channels = CHANNELS,
                                   .context = TIME,
                                   .vocab = VOCAB,
                                   .ln_eps = 1e-5};

static float *random_floats(hx_rng_t *rng, size_t count)
{
    float *const floats = calloc(count, sizeof *floats);
    for (size_t at = 0; at < count; at++) {
        floats[at] = (float)hx_rng_normal(rng);
    }
    return floats;
}

typedef struct {
    hx_backend_t *backend;
    model_t *model;
    hx_rng_t rng;
    layer_call_t call;
} bed_t;

static bed_t bed_new(const char *name, uint32_t layer)
{
    bed_t bed = {.backend = hx_backend_cpu_new(1), .rng = hx_rng_seed(seed_of(name))};
    cr_assert_eq(model_open(&small, &bed.model, NULL), HX_OK);
    layer_call_t *const call = &bed.call;
    call->backend = bed.backend;
    call->model = bed.model;
    call->layer = model_layer(bed.model, layer);
    call->rows = ROWS;
    call->time = TIME;
    for (uint32_t use = 0; use < call->layer->groups_count; use++) {
        const uint64_t size = model_group(bed.model, call->layer->groups[use])->size;
        call->params[use] = random_floats(&bed.rng, size);
        call->grads[use] = calloc(size, sizeof(float));
    }
    call->stream = random_floats(&bed.rng, PLACES * CHANNELS);
    call->next = random_floats(&bed.rng, PLACES * CHANNELS);
    call->small = calloc(PLACES * CHANNELS, sizeof(float));
    call->big = calloc(PLACES * CHANNELS * 4, sizeof(float));
    return bed;
}

static void bed_end(bed_t *bed)
{
    layer_call_t *const call = &bed->call;
    for (uint32_t use = 0; use < call->layer->groups_count; use++) {
        free((void *)(uintptr_t)call->params[use]);
        free(call->grads[use]);
    }
    free(call->stream);
    free(call->next);
    free(call->small);
    free(call->big);
    model_destroy(&bed->model);
    hx_backend_destroy(&bed->backend);
}

Test(layer_kinds, loss_is_the_same_with_room_for_few_logits)
{
    bed_t bed = bed_new("few logits", 2);
    layer_call_t *const call = &bed.call;
    float losses[2][PLACES];
    int32_t targets[PLACES];
    for (size_t at = 0; at < PLACES; at++) {
        targets[at] = (int32_t)hx_rng_below(&bed.rng, VOCAB);
    }
    call->targets = targets;
    call->norm = calloc(PLACES * CHANNELS, sizeof(float));
    call->mean = calloc(PLACES, sizeof(float));
    call->rstd = calloc(PLACES, sizeof(float));
    call->logits = calloc((size_t)PLACES * PITCH, sizeof(float));
    call->logits_pitch = PITCH;
    call->logits_rows = PLACES;
    call->loss_scale = 1;
    cr_assert_eq(layer_kind_ops(LAYER_HEAD)->forward(call), HX_OK);
    call->losses = losses[0];
    cr_assert_eq(layer_kind_loss(call, true), HX_OK);
    call->losses = losses[1];
    for (size_t room = 1; room < PLACES; room += 117) {
        call->logits_rows = room;
        memset(losses[1], 0, sizeof losses[1]);
        cr_assert_eq(layer_kind_loss(call, false), HX_OK);
        for (size_t at = 0; at < PLACES; at++) {
            cr_assert_float_eq(losses[0][at], losses[1][at], 1e-4F);
        }
    }
    free(call->norm);
    free(call->mean);
    free(call->rstd);
    free(call->logits);
    bed_end(&bed);
}

static void reserve_block(layer_call_t *call)
{
    for (uint32_t tensor = 0; tensor < BLOCK_TENSORS_COUNT; tensor++) {
        call->block[tensor] = calloc(PLACES * CHANNELS * 4, sizeof(float));
    }
}

Test(layer_kinds, key_bias_has_no_effect_and_no_gradient)
{
    bed_t bed = bed_new("key bias", 1);
    layer_call_t *const call = &bed.call;
    reserve_block(call);
    const uint64_t at = model_tensor(bed.model, 2 + GPT2_ATTN_BIAS)->offset;
    float *const bias = (float *)(uintptr_t)call->params[0] + at;
    float *const kept = calloc(PLACES * CHANNELS, sizeof *kept);
    const layer_kind_ops_t *const block = layer_kind_ops(LAYER_BLOCK);
    cr_assert_eq(block->forward(call), HX_OK);
    memcpy(kept, call->next, sizeof *kept * PLACES * CHANNELS);
    for (uint32_t channel = CHANNELS; channel < 2 * CHANNELS; channel++) {
        bias[channel] += 0.5F;
    }
    cr_assert_eq(block->forward(call), HX_OK);
    for (size_t place = 0; place < PLACES * CHANNELS; place++) {
        cr_assert_float_eq(kept[place], call->next[place], 2e-3F);
    }
    cr_assert_eq(block->input(call), HX_OK);
    cr_assert_eq(block->weight(call), HX_OK);
    for (uint32_t channel = 0; channel < 3 * CHANNELS; channel++) {
        const bool key = channel >= CHANNELS && channel < 2 * CHANNELS;
        cr_assert_eq(call->grads[0][at + channel] == 0, key);
    }
    for (uint32_t tensor = 0; tensor < BLOCK_TENSORS_COUNT; tensor++) {
        free(call->block[tensor]);
    }
    free(kept);
    bed_end(&bed);
}
