// optim_test - steps against the formulas in double, and the learning rate's course.

#include "tensor/optim.h"
#include "tests/support/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 50021  // Enough for several threads, and no multiple of anything.
#define STEPS 6
#define TOLERANCE 2e-6

// A block in double, and its gradient of this step.
typedef struct {
    double w[COUNT];
    double m[COUNT];
    double v[COUNT];
    float g[COUNT];
} model_t;

static void step_in_double(const optim_conf_t *conf, const optim_step_t *step, bool decay,
                           model_t *model)
{
    const double rate = step->lr * step->scale;
    const double wd = decay ? conf->weight_decay : 0;
    for (size_t e = 0; e < COUNT; e++) {
        const double g = step->gradient_scale * (double)model->g[e];
        double move = 0;
        if (conf->kind == OPTIM_ADAMW) {
            model->m[e] = conf->beta1 * model->m[e] + (1 - conf->beta1) * g;
            model->v[e] = conf->beta2 * model->v[e] + (1 - conf->beta2) * g * g;
            const double m = model->m[e] / (1 - pow(conf->beta1, (double)step->step));
            const double v = model->v[e] / (1 - pow(conf->beta2, (double)step->step));
            move = m / (sqrt(v) + conf->eps);
        } else {
            model->m[e] = conf->momentum * model->m[e] + g;
            move = conf->nesterov ? g + conf->momentum * model->m[e] : model->m[e];
        }
        model->w[e] -= rate * (move + wd * model->w[e]);
    }
}

// Several steps from the same start on the device and in double; `apart`: outputs in other memory.
static void steps_hold(hx_backend_t *backend, hx_rng_t *rng, const optim_conf_t *conf, bool decay,
                       bool apart)
{
    const size_t size = COUNT * sizeof(float);
    model_t *const model = hx_new(1, sizeof *model);
    float *const got = hx_new(COUNT, sizeof *got);
    device_random(rng, got, COUNT);
    for (size_t e = 0; e < COUNT; e++) {
        model->w[e] = (double)got[e];
    }
    float *memory[2][3];
    for (size_t kind = 0; kind < 3; kind++) {
        memory[0][kind] = device_put(backend, kind == 0 ? got : NULL, size);
        memory[1][kind] = apart ? device_put(backend, NULL, size) : memory[0][kind];
        if (kind > 0) {
            cr_assert_eq(backend->ops->fill(backend, 0, HX_F32, memory[0][kind], 0, COUNT), HX_OK);
        }
    }
    float *const g = device_put(backend, NULL, size);
    for (uint64_t number = 1; number <= STEPS; number++) {
        const size_t from = (number - 1) % 2;
        const optim_step_t step = {
            .lr = 1e-2, .scale = number == 3 ? 0.7 : 1.0, .gradient_scale = 0.5, .step = number};
        device_random(rng, model->g, COUNT);
        cr_assert_eq(backend->ops->upload(backend, 0, g, model->g, size), HX_OK);
        const optim_block_t block = {.count = COUNT,
                                     .decay = decay,
                                     .w = memory[from][0],
                                     .m = memory[from][1],
                                     .v = memory[from][2],
                                     .g = g,
                                     .w_out = memory[1 - from][0],
                                     .m_out = memory[1 - from][1],
                                     .v_out = memory[1 - from][2]};
        cr_assert_eq(optim_apply(backend, 0, conf, &step, &block), HX_OK);
        step_in_double(conf, &step, decay, model);
    }
    const double *const wanted[] = {model->w, model->m, model->v};
    const size_t arrays = 1 + optim_moments_count(conf);
    for (size_t kind = 0; kind < 3; kind++) {
        device_get(backend, got, memory[STEPS % 2][kind], size);
        if (kind < arrays) {
            cr_assert_lt(device_distance(got, wanted[kind], COUNT), TOLERANCE, "array %zu", kind);
        }
        device_drop(backend, memory[0][kind]);
        if (apart) {
            device_drop(backend, memory[1][kind]);
        }
    }
    device_drop(backend, g);
    free(got);
    free(model);
}

static void adamw_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    optim_conf_t conf = optim_conf_default(OPTIM_ADAMW);
    steps_hold(backend, rng, &conf, true, true);
    steps_hold(backend, rng, &conf, false, false);
    conf.beta2 = 0.999;  // 1 - beta2 must not be taken in float.
    steps_hold(backend, rng, &conf, true, false);
}

Test(optim, adamw_equals_its_formula)
{
    device_each("adamw", adamw_holds);
}

static void sgd_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    optim_conf_t conf = optim_conf_default(OPTIM_SGD);
    conf.weight_decay = 0.1;
    steps_hold(backend, rng, &conf, true, true);
    conf.nesterov = true;
    steps_hold(backend, rng, &conf, true, false);
    conf.momentum = 0;
    steps_hold(backend, rng, &conf, false, true);
}

Test(optim, sgd_equals_its_formula_with_and_without_momentum)
{
    device_each("sgd", sgd_holds);
}

static void scale_spares_moments(hx_backend_t *backend, hx_rng_t *rng)
{
    float w[8];
    float results[2][3][8];
    const optim_conf_t conf = optim_conf_default(OPTIM_ADAMW);
    device_random(rng, w, HX_COUNT(w));
    for (size_t at = 0; at < 2; at++) {
        float *arrays[3];
        for (size_t kind = 0; kind < 3; kind++) {
            arrays[kind] = device_put(backend, w, sizeof w);
            backend->ops->fill(backend, 0, HX_F32, arrays[kind], kind == 0 ? 2.0 : 0.0, 8);
        }
        float *const g = device_put(backend, w, sizeof w);
        const optim_step_t step = {
            .lr = 0.1, .scale = at == 0 ? 1.0 : 0.0, .gradient_scale = 1, .step = 1};
        const optim_block_t block = {8, true,      arrays[0], arrays[1], arrays[2],
                                     g, arrays[0], arrays[1], arrays[2]};
        cr_assert_eq(optim_apply(backend, 0, &conf, &step, &block), HX_OK);
        for (size_t kind = 0; kind < 3; kind++) {
            device_take(backend, results[at][kind], arrays[kind], 8);
        }
        device_drop(backend, g);
    }
    for (size_t e = 0; e < 8; e++) {
        cr_assert_neq(results[0][0][e], 2.0f);
        cr_assert_eq(results[1][0][e], 2.0f, "a scale of 0 moves nothing");
    }
    cr_assert_arr_eq(results[0][1], results[1][1], sizeof w);
    cr_assert_arr_eq(results[0][2], results[1][2], sizeof w);
}

Test(optim, scale_multiplies_the_step_and_never_the_moments)
{
    device_each("scale", scale_spares_moments);
}

Test(optim, state_is_as_large_as_the_moments)
{
    optim_conf_t conf = optim_conf_default(OPTIM_ADAMW);
    cr_assert_eq(optim_state_size(&conf, 10), 80);
    conf.kind = OPTIM_SGD;
    cr_assert_eq(optim_state_size(&conf, 10), 40);
    conf.momentum = 0;
    cr_assert_eq(optim_state_size(&conf, 10), 0);
}

Test(optim, an_empty_block_is_no_work)
{
    hx_backend_t *backend = hx_backend_cpu_new(1);
    optim_conf_t conf = optim_conf_default(OPTIM_SGD);
    conf.momentum = 0;
    const optim_step_t step = {.lr = 1, .scale = 1, .gradient_scale = 1, .step = 1};
    cr_assert_eq(optim_apply(backend, 0, &conf, &step, &(optim_block_t){0}), HX_OK);
    hx_backend_destroy(&backend);
}

static void refuse(optim_conf_t conf, const char *word)
{
    hx_fault_t fault = {""};
    cr_assert_eq(optim_conf_check(&conf, &fault), HX_E_ARG, "%s", word);
    cr_assert_not_null(strstr(fault.text, word), "%s in: %s", word, fault.text);
    cr_assert_eq(optim_conf_check(&conf, NULL), HX_E_ARG);
}

Test(optim, unusable_values_are_named)
{
    const optim_conf_t adamw = optim_conf_default(OPTIM_ADAMW);
    const optim_conf_t sgd = optim_conf_default(OPTIM_SGD);
    cr_assert_eq(optim_conf_check(&adamw, NULL), HX_OK);
    cr_assert_eq(optim_conf_check(&sgd, NULL), HX_OK);
    const double bad[] = {1.0, -0.1, NAN};
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        optim_conf_t conf = adamw;
        conf.beta1 = bad[at];
        refuse(conf, "beta1");
        conf = adamw;
        conf.beta2 = bad[at];
        refuse(conf, "beta2");
        conf = sgd;
        conf.momentum = bad[at];
        refuse(conf, "momentum");
    }
    optim_conf_t conf = adamw;
    conf.eps = 0;
    refuse(conf, "eps");
    conf = sgd;
    conf.weight_decay = -1;
    refuse(conf, "weight_decay");
    conf.kind = (optim_kind_t)9;
    refuse(conf, "kind");
}

Test(optim, learning_rate_warms_up_and_falls_along_a_cosine)
{
    const optim_schedule_t schedule = {.lr = 2,
                                       .lr_final_ratio = 0.1,
                                       .warmup_tokens = 100,
                                       .total_tokens = 1100,
                                       .decay = OPTIM_DECAY_COSINE};
    cr_assert_eq(optim_lr(&schedule, 0), 0.0);
    cr_assert_float_eq(optim_lr(&schedule, 50), 1.0, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 100), 2.0, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 600), 1.1, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 350), 2 * (0.1 + 0.9 * (0.5 + sqrt(0.5) / 2)), 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 1100), 0.2, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, UINT64_MAX), 0.2, 1e-12);
    for (uint64_t tokens = 100; tokens < 1200; tokens++) {
        cr_assert_leq(optim_lr(&schedule, tokens + 1), optim_lr(&schedule, tokens));
    }
}

Test(optim, learning_rate_may_fall_in_a_line_or_stay)
{
    optim_schedule_t schedule = {.lr = 1, .total_tokens = 1000, .decay = OPTIM_DECAY_LINEAR};
    cr_assert_float_eq(optim_lr(&schedule, 0), 1, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 250), 0.75, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 5000), 0, 1e-12);
    schedule.decay = OPTIM_DECAY_CONSTANT;
    cr_assert_eq(optim_lr(&schedule, 5000), 1.0);
    schedule.decay = OPTIM_DECAY_COSINE;
    schedule.total_tokens = 0;
    cr_assert_eq(optim_lr(&schedule, 5000), 1.0, "without an end there is no decay");
    schedule.total_tokens = 10;
    schedule.warmup_tokens = 20;
    schedule.lr_final_ratio = 0.5;
    cr_assert_float_eq(optim_lr(&schedule, 19), 0.95, 1e-12);
    cr_assert_float_eq(optim_lr(&schedule, 20), 0.5, 1e-12, "a warm-up beyond the end");
}
