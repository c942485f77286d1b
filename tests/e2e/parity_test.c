// The real path has the numbers of one process: a run with one worker under bsp, started from a
// model file, has the losses and the final weights of the model code alone on the same rows (which
// golden-check compares with PyTorch).

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/model_file.h"
#include "model/model_run.h"
#include "tests/support/run.h"
#include "worker/data.h"
#include "worker/order.h"

#define STEPS 10
#define ROWS 16
#define CONTEXT 32

static model_conf_t shape(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
    conf.heads = 2;
    conf.channels = 32;
    conf.context = CONTEXT;
    conf.vocab = 256;
    return conf;
}

// The losses of STEPS steps of one process that starts from `seed` and goes through the text in the
// run's order.
static void one_process(const char *text, uint64_t seed, double *losses)
{
    const model_conf_t conf = shape();
    model_t *model = NULL;
    data_t *data = NULL;
    model_run_t *run = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(model_open(&conf, &model, &fault), HX_OK);
    const data_conf_t where = {.path = text, .valid = 0.05, .context = CONTEXT, .vocab = 256};
    cr_assert_eq(data_open(&where, &data, &fault), HX_OK, "%s", fault.text);
    hx_backend_t *backend = hx_backend_cpu_new(1);
    cr_assert_eq(
        model_run_open(&(model_run_conf_t){.backend = backend, .model = model, .rows = ROWS}, &run),
        HX_OK);
    cr_assert_eq(model_run_init(run, seed), HX_OK);
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    int32_t tokens[ROWS * CONTEXT], targets[ROWS * CONTEXT];
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t row = 0; row < ROWS; row++) {
            const uint64_t at = order_row(seed, step * ROWS + row, data_rows(data));
            cr_assert_eq(
                data_read(data, false, at, tokens + row * CONTEXT, targets + row * CONTEXT, &fault),
                HX_OK);
        }
        cr_assert_eq(model_run_gradient(run, tokens, targets, ROWS, &losses[step]), HX_OK);
        cr_assert_eq(
            model_run_update(
                run, &optim,
                &(optim_step_t){.lr = 1e-3, .scale = 1, .gradient_scale = 1, .step = step + 1}),
            HX_OK);
    }
    model_run_destroy(&run);
    hx_backend_destroy(&backend);
    data_destroy(&data);
    model_destroy(&model);
}

static const char *const plain[] = {
    "train.lr=0.001",         "train.warmup=0",    "train.decay=none",  "train.clip=none",
    "train.weight_decay=0.1", "train.tokens=5120", "plan.microbatch=8", NULL};

Test(parity, a_run_has_the_losses_of_one_process, .timeout = 200)
{
    run_t run;
    run_begin(&run, "parity", NULL);
    cr_assert_eq(run_launch(&run, plain, 120), 0);
    double expected[STEPS], losses[64];
    char text[512];
    snprintf(text, sizeof text, "%s/text.txt", run.dir);
    one_process(text, 7, expected);
    cr_assert_eq(run_losses(&run, losses, 64), STEPS);
    for (int step = 0; step < STEPS; step++) {
        cr_expect_lt(fabs(losses[step] - expected[step]) / expected[step], 1e-5,
                     "step %d: %.9f, one process %.9f", step + 1, losses[step], expected[step]);
    }
    run_end(&run);
}

Test(parity, a_run_starts_from_a_model_file, .timeout = 200)
{
    run_t first, second;
    run_begin(&first, "parity", NULL);
    run_begin(&second, "parity", NULL);
    cr_assert_eq(run_launch(&first, plain, 120), 0);
    char set[512];
    snprintf(set, sizeof set, "model.init=%s/runs/test/checkpoint-10", first.dir);
    const char *sets[16] = {set};
    for (int at = 0; plain[at]; at++) {
        sets[at + 1] = plain[at];
    }
    cr_assert_eq(run_launch(&second, sets, 120), 0);
    json_t *const before = run_summary(&first), *const after = run_summary(&second);
    const double last = json_number_value(json_object_get(before, "valid_loss"));
    const double start = json_number_value(json_object_get(after, "valid_loss_first"));
    cr_expect_lt(fabs(start - last), 1e-6 * last, "it starts where the other ended: %.9f, %.9f",
                 start, last);
    cr_expect_eq(json_integer_value(json_object_get(after, "version")), STEPS,
                 "it is a run of its own");
    json_decref(before);
    json_decref(after);
    run_end(&first);
    run_end(&second);
}
