// reference - see the header.

#include "tests/support/reference.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_file.h"
#include "model/model_run.h"
#include "worker/order.h"

#define CONTEXT 32
#define MICROBATCH 4

static model_t *open_model(const reference_conf_t *conf)
{
    model_conf_t shape = model_conf_default();
    shape.layers = conf->layers;
    shape.heads = 2;
    shape.channels = 32;
    shape.context = CONTEXT;
    shape.vocab = conf->vocab;
    model_t *model = NULL;
    cr_assert_eq(model_open(&shape, &model, NULL), HX_OK);
    return model;
}

static data_t *open_data(const reference_conf_t *conf)
{
    hx_fault_t fault = {{0}};
    data_t *data = NULL;
    const data_conf_t where = {
        .path = conf->data, .valid = 0.05, .context = CONTEXT, .vocab = conf->vocab};
    cr_assert_eq(data_open(&where, &data, &fault), HX_OK, "%s", fault.text);
    return data;
}

static void read_batch(const reference_conf_t *conf, const data_t *data, uint64_t step,
                       int32_t *tokens, int32_t *targets)
{
    for (uint64_t row = 0; row < conf->rows; row++) {
        const uint64_t at = order_row(conf->seed, step * conf->rows + row, data_rows(data));
        cr_assert_eq(
            data_read(data, false, at, tokens + row * CONTEXT, targets + row * CONTEXT, NULL),
            HX_OK);
    }
}

float *reference_run(const reference_conf_t *conf, double *losses, double *norms)
{
    model_t *model = open_model(conf);
    data_t *data = open_data(conf);
    hx_backend_t *backend = hx_backend_cpu_new(1);
    model_run_t *run = NULL;
    const model_run_conf_t how = {.backend = backend, .model = model, .rows = MICROBATCH};
    cr_assert_eq(model_run_open(&how, &run), HX_OK);
    cr_assert_eq(model_run_init(run, conf->seed), HX_OK);
    optim_conf_t optim = optim_conf_default(OPTIM_SGD);
    optim.momentum = 0.9;
    optim.weight_decay = 0;
    int32_t *const tokens = hx_new((size_t)conf->rows * CONTEXT, sizeof *tokens);
    int32_t *const targets = hx_new((size_t)conf->rows * CONTEXT, sizeof *targets);
    for (uint64_t step = 0; step < conf->steps; step++) {
        double loss = 0, norm = 0;
        const optim_step_t with = {
            .lr = REFERENCE_LR, .scale = 1, .gradient_scale = 1, .step = step + 1};
        read_batch(conf, data, step, tokens, targets);
        cr_assert_eq(model_run_gradient(run, tokens, targets, conf->rows, &loss), HX_OK);
        cr_assert_eq(model_run_norm(run, &norm), HX_OK);
        cr_assert_eq(model_run_update(run, &optim, &with), HX_OK);
        if (losses) {
            losses[step] = loss;
        }
        if (norms) {
            norms[step] = norm;
        }
    }
    float *const params = hx_new(model_params_count(model), sizeof *params);
    uint64_t at = 0;
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const uint64_t size = model_group(model, group)->size;
        memcpy(params + at, model_run_params(run, group), size * sizeof *params);
        at += size;
    }
    free(tokens);
    free(targets);
    model_run_destroy(&run);
    hx_backend_destroy(&backend);
    data_destroy(&data);
    model_destroy(&model);
    return params;
}

static model_file_t *open_file(run_t *run, const reference_conf_t *conf, const model_t *model)
{
    char path[512];
    hx_fault_t fault = {{0}};
    model_file_t *file = NULL;
    snprintf(path, sizeof path, "%s/runs/test/checkpoint-%" PRIu32 "/model.safetensors", run->dir,
             conf->steps);
    cr_assert_eq(model_file_open(path, model, &file, &fault), HX_OK, "%s", fault.text);
    return file;
}

double reference_distance(run_t *run, const reference_conf_t *conf, const float *params)
{
    model_t *model = open_model(conf);
    model_file_t *file = open_file(run, conf, model);
    double largest = 0;
    uint64_t at = 0;
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        const uint64_t size = model_group(model, group)->size;
        float *const got = hx_new(size, sizeof *got);
        double apart = 0, whole = 0;
        model_file_read_group(file, group, 0, size, got);
        for (uint64_t element = 0; element < size; element++) {
            const double wanted = params[at + element];
            const double error = got[element] - wanted;
            apart += error * error;
            whole += wanted * wanted;
        }
        const double distance = sqrt(apart / whole);
        largest = distance <= largest ? largest : distance;  // NaN stays.
        at += size;
        free(got);
    }
    model_file_destroy(&file);
    model_destroy(&model);
    return largest;
}

uint64_t reference_elements(run_t *run, const reference_conf_t *conf)
{
    model_t *model = open_model(conf);
    model_file_t *file = open_file(run, conf, model);
    const safetensors_t *const index = model_file_index(file);
    uint64_t count = 0;
    for (size_t at = 0; at < safetensors_count(index); at++) {
        count += safetensors_at(index, at)->size / sizeof(float);
    }
    model_file_destroy(&file);
    model_destroy(&model);
    return count;
}
