// model_gpt2_test - names, order and shapes of GPT-2's tensors, as Hugging Face has them.

#include "model/model_gpt2.h"

#include <criterion/criterion.h>
#include <string.h>

Test(model_gpt2, has_the_names_and_shapes_of_hugging_face)
{
    static const struct {
        const char *name;
        uint32_t rank;
        uint64_t dims[2];
    } known[] = {
        {"wte.weight", 2, {50, 8}},
        {"wpe.weight", 2, {6, 8}},
        {"h.0.ln_1.weight", 1, {8, 1}},
        {"h.0.ln_1.bias", 1, {8, 1}},
        {"h.0.attn.c_attn.weight", 2, {8, 24}},
        {"h.0.attn.c_attn.bias", 1, {24, 1}},
        {"h.0.attn.c_proj.weight", 2, {8, 8}},
        {"h.0.attn.c_proj.bias", 1, {8, 1}},
        {"h.0.ln_2.weight", 1, {8, 1}},
        {"h.0.ln_2.bias", 1, {8, 1}},
        {"h.0.mlp.c_fc.weight", 2, {8, 32}},
        {"h.0.mlp.c_fc.bias", 1, {32, 1}},
        {"h.0.mlp.c_proj.weight", 2, {32, 8}},
        {"h.0.mlp.c_proj.bias", 1, {8, 1}},
        {"ln_f.weight", 1, {8, 1}},
        {"ln_f.bias", 1, {8, 1}},
    };
    const model_conf_t conf = {.family = MODEL_GPT2,
                               .layers = 1,
                               .heads = 2,
                               .channels = 8,
                               .context = 6,
                               .vocab = 50,
                               .ln_eps = 1e-5};
    model_tensor_t tensors[HX_COUNT(known)];
    memset(tensors, 0, sizeof tensors);
    model_group_t groups[4];
    memset(groups, 0, sizeof groups);
    model_layer_t layers[3];
    memset(layers, 0, sizeof layers);
    cr_assert_eq(model_gpt2_tensors_count(&conf), HX_COUNT(known));
    cr_assert_eq(model_gpt2_groups_count(&conf), HX_COUNT(groups));
    model_gpt2_describe(&conf, &(model_parts_t){tensors, groups, layers});
    for (size_t at = 0; at < HX_COUNT(known); at++) {
        cr_assert_str_eq(tensors[at].name, known[at].name);
        cr_assert_eq(tensors[at].rank, known[at].rank);
        cr_assert_eq(tensors[at].dims[0], known[at].dims[0]);
        cr_assert_eq(tensors[at].dims[1], known[at].dims[1]);
    }
    cr_assert_eq(groups[2].tensors_first + GPT2_FC_WEIGHT, 10);
}
