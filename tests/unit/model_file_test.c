// model_file_test - models and configurations on disk: round trips, every type, and what is
// refused.

#include "model/model_file.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const model_conf_t small = {.family = MODEL_GPT2,
                                   .layers = 2,
                                   .heads = 2,
                                   .channels = 8,
                                   .context = 5,
                                   .vocab = 13,
                                   .ln_eps = 1e-5};

static char folder[] = "/tmp/model_file_test.XXXXXX";
static model_t *model;

static void set_up(void)
{
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(model_open(&small, &model, NULL), HX_OK);
}

static void tear_down(void)
{
    char command[128];
    model_destroy(&model);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

TestSuite(model_file, .init = set_up, .fini = tear_down);

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// Values that f16 and bf16 hold exactly: small whole numbers.
static float value_at(uint32_t group, uint64_t element)
{
    return (float)((element * 7 + group * 3) % 255) - 127;
}

static void read_values(void *read_self, uint32_t group, uint64_t first, uint64_t count, float *out)
{
    (void)read_self;
    for (uint64_t index = 0; index < count; index++) {
        out[index] = value_at(group, first + index);
    }
}

static void check_values(model_file_t *file)
{
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const uint64_t size = model_group(model, group)->size;
        float *const values = calloc(size, sizeof *values);
        for (uint64_t first = 0; first < size; first += 1 + size / 3) {
            const uint64_t count = size - first;
            model_file_read_group(file, group, first, count, values);
            for (uint64_t index = 0; index < count; index++) {
                cr_assert_eq(values[index], value_at(group, first + index));
            }
        }
        free(values);
    }
}

// A file made by hand: the model's tensors, some of them changed.
typedef struct {
    const char *prefix;
    safetensors_dtype_t dtype;
    const char *without;  // Left out.
    const char *wider;    // Gets a longer last dimension.
    const char *extra;    // One more, of the shape of wte.
    bool extra_differs;
} made_t;

static void encode(safetensors_dtype_t dtype, float value, uint8_t *to)
{
    const double wide = (double)value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    switch (dtype) {
    case SAFETENSORS_F64:
        memcpy(to, &wide, 8);
        return;
    case SAFETENSORS_F32:
        memcpy(to, &value, 4);
        return;
    case SAFETENSORS_F16:
        // Sign, exponent with another bias, the fraction's first ten bits: exact for these values.
        half = value == 0 ? 0
                          : (uint16_t)((bits >> 16 & 0x8000U) | ((bits >> 23 & 0xffU) - 112) << 10 |
                                       (bits >> 13 & 0x3ffU));
        break;
    default:
        break;
    }
    memcpy(to, &half, 2);
}

static uint32_t list_tensors(const made_t *made, safetensors_tensor_t *list, char (*names)[128])
{
    uint32_t count = 0;
    for (uint32_t index = 0; index < model_tensors_count(model); index++) {
        const model_tensor_t *const tensor = model_tensor(model, index);
        if (made->without && strcmp(made->without, tensor->name) == 0) {
            continue;
        }
        snprintf(names[count], sizeof names[count], "%s%s", made->prefix, tensor->name);
        list[count] = (safetensors_tensor_t){.name = names[count],
                                             .dtype = made->dtype,
                                             .rank = tensor->rank,
                                             .shape = {tensor->dims[0], tensor->dims[1]}};
        if (made->wider && strcmp(made->wider, tensor->name) == 0) {
            list[count].shape[tensor->rank - 1]++;
        }
        count++;
    }
    if (made->extra) {
        list[count] = list[0];
        list[count++].name = made->extra;
    }
    return count;
}

static const char *make(const made_t *made)
{
    safetensors_tensor_t list[64];
    char names[64][128];
    uint8_t *head = NULL;
    size_t size = 0;
    const uint32_t count = list_tensors(made, list, names);
    cr_assert_eq(safetensors_write_head(list, count, NULL, 0, &head, &size, NULL), HX_OK);
    FILE *const file = fopen(path_of("made.safetensors"), "wb");
    cr_assert_eq(fwrite(head, 1, size, file), size);
    free(head);
    for (uint32_t at = 0; at < count; at++) {
        const model_tensor_t *tensor = model_tensor_find(model, list[at].name);
        const bool extra = !tensor;
        tensor = extra ? model_tensor(model, 0) : tensor;
        const uint64_t elements = list[at].size / safetensors_dtype_size(made->dtype);
        for (uint64_t element = 0; element < elements; element++) {
            uint8_t bytes[8];
            const float value = value_at(tensor->group, tensor->offset + element);
            encode(made->dtype, extra && made->extra_differs ? value + 1 : value, bytes);
            fwrite(bytes, 1, safetensors_dtype_size(made->dtype), file);
        }
    }
    cr_assert_eq(fclose(file), 0);
    return path_of("made.safetensors");
}

Test(model_file, gives_back_what_was_written)
{
    model_file_t *file = NULL;
    const char *const path = path_of("model.safetensors");
    cr_assert_eq(model_file_write(path, model, read_values, NULL, NULL), HX_OK);
    cr_assert_eq(model_file_open(path, model, &file, NULL), HX_OK);
    check_values(file);
    cr_assert_str_eq(safetensors_meta(model_file_index(file), "format"), "pt");
    double third = 0;
    model_file_read(file, safetensors_find(model_file_index(file), "wpe.weight"), 3, 1, &third);
    cr_assert_float_eq(third, (double)value_at(1, 3), 0);
    model_file_destroy(&file);
    cr_assert_null(file);
}

Test(model_file, reads_every_float_type_with_and_without_prefix)
{
    for (uint32_t dtype = SAFETENSORS_F64; dtype <= SAFETENSORS_BF16; dtype++) {
        static const char *const prefixes[] = {"", "transformer."};
        for (size_t at = 0; at < HX_COUNT(prefixes); at++) {
            const made_t made = {.prefix = prefixes[at], .dtype = (safetensors_dtype_t)dtype};
            model_file_t *file = NULL;
            cr_assert_eq(model_file_open(make(&made), model, &file, NULL), HX_OK);
            check_values(file);
            model_file_destroy(&file);
        }
    }
}

Test(model_file, reads_the_odd_values_of_f16)
{
    static const struct {
        uint16_t bits;
        float value;
    } odd[] = {{0x0001, 0x1p-24F}, {0x8001, -0x1p-24F}, {0x03ff, 0x1.ff8p-15F}, {0x0400, 0x1p-14F},
               {0x7bff, 65504},    {0x7c00, INFINITY},  {0xfc00, -INFINITY}};
    safetensors_tensor_t tensor = {
        .name = "x", .dtype = SAFETENSORS_F16, .rank = 1, .shape = {HX_COUNT(odd)}};
    uint8_t *head = NULL;
    size_t size = 0;
    model_file_t *opened = NULL;
    cr_assert_eq(safetensors_write_head(&tensor, 1, NULL, 0, &head, &size, NULL), HX_OK);
    FILE *const file = fopen(path_of("odd.safetensors"), "wb");
    fwrite(head, 1, size, file);
    for (size_t at = 0; at < HX_COUNT(odd); at++) {
        fwrite(&odd[at].bits, 1, 2, file);
    }
    fclose(file);
    free(head);
    cr_assert_eq(model_file_map(path_of("odd.safetensors"), &opened, NULL), HX_OK);
    for (size_t at = 0; at < HX_COUNT(odd); at++) {
        double value = 0;
        model_file_read(opened, safetensors_at(model_file_index(opened), 0), at, 1, &value);
        cr_assert(value == (double)odd[at].value, "%04x is %g", odd[at].bits, value);
    }
    model_file_destroy(&opened);
}

static void check_refused(const made_t *made, const char *part)
{
    hx_fault_t fault = {{0}};
    model_file_t *file = NULL;
    const hx_err_t err = model_file_open(make(made), model, &file, &fault);
    cr_assert_neq(err, HX_OK, "accepted, instead of: %s", part);
    cr_assert_null(file);
    cr_assert_not_null(strstr(fault.text, part), "\"%s\" lacks \"%s\"", fault.text, part);
    cr_assert_not_null(strstr(fault.text, "made.safetensors"));
}

Test(model_file, names_what_is_missing_wrong_or_foreign)
{
    check_refused(&(made_t){.prefix = "", .dtype = SAFETENSORS_F32, .without = "h.1.ln_2.bias"},
                  "h.1.ln_2.bias is missing");
    check_refused(&(made_t){.prefix = "", .dtype = SAFETENSORS_F32, .wider = "h.0.mlp.c_fc.weight"},
                  "h.0.mlp.c_fc.weight has the shape (8, 33), but this model needs (8, 32)");
    check_refused(
        &(made_t){.prefix = "", .dtype = SAFETENSORS_F32, .extra = "h.2.attn.c_attn.weight"},
        "h.2.attn.c_attn.weight, which is no tensor of a model of 2 layers");
    check_refused(
        &(made_t){.prefix = "", .dtype = SAFETENSORS_F32, .extra = "transformer.wte.weight"},
        "wte.weight twice");
    check_refused(&(made_t){.prefix = "", .dtype = SAFETENSORS_I32}, "is of type I32");
    check_refused(&(made_t){.prefix = "",
                            .dtype = SAFETENSORS_F32,
                            .extra = "lm_head.weight",
                            .extra_differs = true},
                  "lm_head.weight differs");
}

Test(model_file, passes_over_masks_and_a_tied_copy_of_the_head)
{
    static const char *const extras[] = {"lm_head.weight", "h.0.attn.bias", "h.1.attn.masked_bias"};
    for (size_t at = 0; at < HX_COUNT(extras); at++) {
        const made_t made = {.prefix = "", .dtype = SAFETENSORS_F32, .extra = extras[at]};
        model_file_t *file = NULL;
        cr_assert_eq(model_file_open(make(&made), model, &file, NULL), HX_OK);
        check_values(file);
        model_file_destroy(&file);
    }
}

Test(model_file, refuses_files_that_are_none)
{
    hx_fault_t fault;
    model_file_t *file = NULL;
    cr_assert_eq(model_file_map(path_of("nowhere"), &file, &fault), HX_E_IO);
    cr_assert_not_null(strstr(fault.text, "No such file"));
    cr_assert_eq(model_file_map(folder, &file, &fault), HX_E_IO);
    static const char *const texts[] = {"", "short", "long enough, but by no means a safetensors"};
    for (size_t at = 0; at < HX_COUNT(texts); at++) {
        FILE *const out = fopen(path_of("bad"), "wb");
        fputs(texts[at], out);
        fclose(out);
        cr_assert_eq(model_file_map(path_of("bad"), &file, &fault), HX_E_FORMAT);
        cr_assert_not_null(strstr(fault.text, "/bad: "));
    }
    cr_assert_eq(model_file_write("/nonexistent/x", model, read_values, NULL, &fault), HX_E_IO);
    cr_assert_eq(model_file_write("/dev/full", model, read_values, NULL, &fault), HX_E_NOSPC);
}

Test(model_file, configuration_comes_back)
{
    model_conf_t read = {0};
    const char *const path = path_of("config.json");
    cr_assert_eq(model_file_write_conf(path, &small, NULL), HX_OK);
    cr_assert_eq(model_file_read_conf(path, &read, NULL), HX_OK);
    cr_assert_eq(read.family, small.family);
    cr_assert_eq(read.layers, small.layers);
    cr_assert_eq(read.heads, small.heads);
    cr_assert_eq(read.channels, small.channels);
    cr_assert_eq(read.context, small.context);
    cr_assert_eq(read.vocab, small.vocab);
    cr_assert_float_eq(read.ln_eps, small.ln_eps, 0);
}

static void check_conf(const char *text, hx_err_t err, const char *part)
{
    model_conf_t read = {.layers = 77};
    hx_fault_t fault = {{0}};
    FILE *const file = fopen(path_of("config.json"), "wb");
    fputs(text, file);
    fclose(file);
    cr_assert_eq(model_file_read_conf(path_of("config.json"), &read, &fault), err, "%s", text);
    if (err != HX_OK) {
        cr_assert_not_null(strstr(fault.text, part), "\"%s\" lacks \"%s\"", fault.text, part);
        cr_assert_eq(read.layers, 77, "set although it failed");
    }
}

#define SIZES "\"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, \"vocab_size\": 9"

Test(model_file, configuration_is_checked)
{
    check_conf("{" SIZES ", \"n_positions\": 4}", HX_OK, "");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"n_inner\": null}", HX_OK, "");
    check_conf("{" SIZES "}", HX_E_FORMAT, "n_ctx is missing");
    check_conf("{" SIZES ", \"n_ctx\": 0}", HX_E_FORMAT, "n_ctx must be a whole number");
    check_conf("{" SIZES ", \"n_ctx\": \"4\"}", HX_E_FORMAT, "n_ctx must be a whole number");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"n_ctx\": 4}", HX_E_FORMAT, "duplicate");
    check_conf("[]", HX_E_FORMAT, "not a JSON object");
    check_conf("", HX_E_FORMAT, "line");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"model_type\": \"llama\"}", HX_E_UNSUPPORTED,
               "model_type");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"activation_function\": \"relu\"}", HX_E_UNSUPPORTED,
               "activation_function");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"tie_word_embeddings\": false}", HX_E_UNSUPPORTED,
               "tied");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"n_inner\": 8}", HX_E_UNSUPPORTED, "n_inner");
    check_conf("{" SIZES ", \"n_ctx\": 4, \"layer_norm_epsilon\": -1}", HX_E_ARG, "epsilon");
    check_conf("{\"n_layer\": 1, \"n_head\": 3, \"n_embd\": 8, \"vocab_size\": 9, \"n_ctx\": 4}",
               HX_E_ARG, "not a multiple");
}
