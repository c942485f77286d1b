// bench_compute - training steps of a GPT beside sgemm at the shapes of its own products.
//
// The flops of a step are those of its matrix products and of causal attention, forward and
// backward, as model.h counts them. The limit is what OpenBLAS's sgemm alone gives at the same
// shapes, weighed by how often a step runs each.

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "model/model_run.h"
#include "net/options.h"
#include "tensor/hx_rng.h"

#define STEPS_MAX 1000u
#define SHAPES_MAX 16u
#define SHAPE_SECONDS 0.15

typedef struct {
    uint32_t layers, channels, heads, context, vocab, rows, threads, steps;
    bool torch, json;
} args_t;

typedef struct {
    double seconds;  // Of a step, median.
    double tokens_per_second;
    double flops;          // Of a step.
    double sgemm_flops;    // Per second.
    double torch_seconds;  // 0: not asked for.
    bench_probe_t probe;
} result_t;

static double step_flops(const model_t *model, uint32_t rows)
{
    double sum = 0;
    for (uint32_t layer = 0; layer < model_layers_count(model); layer++) {
        const model_layer_t *const at = model_layer(model, layer);
        sum += at->forward_flops + at->backward_flops;
    }
    return sum * rows;
}

typedef struct {
    size_t rows, columns, inner;
    bool a_transposed, b_transposed;
    double times;  // In a step.
} shape_t;

// out (n, out) = in (n, in) x w (in, out), and its two backward products. w of the head is (out,
// in).
static uint32_t add_product(shape_t *shapes, uint32_t count, size_t n, size_t in, size_t out,
                            double times, bool tied)
{
    shapes[count++] = (shape_t){n, out, in, false, tied, times};
    shapes[count++] = (shape_t){n, in, out, false, !tied, times};
    shapes[count++] = tied ? (shape_t){out, in, n, true, false, times}
                           : (shape_t){in, out, n, true, false, times};
    return count;
}

// Seconds of one product at this shape, the median of as many as fit in SHAPE_SECONDS.
static double product_seconds(const shape_t *shape, float *a, float *b, float *c)
{
    double times[64];
    size_t count = 0;
    const double end = bench_now() + SHAPE_SECONDS;
    while (count < 3 || (bench_now() < end && count < HX_COUNT(times))) {
        const double start = bench_now();
        cblas_sgemm(CblasRowMajor, shape->a_transposed ? CblasTrans : CblasNoTrans,
                    shape->b_transposed ? CblasTrans : CblasNoTrans, (int)shape->rows,
                    (int)shape->columns, (int)shape->inner, 1.0f, a,
                    (int)(shape->a_transposed ? shape->rows : shape->inner), b,
                    (int)(shape->b_transposed ? shape->inner : shape->columns), 0.0f, c,
                    (int)shape->columns);
        times[count++] = bench_now() - start;
    }
    return bench_median(times, count);
}

static double sgemm_flops(const args_t *args)
{
    shape_t shapes[SHAPES_MAX];
    uint32_t count = 0;
    const size_t n = (size_t)args->rows * args->context, c = args->channels;
    const double layers = args->layers;
    count = add_product(shapes, count, n, c, 3 * c, layers, false);
    count = add_product(shapes, count, n, c, c, layers, false);
    count = add_product(shapes, count, n, c, 4 * c, layers, false);
    count = add_product(shapes, count, n, 4 * c, c, layers, false);
    count = add_product(shapes, count, n, c, args->vocab, 1, true);
    size_t room = 0;
    for (uint32_t at = 0; at < count; at++) {
        const shape_t *const shape = &shapes[at];
        room = HX_MAX(room, shape->rows * shape->inner);
        room = HX_MAX(room, shape->inner * shape->columns);
        room = HX_MAX(room, shape->rows * shape->columns);
    }
    float *memory[3];
    for (int at = 0; at < 3; at++) {
        memory[at] = hx_new(room, sizeof(float));
        hx_rng_normal_fill(1, (uint64_t)at, 0, 1.0f, memory[at], room);
    }
    double flops = 0, seconds = 0;
    for (uint32_t at = 0; at < count; at++) {
        const shape_t *const shape = &shapes[at];
        flops += shape->times * 2.0 * (double)shape->rows * (double)shape->columns *
                 (double)shape->inner;
        seconds += shape->times * product_seconds(shape, memory[0], memory[1], memory[2]);
    }
    for (int at = 0; at < 3; at++) {
        free(memory[at]);
    }
    return flops / seconds;
}

static void random_tokens(int32_t *tokens, size_t count, uint32_t vocab, hx_rng_t *rng)
{
    for (size_t at = 0; at < count; at++) {
        tokens[at] = (int32_t)hx_rng_below(rng, vocab);
    }
}

static hx_err_t time_steps(model_run_t *run, const args_t *args, double *median)
{
    const size_t count = (size_t)args->rows * args->context;
    int32_t *const tokens = hx_new(count, sizeof *tokens);
    int32_t *const targets = hx_new(count, sizeof *targets);
    hx_rng_t rng = hx_rng_seed(1);
    random_tokens(tokens, count, args->vocab, &rng);
    random_tokens(targets, count, args->vocab, &rng);
    const optim_conf_t optim = optim_conf_default(OPTIM_ADAMW);
    double *const times = hx_new(args->steps + 1, sizeof *times);
    hx_err_t err = HX_OK;
    for (uint32_t step = 0; step <= args->steps && err == HX_OK; step++) {
        const double start = bench_now();
        double loss = 0;
        err = model_run_gradient(run, tokens, targets, args->rows, &loss);
        if (err == HX_OK) {
            err = model_run_update(
                run, &optim,
                &(optim_step_t){.lr = 1e-3, .scale = 1, .gradient_scale = 1, .step = step + 1});
        }
        times[step] = bench_now() - start;
        fprintf(stderr, "\rstep %u of %u: %.3f s, loss %.3f ", step, args->steps, times[step],
                loss);
    }
    fputc('\n', stderr);
    *median = bench_median(times + 1, args->steps);
    free(times);
    free(tokens);
    free(targets);
    return err;
}

// Where bench/torch_gpt.py is: below the current folder, or in the source folder that this was
// built in.
static void torch_script(char *out, size_t room)
{
    snprintf(out, room, "bench/torch_gpt.py");
    char self[PATH_MAX] = "";
    const ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (access(out, R_OK) == 0 || size <= 0) {
        return;
    }
    for (int up = 0; up < 4; up++) {  // .../build/PRESET/bin/harmony-bench
        char *const cut = strrchr(self, '/');
        if (cut) {
            *cut = '\0';
        }
    }
    snprintf(out, room, "%.3900s/bench/torch_gpt.py", self);
}

// The median of PyTorch's steps but the first at the same shape, run by this interpreter; -1: it
// has no PyTorch.
static double torch_steps(const args_t *args, const char *python, const char *script)
{
    char command[PATH_MAX + 512];
    snprintf(command, sizeof command,
             "%s '%s' --layers %u --channels %u --heads %u --context %u --vocab %u "
             "--rows %u --threads %u --steps %u 2>/dev/null",
             python, script, args->layers, args->channels, args->heads, args->context, args->vocab,
             args->rows, args->threads, args->steps + 1);
    FILE *const pipe = popen(command, "r");
    double times[STEPS_MAX + 1];
    size_t count = 0;
    while (pipe && count < HX_COUNT(times) && fscanf(pipe, "%lf", &times[count]) == 1) {
        count++;
    }
    if (pipe) {
        pclose(pipe);
    }
    return count > 1 ? bench_median(times + 1, count - 1) : -1;
}

// Debian's PyTorch belongs to /usr/bin/python3, which need not be the first python3 of the path.
static double torch_seconds(const args_t *args)
{
    char script[PATH_MAX];
    torch_script(script, sizeof script);
    const double seconds = torch_steps(args, "python3", script);
    return seconds > 0 ? seconds : torch_steps(args, "/usr/bin/python3", script);
}

static int measure(const args_t *args, result_t *result)
{
    const model_conf_t base = model_conf_default();
    model_conf_t conf = base;
    conf.layers = args->layers;
    conf.heads = args->heads;
    conf.channels = args->channels;
    conf.context = args->context;
    conf.vocab = args->vocab;
    hx_fault_t fault;
    model_t *model = NULL;
    if (model_open(&conf, &model, &fault) != HX_OK) {
        fprintf(stderr, "harmony-bench compute: %s\n", fault.text);
        return EXIT_USAGE;
    }
    hx_backend_t *backend = hx_backend_cpu_new((int)args->threads);
    model_run_t *run = NULL;
    hx_err_t err = model_run_open(
        &(model_run_conf_t){.backend = backend, .model = model, .rows = args->rows}, &run);
    bench_probe(&result->probe);
    if (err == HX_OK) {
        err = model_run_init(run, 1);
    }
    if (err == HX_OK) {
        err = time_steps(run, args, &result->seconds);
    }
    result->flops = step_flops(model, args->rows);
    result->tokens_per_second = args->rows * (double)args->context / result->seconds;
    result->sgemm_flops = sgemm_flops(args);
    result->torch_seconds = args->torch ? torch_seconds(args) : 0;
    model_run_destroy(&run);
    hx_backend_destroy(&backend);
    model_destroy(&model);
    if (err != HX_OK) {
        fprintf(stderr, "harmony-bench compute: %s\n", hx_strerror(err));
        return EXIT_FAILED;
    }
    if (result->torch_seconds < 0) {
        fprintf(stderr, "harmony-bench compute: PyTorch did not run: is Debian's python3-torch "
                        "installed, and is this the source folder?\n");
        return EXIT_FAILED;
    }
    return EXIT_DONE;
}

static void print_json(const args_t *args, const result_t *result)
{
    const double flops = result->flops / result->seconds;
    json_t *const object = json_pack(
        "{s:f, s:f, s:f, s:f, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:f, s:o}",
        "tokens_per_second", result->tokens_per_second, "flops", flops, "sgemm_flops",
        result->sgemm_flops, "ratio", flops / result->sgemm_flops, "threads",
        (json_int_t)args->threads, "shape", "layers", (json_int_t)args->layers, "channels",
        (json_int_t)args->channels, "heads", (json_int_t)args->heads, "context",
        (json_int_t)args->context, "vocab", (json_int_t)args->vocab, "rows", (json_int_t)args->rows,
        "step_seconds", result->seconds, "machine", bench_probe_json(&result->probe));
    if (result->torch_seconds > 0) {
        const double torch = args->rows * (double)args->context / result->torch_seconds;
        json_object_set_new(object, "torch_tokens_per_second", json_real(torch));
        json_object_set_new(object, "torch_ratio", json_real(result->tokens_per_second / torch));
    }
    bench_print_json(object);
}

static void print_text(const args_t *args, const result_t *result)
{
    const double flops = result->flops / result->seconds;
    bench_probe_print(&result->probe);
    printf("GPT of %u layers, %u channels, %u heads, vocabulary %u; %u rows of %u tokens; "
           "%u threads\n",
           args->layers, args->channels, args->heads, args->vocab, args->rows, args->context,
           args->threads);
    printf("training:        %8.0f tokens/s, %.1f GFLOP/s (median of %u steps)\n",
           result->tokens_per_second, 1e-9 * flops, args->steps);
    printf("sgemm, same shapes:                %.1f GFLOP/s; training / sgemm = %.2f\n",
           1e-9 * result->sgemm_flops, flops / result->sgemm_flops);
    if (result->torch_seconds > 0) {
        const double torch = args->rows * (double)args->context / result->torch_seconds;
        printf("PyTorch eager f32: %6.0f tokens/s; ours / PyTorch = %.2f\n", torch,
               result->tokens_per_second / torch);
    }
}

int bench_compute(int argc, char **argv)
{
    args_t args = {.layers = 6,
                   .channels = 384,
                   .heads = 6,
                   .context = 256,
                   .vocab = 50304,
                   .rows = 4,
                   .threads = 0,
                   .steps = 8};
    const option_t list[] = {
        {"layers", 0, OPTION_COUNT, "N", "transformer blocks (6)", &args.layers},
        {"channels", 0, OPTION_COUNT, "N", "width (384)", &args.channels},
        {"heads", 0, OPTION_COUNT, "N", "attention heads (6)", &args.heads},
        {"context", 0, OPTION_COUNT, "N", "tokens of a row (256)", &args.context},
        {"vocab", 0, OPTION_COUNT, "N", "vocabulary (50304)", &args.vocab},
        {"rows", 0, OPTION_COUNT, "N", "rows of a step (4)", &args.rows},
        {"threads", 0, OPTION_COUNT, "N", "threads (all cores)", &args.threads},
        {"steps", 0, OPTION_COUNT, "N", "steps that count, at most 1000 (8)", &args.steps},
        {"vs-torch", 0, OPTION_FLAG, NULL, "run PyTorch at the same shape, too", &args.torch},
        {"json", 0, OPTION_FLAG, NULL, "one object on standard output", &args.json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench compute",
        .summary = "Trains a GPT on random tokens in this process, and times sgemm alone at the "
                   "shapes of its products in the same run.",
        .operands = "",
        .options = list,
        .options_count = HX_COUNT(list),
        .examples = "  harmony-bench compute --threads 2 --vs-torch\n",
    };
    options_t options;
    if (!options_parse(&spec, argc, argv, &options)) {
        return options.status;
    }
    args.steps = HX_MIN(args.steps, STEPS_MAX);
    if (args.threads == 0) {
        args.threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    }
    result_t result = {0};
    const int status = measure(&args, &result);
    if (status == EXIT_DONE && args.json) {
        print_json(&args, &result);
    } else if (status == EXIT_DONE) {
        print_text(&args, &result);
    }
    options_destroy(&options);
    return status;
}
