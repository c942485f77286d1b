// model_run_test - a whole model learns, in every way of running it, and fails cleanly without
// memory.

#include "model/model_run.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 6u

static const model_conf_t small = {.family = MODEL_GPT2,
                                   .layers = 2,
                                   .heads = 2,
                                   .channels = 16,
                                   .context = 8,
                                   .vocab = 29,
                                   .ln_eps = 1e-5};

typedef struct {
    model_t *model;
    hx_backend_t *backend;
    int32_t tokens[ROWS * 8];
    int32_t targets[ROWS * 8];
} bed_t;

// Rows that count upwards, so that there is something to learn.
static bed_t bed_new(void)
{
    bed_t bed = {.backend = hx_backend_cpu_new(1)};
    cr_assert_eq(model_open(&small, &bed.model, NULL), HX_OK);
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t at = 0; at < 8; at++) {
            bed.tokens[row * 8 + at] = (int32_t)((row * 5 + at) % small.vocab);
            bed.targets[row * 8 + at] = (int32_t)((row * 5 + at + 1) % small.vocab);
        }
    }
    return bed;
}

static void bed_end(bed_t *bed)
{
    model_destroy(&bed->model);
    hx_backend_destroy(&bed->backend);
}

static model_run_t *open_run(const bed_t *bed, const model_run_conf_t *how)
{
    model_run_t *run = NULL;
    model_run_conf_t conf = *how;
    conf.backend = bed->backend;
    conf.model = bed->model;
    cr_assert_eq(model_run_open(&conf, &run), HX_OK);
    cr_assert_eq(model_run_init(run, 5), HX_OK);
    return run;
}

static double train(const bed_t *bed, model_run_t *run, uint32_t steps, optim_kind_t kind)
{
    const optim_conf_t conf = optim_conf_default(kind);
    double loss = 0;
    for (uint32_t step = 1; step <= steps; step++) {
        const optim_step_t update = {
            .lr = kind == OPTIM_SGD ? 0.3 : 0.01, .scale = 1, .gradient_scale = 1, .step = step};
        cr_assert_eq(model_run_gradient(run, bed->tokens, bed->targets, ROWS, &loss), HX_OK);
        cr_assert_eq(model_run_update(run, &conf, &update), HX_OK);
    }
    return loss;
}

Test(model_run, learns_to_count)
{
    bed_t bed = bed_new();
    static const optim_kind_t kinds[] = {OPTIM_ADAMW, OPTIM_SGD};
    for (size_t at = 0; at < HX_COUNT(kinds); at++) {
        model_run_t *run = open_run(&bed, &(model_run_conf_t){.rows = 4});
        const double first = train(&bed, run, 1, kinds[at]);
        cr_assert_float_eq(first, log(small.vocab), 0.1, "an untrained model knows nothing");
        cr_assert_lt(train(&bed, run, 150, kinds[at]), 0.4 * first);
        model_run_destroy(&run);
        cr_assert_null(run);
    }
    bed_end(&bed);
}

Test(model_run, of_any_microbatch_ends_at_the_same_loss)
{
    bed_t bed = bed_new();
    model_run_t *run = open_run(&bed, &(model_run_conf_t){.rows = ROWS});
    const double wanted = train(&bed, run, 10, OPTIM_ADAMW);
    model_run_destroy(&run);
    for (uint32_t rows = 1; rows < ROWS; rows++) {
        run = open_run(&bed, &(model_run_conf_t){.rows = rows, .recompute = rows % 2 > 0});
        cr_assert_float_eq(train(&bed, run, 10, OPTIM_ADAMW), wanted, 1e-4 * wanted);
        model_run_destroy(&run);
    }
    bed_end(&bed);
}

Test(model_run, inference_agrees_with_training)
{
    bed_t bed = bed_new();
    model_run_t *run = open_run(&bed, &(model_run_conf_t){.rows = 4});
    model_run_t *other = open_run(&bed, &(model_run_conf_t){.rows = 4, .inference = true});
    double loss = 0;
    double same = 0;
    cr_assert_eq(model_run_gradient(run, bed.tokens, bed.targets, ROWS, &loss), HX_OK);
    cr_assert_eq(model_run_loss(other, bed.tokens, bed.targets, ROWS, &same), HX_OK);
    cr_assert_float_eq(loss, same, 1e-6 * loss);
    float logits[29];
    double total = 0;
    cr_assert_eq(model_run_logits(other, bed.tokens, 3, 2, logits), HX_OK);
    for (uint32_t token = 0; token < small.vocab; token++) {
        total += exp((double)logits[token]);
    }
    cr_assert_float_eq(log(total), log(small.vocab), 0.1);
    model_run_destroy(&run);
    model_run_destroy(&other);
    bed_end(&bed);
}

Test(model_run, norm_is_that_of_all_gradients)
{
    bed_t bed = bed_new();
    model_run_t *run = open_run(&bed, &(model_run_conf_t){.rows = ROWS});
    double loss = 0;
    double norm = 0;
    double sum = 0;
    cr_assert_eq(model_run_gradient(run, bed.tokens, bed.targets, ROWS, &loss), HX_OK);
    cr_assert_eq(model_run_norm(run, &norm), HX_OK);
    for (uint32_t group = 0; group < model_groups_count(bed.model); group++) {
        const float *const grads = model_run_grads(run, group);
        for (uint64_t at = 0; at < model_group(bed.model, group)->size; at++) {
            sum += (double)grads[at] * (double)grads[at];
        }
    }
    cr_assert_float_eq(norm, sqrt(sum), 1e-9 * norm);
    cr_assert_gt(norm, 0);
    model_run_destroy(&run);
    bed_end(&bed);
}

// A backend whose n-th reservation fails.
static uint32_t reservations_left;
static const hx_backend_ops_t *whole;

static hx_err_t scarce_alloc(hx_backend_t *self, size_t size, void **memory_p)
{
    if (reservations_left == 0) {
        return HX_E_NOMEM;
    }
    reservations_left--;
    return whole->alloc(self, size, memory_p);
}

Test(model_run, without_memory_gives_everything_back)
{
    bed_t bed = bed_new();
    whole = bed.backend->ops;
    hx_backend_ops_t scarce = *whole;
    scarce.alloc = scarce_alloc;
    bed.backend->ops = &scarce;
    for (uint32_t most = 0; most < 3; most++) {
        const model_run_conf_t conf = {.backend = bed.backend, .model = bed.model, .rows = 1};
        model_run_t *run = NULL;
        reservations_left = most;
        cr_assert_eq(model_run_open(&conf, &run), HX_E_NOMEM);
        cr_assert_null(run);
    }
    bed.backend->ops = whole;
    bed_end(&bed);
}
