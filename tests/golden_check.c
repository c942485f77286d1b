// golden_check - compares the model code with a reference folder: logits and gradients of the first
// step, the loss of each step, the parameters after the last.
//
// A folder holds config.json, model.safetensors and expected.safetensors; golden/make_golden.py
// makes some and says what they hold.

#include "model/model_file.h"
#include "model/model_run.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOUND_LOGITS 1e-5
#define BOUND_GRADIENT 1e-5
#define BOUND_LOSS 1e-5
#define BOUND_AFTER 1e-4

static const char help[] =
    "golden-check - compare the model code with a reference\n"
    "\n"
    "usage: golden-check [options] DIR\n"
    "\n"
    "DIR holds config.json, model.safetensors (the start) and expected.safetensors (tokens, "
    "logits,\n"
    "grad.*, losses, after.*). Prints a line for each quantity: its relative error and its bound.\n"
    "\n"
    "  --threads N   CPU threads (default: as many as there are)\n"
    "  --recompute   make activations again in the backward\n"
    "  --rows N      rows of a microbatch (default: all)\n"
    "  -h, --help    this text\n"
    "      --version the version\n"
    "\n"
    "status: 0 all within bounds, 1 some not, 2 usage or an unusable folder\n";

typedef struct {
    int threads;
    bool recompute;
    uint32_t rows;
    const char *folder;
} options_t;

typedef struct {
    options_t options;
    model_t *model;
    model_file_t *start;
    model_file_t *expected;
    hx_backend_t *backend;
    optim_conf_t optim;
    double lr;
    uint32_t steps;
    uint32_t rows;
    int32_t *inputs;   // (steps, rows, context)
    int32_t *targets;  // likewise
    double *losses;    // (steps), expected
    uint32_t failed;
} check_t;

static const safetensors_tensor_t *find(const check_t *check, const char *prefix, const char *name)
{
    char full[MODEL_NAME_MAX + 16];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return safetensors_find(model_file_index(check->expected), full);
}

// The tensor must be there, of float type and of `rank` dimensions `dims`.
static hx_err_t expect(const check_t *check, const char *prefix, const char *name, uint32_t rank,
                       const uint64_t *dims, hx_fault_t *fault)
{
    const safetensors_tensor_t *const tensor = find(check, prefix, name);
    if (!tensor) {
        return hx_fault(fault, HX_E_FORMAT, "expected.safetensors: %s%s is missing", prefix, name);
    }
    bool same = tensor->rank == rank && tensor->dtype <= SAFETENSORS_BF16;
    for (uint32_t dim = 0; dim < rank && same; dim++) {
        same = tensor->shape[dim] == dims[dim];
    }
    if (!same) {
        return hx_fault(fault, HX_E_FORMAT,
                        "expected.safetensors: %s%s has not the shape or type that config.json "
                        "and tokens ask for",
                        prefix, name);
    }
    return HX_OK;
}

static hx_err_t read_number(const check_t *check, const char *key, double *value, hx_fault_t *fault)
{
    const char *const text = safetensors_meta(model_file_index(check->expected), key);
    char *end = NULL;
    const double number = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end != '\0' || !isfinite(number) || number < 0) {
        return hx_fault(fault, HX_E_FORMAT,
                        "expected.safetensors: the metadata has no usable number \"%s\"", key);
    }
    *value = number;
    return HX_OK;
}

static hx_err_t read_optimizer(check_t *check, hx_fault_t *fault)
{
    const char *const clip = safetensors_meta(model_file_index(check->expected), "clip");
    check->optim = optim_conf_default(OPTIM_ADAMW);
    HX_TRY(read_number(check, "lr", &check->lr, fault));
    HX_TRY(read_number(check, "beta1", &check->optim.beta1, fault));
    HX_TRY(read_number(check, "beta2", &check->optim.beta2, fault));
    HX_TRY(read_number(check, "eps", &check->optim.eps, fault));
    HX_TRY(read_number(check, "weight_decay", &check->optim.weight_decay, fault));
    if (clip && strcmp(clip, "none") != 0) {
        return hx_fault(fault, HX_E_UNSUPPORTED,
                        "expected.safetensors: made with clip %.40s; only none is compared", clip);
    }
    return optim_conf_check(&check->optim, fault);
}

static hx_err_t read_tokens(check_t *check, hx_fault_t *fault)
{
    const model_conf_t *const conf = model_conf(check->model);
    const safetensors_tensor_t *const tensor = find(check, "", "tokens");
    if (!tensor || tensor->rank != 3 || tensor->shape[2] != (uint64_t)conf->context + 1 ||
        tensor->shape[0] < 1 || tensor->shape[0] > 10000 || tensor->shape[1] < 1 ||
        tensor->shape[1] > 10000) {
        return hx_fault(
            fault, HX_E_FORMAT,
            "expected.safetensors: tokens must be there, of shape (steps, rows, %" PRIu32
            "): context + 1",
            conf->context + 1);
    }
    check->steps = (uint32_t)tensor->shape[0];
    check->rows = (uint32_t)tensor->shape[1];
    const size_t windows = (size_t)check->steps * check->rows;
    check->inputs = hx_new(windows * conf->context, sizeof *check->inputs);
    check->targets = hx_new(windows * conf->context, sizeof *check->targets);
    double *const window = hx_new(conf->context + 1, sizeof *window);
    hx_err_t err = HX_OK;
    for (size_t row = 0; row < windows && err == HX_OK; row++) {
        model_file_read(check->expected, tensor, row * (conf->context + 1), conf->context + 1,
                        window);
        for (size_t at = 0; at <= conf->context && err == HX_OK; at++) {
            if (!(window[at] >= 0 && window[at] < conf->vocab)) {
                err =
                    hx_fault(fault, HX_E_FORMAT,
                             "expected.safetensors: token %g is outside the vocabulary of %" PRIu32,
                             window[at], conf->vocab);
                break;
            }
            if (at < conf->context) {
                check->inputs[row * conf->context + at] = (int32_t)window[at];
            }
            if (at > 0) {
                check->targets[row * conf->context + at - 1] = (int32_t)window[at];
            }
        }
    }
    free(window);
    return err;
}

static hx_err_t check_shapes(check_t *check, hx_fault_t *fault)
{
    const model_conf_t *const conf = model_conf(check->model);
    const uint64_t steps = check->steps;
    HX_TRY(expect(check, "", "logits", 3,
                  (const uint64_t[]){check->rows, conf->context, conf->vocab}, fault));
    HX_TRY(expect(check, "", "losses", 1, &steps, fault));
    for (uint32_t index = 0; index < model_tensors_count(check->model); index++) {
        const model_tensor_t *const tensor = model_tensor(check->model, index);
        HX_TRY(expect(check, "grad.", tensor->name, tensor->rank, tensor->dims, fault));
        HX_TRY(expect(check, "after.", tensor->name, tensor->rank, tensor->dims, fault));
    }
    check->losses = hx_new(check->steps, sizeof *check->losses);
    model_file_read(check->expected, find(check, "", "losses"), 0, check->steps, check->losses);
    return HX_OK;
}

static hx_err_t load(check_t *check, hx_fault_t *fault)
{
    char path[4096];
    model_conf_t conf;
    snprintf(path, sizeof path, "%s/config.json", check->options.folder);
    HX_TRY(model_file_read_conf(path, &conf, fault));
    HX_TRY(model_open(&conf, &check->model, fault));
    snprintf(path, sizeof path, "%s/model.safetensors", check->options.folder);
    HX_TRY(model_file_open(path, check->model, &check->start, fault));
    snprintf(path, sizeof path, "%s/expected.safetensors", check->options.folder);
    HX_TRY(model_file_map(path, &check->expected, fault));
    HX_TRY(read_optimizer(check, fault));
    HX_TRY(read_tokens(check, fault));
    return check_shapes(check, fault);
}

static void report(check_t *check, const char *prefix, const char *name, double error, double bound)
{
    const bool holds = error <= bound;
    check->failed += !holds;
    printf("%s%-*s %9.2e  bound %.0e  %s\n", prefix, (int)(34 - strlen(prefix)), name, error, bound,
           holds ? "ok" : "TOO LARGE");
}

// |difference| / |expected|, Euclidean.
typedef struct {
    double difference;
    double expected;
} error_t;

static void add_error(error_t *error, const double *expected, const float *found, uint64_t count)
{
    for (uint64_t index = 0; index < count; index++) {
        const double difference = (double)found[index] - expected[index];
        error->difference += difference * difference;
        error->expected += expected[index] * expected[index];
    }
}

static double relative(const error_t *error)
{
    return error->difference == 0 ? 0 : sqrt(error->difference / error->expected);
}

// Compares one tensor of the model, taken from flat vectors on the backend.
static hx_err_t compare_tensor(check_t *check, const char *prefix, const model_tensor_t *tensor,
                               const float *flat, double bound)
{
    const hx_backend_ops_t *const ops = check->backend->ops;
    float *const found = hx_new(tensor->size, sizeof *found);
    double *const expected = hx_new(tensor->size, sizeof *expected);
    hx_err_t err = ops->download(check->backend, 0, found, flat + tensor->offset,
                                 sizeof *found * tensor->size);
    if (err == HX_OK) {
        err = ops->sync(check->backend, 0);
    }
    if (err == HX_OK) {
        error_t error = {0};
        model_file_read(check->expected, find(check, prefix, tensor->name), 0, tensor->size,
                        expected);
        add_error(&error, expected, found, tensor->size);
        report(check, prefix, tensor->name, relative(&error), bound);
    }
    free(found);
    free(expected);
    return err;
}

static hx_err_t compare_all(check_t *check, const char *prefix, const model_run_t *run,
                            float *(*flat)(const model_run_t *, uint32_t), double bound)
{
    for (uint32_t index = 0; index < model_tensors_count(check->model); index++) {
        const model_tensor_t *const tensor = model_tensor(check->model, index);
        HX_TRY(compare_tensor(check, prefix, tensor, flat(run, tensor->group), bound));
    }
    return HX_OK;
}

static hx_err_t compare_rows(check_t *check, model_run_t *run, float *found, double *expected)
{
    const model_conf_t *const conf = model_conf(check->model);
    const size_t row_size = (size_t)conf->context * conf->vocab;
    error_t error = {0};
    for (uint32_t row = 0; row < check->rows; row++) {
        HX_TRY(model_run_logits(run, check->inputs + (size_t)row * conf->context, conf->context, 0,
                                found));
        model_file_read(check->expected, find(check, "", "logits"), row * row_size, row_size,
                        expected);
        add_error(&error, expected, found, row_size);
    }
    report(check, "", "logits", relative(&error), BOUND_LOGITS);
    return HX_OK;
}

static hx_err_t compare_logits(check_t *check)
{
    const model_conf_t *const conf = model_conf(check->model);
    const size_t row_size = (size_t)conf->context * conf->vocab;
    const model_run_conf_t run_conf = {
        .backend = check->backend, .model = check->model, .rows = 1, .inference = true};
    model_run_t *run = NULL;
    HX_TRY(model_run_open(&run_conf, &run));
    float *const found = hx_new(row_size, sizeof *found);
    double *const expected = hx_new(row_size, sizeof *expected);
    hx_err_t err = model_run_fill(run, model_file_read_group, check->start);
    if (err == HX_OK) {
        err = compare_rows(check, run, found, expected);
    }
    free(found);
    free(expected);
    model_run_destroy(&run);
    return err;
}

static hx_err_t train(check_t *check, model_run_t *run)
{
    const size_t step_size = (size_t)check->rows * model_conf(check->model)->context;
    HX_TRY(model_run_fill(run, model_file_read_group, check->start));
    for (uint32_t step = 0; step < check->steps; step++) {
        double loss = 0;
        char name[32];
        HX_TRY(model_run_gradient(run, check->inputs + step * step_size,
                                  check->targets + step * step_size, check->rows, &loss));
        if (step == 0) {
            HX_TRY(compare_all(check, "grad.", run, model_run_grads, BOUND_GRADIENT));
        }
        snprintf(name, sizeof name, "loss of step %" PRIu32, step + 1);
        report(check, "", name, fabs(loss - check->losses[step]) / fabs(check->losses[step]),
               BOUND_LOSS);
        const optim_step_t update = {
            .lr = check->lr, .scale = 1, .gradient_scale = 1, .step = step + 1};
        HX_TRY(model_run_update(run, &check->optim, &update));
    }
    return compare_all(check, "after.", run, model_run_params, BOUND_AFTER);
}

static hx_err_t compare_training(check_t *check)
{
    const uint32_t rows = check->options.rows > 0 ? check->options.rows : check->rows;
    const model_run_conf_t conf = {
        .backend = check->backend,
        .model = check->model,
        .rows = HX_MIN(rows, check->rows),
        .recompute = check->options.recompute,
    };
    model_run_t *run = NULL;
    HX_TRY(model_run_open(&conf, &run));
    const hx_err_t err = train(check, run);
    model_run_destroy(&run);
    return err;
}

// 0: unusable.
static uint32_t count_of(const char *text)
{
    char *end = NULL;
    const unsigned long number = strtoul(text, &end, 10);
    return end != text && *end == '\0' && *text != '-' && number <= 4096 ? (uint32_t)number : 0;
}

static int usage(const char *what)
{
    fprintf(stderr, "golden-check: %s; golden-check --help tells more\n", what);
    return 2;
}

// -1: go on; else the exit status.
static int read_options(int argc, char **argv, options_t *options)
{
    static const struct option known[] = {
        {"threads", required_argument, NULL, 't'}, {"recompute", no_argument, NULL, 'r'},
        {"rows", required_argument, NULL, 'n'},    {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},       {0},
    };
    for (int option; (option = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        switch (option) {
        case 't':
            options->threads = (int)count_of(optarg);
            if (options->threads == 0) {
                return usage("--threads wants a whole number from 1");
            }
            break;
        case 'r':
            options->recompute = true;
            break;
        case 'n':
            options->rows = count_of(optarg);
            if (options->rows == 0) {
                return usage("--rows wants a whole number from 1");
            }
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        case 'V':
            puts("golden-check " HX_VERSION);
            return 0;
        default:
            return usage("unusable option");
        }
    }
    if (optind + 1 != argc) {
        return usage("one folder is needed");
    }
    options->folder = argv[optind];
    return -1;
}

static void release(check_t *check)
{
    hx_backend_destroy(&check->backend);
    model_file_destroy(&check->start);
    model_file_destroy(&check->expected);
    model_destroy(&check->model);
    free(check->inputs);
    free(check->targets);
    free(check->losses);
}

static int compare(check_t *check)
{
    hx_fault_t fault = {{0}};
    if (load(check, &fault) != HX_OK) {
        fprintf(stderr, "golden-check: %s\n", fault.text);
        return 2;
    }
    check->backend = hx_backend_cpu_new(check->options.threads);
    hx_err_t err = compare_logits(check);
    if (err == HX_OK) {
        err = compare_training(check);
    }
    if (err != HX_OK) {
        fprintf(stderr, "golden-check: %s\n", hx_strerror(err));
        return 1;
    }
    printf("%s: %" PRIu32 " of its quantities are out of bounds\n", check->options.folder,
           check->failed);
    return check->failed == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    hx_cpu_prepare(argv);
    check_t check = {0};
    int status = read_options(argc, argv, &check.options);
    if (status < 0) {
        status = compare(&check);
        release(&check);
    }
    return status;
}
