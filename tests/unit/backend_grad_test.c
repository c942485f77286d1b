// backend_grad_test - layers of a backend: forward against formulas in double, backward against
// finite differences of those formulas, so that no derivative is written twice.

#include "tensor/hx_backend.h"
#include "tests/support/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 3e-6        // Of values.
#define SLOPE_TOLERANCE 1e-5  // Of gradients.
#define STEP 1e-4

static float *floats(size_t count)
{
    return hx_new(count, sizeof(float));
}

static double *doubles(const float *x, size_t count)
{
    double *const y = hx_new(count, sizeof(double));
    for (size_t e = 0; e < count && x; e++) {
        y[e] = (double)x[e];
    }
    return y;
}

static float *random_floats(hx_rng_t *rng, size_t count)
{
    float *const x = floats(count);
    device_random(rng, x, count);
    return x;
}

static float *put(hx_backend_t *backend, const float *x, size_t count)
{
    return device_put(backend, x, count * sizeof *x);
}

// A layer in double: what it makes of its inputs, as one number, sum of out * dout.
typedef struct layer layer_t;
struct layer {
    double (*loss)(const layer_t *layer);
    size_t batch;
    size_t time;
    size_t heads;
    size_t columns;
    double *x;
    double *gain;
    double *shift;
    double *out;
    double *dout;
};

// The derivative by one input, from both sides.
static double slope(const layer_t *layer, double *input)
{
    const double old = *input;
    *input = old + STEP;
    const double above = layer->loss(layer);
    *input = old - STEP;
    const double below = layer->loss(layer);
    *input = old;
    return (above - below) / (2 * STEP);
}

// Compares `samples` gradients (all, when there are fewer) with slopes. `base` is what was there
// before, to which the gradient was to be added; NULL for 0.
static void check_slopes(const layer_t *layer, double *inputs, const float *gradients,
                         const float *base, size_t count, size_t samples, hx_rng_t *rng,
                         const char *what)
{
    const size_t tried = HX_MIN(count, samples);
    float *const got = floats(tried);
    double *const wanted = hx_new(tried, sizeof(double));
    for (size_t at = 0; at < tried; at++) {
        const size_t e = count <= samples ? at : (size_t)hx_rng_below(rng, count);
        got[at] = gradients[e];
        wanted[at] = slope(layer, &inputs[e]) + (base ? (double)base[e] : 0.0);
    }
    const double distance = device_distance(got, wanted, tried);
    cr_assert_lt(distance, SLOPE_TOLERANCE, "%s: %g", what, distance);
    free(got);
    free(wanted);
}

static double weighted(const layer_t *layer, size_t count)
{
    double sum = 0;
    for (size_t e = 0; e < count; e++) {
        sum += layer->out[e] * layer->dout[e];
    }
    return sum;
}

static double norm_loss(const layer_t *layer)
{
    const size_t columns = layer->columns;
    for (size_t row = 0; row < layer->batch; row++) {
        const double *const x = layer->x + row * columns;
        double mean = 0;
        double variance = 0;
        for (size_t c = 0; c < columns; c++) {
            mean += x[c] / (double)columns;
        }
        for (size_t c = 0; c < columns; c++) {
            variance += (x[c] - mean) * (x[c] - mean) / (double)columns;
        }
        for (size_t c = 0; c < columns; c++) {
            layer->out[row * columns + c] =
                (x[c] - mean) / sqrt(variance + 1e-5) * layer->gain[c] + layer->shift[c];
        }
    }
    return weighted(layer, layer->batch * columns);
}

// Everything of a layer that tests of the norm need, on the host and on the device.
typedef struct {
    layer_t layer;
    size_t count;
    float *x;
    float *gain;
    float *shift;
    float *dout;
    float *base;  // What gradients are added to.
    float *dev_x;
    float *dev_gain;
    float *dev_shift;
    float *dev_dout;
    float *dev_out;
    float *dev_mean;
    float *dev_rstd;
} norm_case_t;

static norm_case_t norm_case(hx_backend_t *backend, hx_rng_t *rng, size_t rows, size_t columns)
{
    norm_case_t self = {.count = rows * columns};
    self.x = random_floats(rng, self.count);
    self.gain = random_floats(rng, columns);
    self.shift = random_floats(rng, columns);
    self.dout = random_floats(rng, self.count);
    self.base = random_floats(rng, HX_MAX(self.count, columns));
    self.layer = (layer_t){
        .loss = norm_loss,
        .batch = rows,
        .columns = columns,
        .x = doubles(self.x, self.count),
        .gain = doubles(self.gain, columns),
        .shift = doubles(self.shift, columns),
        .out = doubles(NULL, self.count),
        .dout = doubles(self.dout, self.count),
    };
    self.dev_x = put(backend, self.x, self.count);
    self.dev_gain = put(backend, self.gain, columns);
    self.dev_shift = put(backend, self.shift, columns);
    self.dev_dout = put(backend, self.dout, self.count);
    self.dev_out = put(backend, NULL, self.count);
    self.dev_mean = put(backend, NULL, rows);
    self.dev_rstd = put(backend, NULL, rows);
    return self;
}

static void norm_case_drop(hx_backend_t *backend, norm_case_t *self)
{
    float *const host[] = {self->x, self->gain, self->shift, self->dout, self->base};
    double *const wide[] = {self->layer.x, self->layer.gain, self->layer.shift, self->layer.out,
                            self->layer.dout};
    float *const device[] = {self->dev_x,    self->dev_gain, self->dev_shift,
                             self->dev_dout, self->dev_mean, self->dev_rstd};
    for (size_t at = 0; at < HX_COUNT(host); at++) {
        free(host[at]);
        free(wide[at]);
    }
    for (size_t at = 0; at < HX_COUNT(device); at++) {
        device_drop(backend, device[at]);
    }
}

static void norm_holds_of(hx_backend_t *backend, hx_rng_t *rng, size_t rows, size_t columns,
                          size_t samples)
{
    const hx_backend_ops_t *const ops = backend->ops;
    norm_case_t self = norm_case(backend, rng, rows, columns);
    float *const got = floats(HX_MAX(self.count, columns));
    const hx_norm_t forward = {.rows = rows,
                               .columns = columns,
                               .eps = 1e-5f,
                               .x = self.dev_x,
                               .gain = self.dev_gain,
                               .shift = self.dev_shift,
                               .out = self.dev_out,
                               .mean = self.dev_mean,
                               .rstd = self.dev_rstd};
    cr_assert_eq(ops->norm_forward(backend, 0, &forward), HX_OK);
    norm_loss(&self.layer);
    device_take(backend, got, self.dev_out, self.count);
    cr_assert_lt(device_distance(got, self.layer.out, self.count), TOLERANCE);

    hx_norm_grad_t backward = {.rows = rows,
                               .columns = columns,
                               .x = self.dev_x,
                               .gain = self.dev_gain,
                               .mean = self.dev_mean,
                               .rstd = self.dev_rstd,
                               .dout = self.dev_dout,
                               .accumulate = true,
                               .dx = put(backend, self.base, self.count),
                               .dgain = put(backend, self.base, columns),
                               .dshift = put(backend, self.base, columns)};
    cr_assert_eq(ops->norm_backward_input(backend, 0, &backward), HX_OK);
    cr_assert_eq(ops->norm_backward_params(backend, 0, &backward), HX_OK);
    device_take(backend, got, backward.dx, self.count);
    check_slopes(&self.layer, self.layer.x, got, self.base, self.count, samples, rng, "dx added");
    device_take(backend, got, backward.dgain, columns);
    check_slopes(&self.layer, self.layer.gain, got, self.base, columns, samples, rng, "dgain");
    device_take(backend, got, backward.dshift, columns);
    check_slopes(&self.layer, self.layer.shift, got, self.base, columns, samples, rng, "dshift");

    backward.accumulate = false;
    backward.dx = self.dev_dout;
    cr_assert_eq(ops->norm_backward_input(backend, 0, &backward), HX_OK);
    device_get(backend, got, self.dev_dout, self.count * sizeof(float));
    check_slopes(&self.layer, self.layer.x, got, NULL, self.count, samples, rng, "dx in place");
    norm_case_drop(backend, &self);
    free(got);
}

static void norm_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    for (int round = 0; round < 4; round++) {
        norm_holds_of(backend, rng, device_between(rng, 1, 9), device_between(rng, 2, 70), 500);
    }
    norm_holds_of(backend, rng, 301, 130, 12);
}

Test(backend_grad, layer_norm_and_its_two_backward_halves)
{
    device_each("norm", norm_holds);
}

static double gelu_of(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static void gelu_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const float edges[] = {0.0f, -0.0f, 1e-20f, -40.0f, 40.0f, -1e9f, 1e9f, -6.0f};
    const size_t count = 40000;
    float *const x = random_floats(rng, count);
    float *const dout = random_floats(rng, count);
    float *const got = floats(count);
    double *const values = hx_new(count, sizeof(double));
    double *const slopes = hx_new(count, sizeof(double));
    for (size_t e = 0; e < count; e++) {
        x[e] = e < HX_COUNT(edges) ? edges[e] : 3 * x[e];
        const double at = (double)x[e];
        values[e] = gelu_of(at);
        slopes[e] = (double)dout[e] * (gelu_of(at + STEP) - gelu_of(at - STEP)) / (2 * STEP);
    }
    float *const memory = put(backend, x, count);
    float *const dev_dout = put(backend, dout, count);
    float *const out = put(backend, NULL, count);
    cr_assert_eq(backend->ops->gelu_forward(backend, 0, out, memory, count), HX_OK);
    cr_assert_eq(backend->ops->gelu_backward(backend, 0, dev_dout, memory, dev_dout, count), HX_OK);
    device_take(backend, got, out, count);
    // The two huge ones apart: they would hide all others.
    cr_assert(got[5] == 0 && got[6] == 1e9f);
    cr_assert_lt(device_distance(got + 7, values + 7, count - 7), TOLERANCE);
    cr_assert_lt(device_distance(got, values, 5), TOLERANCE);
    device_take(backend, got, dev_dout, count);
    cr_assert_lt(device_distance(got + 7, slopes + 7, count - 7), SLOPE_TOLERANCE);
    cr_assert(isfinite(got[5]) && fabs((double)(got[6] - dout[6])) < 1e-6);
    cr_assert_eq(backend->ops->gelu_forward(backend, 0, memory, memory, count), HX_OK);
    device_take(backend, got, memory, count);
    cr_assert_lt(device_distance(got + 7, values + 7, count - 7), TOLERANCE, "in place");
    free(x);
    free(dout);
    free(got);
    free(values);
    free(slopes);
}

Test(backend_grad, gelu_and_its_derivative)
{
    device_each("gelu", gelu_holds);
}

// One query of one head: its softmax over the keys up to its own, and the mean of their values.
static double attend(const layer_t *layer, size_t row, size_t head, size_t query, double *scores)
{
    const size_t width = layer->columns / layer->heads;
    const double *const base = layer->x + row * layer->time * 3 * layer->columns + head * width;
    const double *const q = base + query * 3 * layer->columns;
    double *const out = layer->out + (row * layer->time + query) * layer->columns + head * width;
    double sum = 0;
    memset(out, 0, width * sizeof *out);
    for (size_t key = 0; key <= query; key++) {
        const double *const k = base + key * 3 * layer->columns + layer->columns;
        double score = 0;
        for (size_t c = 0; c < width; c++) {
            score += q[c] * k[c];
        }
        scores[key] = exp(score / sqrt((double)width));
        sum += scores[key];
    }
    for (size_t key = 0; key <= query; key++) {
        const double *const v = base + key * 3 * layer->columns + 2 * layer->columns;
        for (size_t c = 0; c < width; c++) {
            out[c] += scores[key] / sum * v[c];
        }
    }
    return log(sum);
}

static double attention_loss(const layer_t *layer)
{
    double *const scores = hx_new(layer->time, sizeof(double));
    for (size_t row = 0; row < layer->batch; row++) {
        for (size_t head = 0; head < layer->heads; head++) {
            for (size_t query = 0; query < layer->time; query++) {
                const double stat = attend(layer, row, head, query, scores);
                if (layer->shift) {
                    layer->shift[(row * layer->heads + head) * layer->time + query] = stat;
                }
            }
        }
    }
    free(scores);
    return weighted(layer, layer->batch * layer->time * layer->columns);
}

static void attention_holds_of(hx_backend_t *backend, hx_rng_t *rng, size_t batch, size_t time,
                               size_t heads, size_t width, size_t samples)
{
    const size_t channels = heads * width;
    const size_t count = batch * time * channels;
    const size_t stats_count = batch * heads * time;
    float *const qkv = random_floats(rng, 3 * count);
    float *const dout = random_floats(rng, count);
    float *const got = floats(3 * count);
    const layer_t layer = {.loss = attention_loss,
                           .batch = batch,
                           .time = time,
                           .heads = heads,
                           .columns = channels,
                           .x = doubles(qkv, 3 * count),
                           .shift = doubles(NULL, stats_count),
                           .out = doubles(NULL, count),
                           .dout = doubles(dout, count)};
    const hx_attention_t forward = {.batch = batch,
                                    .time = time,
                                    .heads = heads,
                                    .channels = channels,
                                    .qkv = put(backend, qkv, 3 * count),
                                    .out = put(backend, NULL, count),
                                    .stats = put(backend, NULL, stats_count)};
    cr_assert_eq(backend->ops->attention_forward(backend, 0, &forward), HX_OK);
    attention_loss(&layer);
    device_get(backend, got, forward.out, count * sizeof(float));
    cr_assert_lt(device_distance(got, layer.out, count), TOLERANCE);
    device_get(backend, got, forward.stats, stats_count * sizeof(float));
    cr_assert_lt(device_distance(got, layer.shift, stats_count), TOLERANCE);

    const hx_attention_grad_t backward = {.batch = batch,
                                          .time = time,
                                          .heads = heads,
                                          .channels = channels,
                                          .qkv = forward.qkv,
                                          .out = forward.out,
                                          .stats = forward.stats,
                                          .dout = put(backend, dout, count),
                                          .dqkv = put(backend, qkv, 3 * count)};
    cr_assert_eq(backend->ops->attention_backward(backend, 0, &backward), HX_OK);
    device_take(backend, got, backward.dqkv, 3 * count);
    check_slopes(&layer, layer.x, got, NULL, 3 * count, samples, rng, "dqkv");
    device_drop(backend, (void *)forward.qkv);
    device_drop(backend, forward.out);
    device_drop(backend, forward.stats);
    device_drop(backend, (void *)backward.dout);
    free(qkv);
    free(dout);
    free(got);
    free(layer.x);
    free(layer.shift);
    free(layer.out);
    free(layer.dout);
}

static void attention_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    for (int round = 0; round < 3; round++) {
        attention_holds_of(backend, rng, device_between(rng, 1, 3), device_between(rng, 1, 9),
                           device_between(rng, 1, 3), device_between(rng, 1, 6), 1000);
    }
    // Over several blocks of queries and keys, not whole ones.
    attention_holds_of(backend, rng, 1, 128, 1, 4, 20);
    attention_holds_of(backend, rng, 2, 131, 2, 3, 20);
    attention_holds_of(backend, rng, 1, 523, 1, 5, 12);
}

Test(backend_grad, attention_over_blocks_and_its_gradient)
{
    device_each("attention", attention_holds);
}

// Scores that grow along the keys make each block raise the running maximum.
static void large_scores_hold(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t time = 600;
    const size_t width = 2;
    float *const qkv = random_floats(rng, time * 3 * width);
    for (size_t position = 0; position < time; position++) {
        float *const at = qkv + position * 3 * width;
        at[0] = 40.0f;
        at[2] = (float)position * 0.25f;
    }
    const layer_t layer = {.batch = 1,
                           .time = time,
                           .heads = 1,
                           .columns = width,
                           .x = doubles(qkv, time * 3 * width),
                           .out = doubles(NULL, time * width)};
    // At the last query the weights fall off by exp(-40 * 0.25 / sqrt(2)) per key: by hand.
    const hx_attention_t args = {.batch = 1,
                                 .time = time,
                                 .heads = 1,
                                 .channels = width,
                                 .qkv = put(backend, qkv, time * 3 * width),
                                 .out = put(backend, NULL, time * width),
                                 .stats = put(backend, NULL, time)};
    cr_assert_eq(backend->ops->attention_forward(backend, 0, &args), HX_OK);
    float *const got = floats(time * width);
    device_get(backend, got, args.out, time * width * sizeof(float));
    for (size_t query = 0; query < time; query++) {
        const double *const q = layer.x + query * 3 * width;
        double top = -INFINITY;
        double sum = 0;
        double mean[2] = {0, 0};
        for (size_t pass = 0; pass < 2; pass++) {
            for (size_t key = 0; key <= query; key++) {
                const double *const k = layer.x + key * 3 * width + width;
                const double score = (q[0] * k[0] + q[1] * k[1]) / sqrt(2.0);
                top = pass == 0 ? fmax(top, score) : top;
                const double p = pass == 0 ? 0 : exp(score - top);
                sum += p;
                mean[0] += p * k[2];
                mean[1] += p * k[3];
            }
        }
        cr_assert_float_eq((double)got[2 * query], mean[0] / sum, 2e-3, "query %zu", query);
        cr_assert_float_eq((double)got[2 * query + 1], mean[1] / sum, 2e-3, "query %zu", query);
    }
    device_drop(backend, (void *)args.qkv);
    device_drop(backend, args.out);
    device_drop(backend, args.stats);
    free(qkv);
    free(got);
    free(layer.x);
    free(layer.out);
}

Test(backend_grad, attention_survives_scores_beyond_the_range_of_exp)
{
    device_each("large scores", large_scores_hold);
}

// Enough work for every operation to use all threads, twice: the same bits.
static void same_bits_hold(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t time = 256;
    const size_t channels = 96;
    const size_t count = 2 * time * channels;
    float *const host = random_floats(rng, 3 * count);
    float *const qkv = put(backend, host, 3 * count);
    float *const results[] = {floats(3 * count), floats(3 * count)};
    for (size_t at = 0; at < 2; at++) {
        float *const out = put(backend, NULL, count);
        float *const stats = put(backend, NULL, 8 * time);
        float *const dqkv = put(backend, NULL, 3 * count);
        const hx_attention_t forward = {2, time, 4, channels, qkv, out, stats};
        const hx_attention_grad_t backward = {2, time, 4, channels, qkv, out, stats, out, dqkv};
        cr_assert_eq(backend->ops->attention_forward(backend, 0, &forward), HX_OK);
        cr_assert_eq(backend->ops->attention_backward(backend, 0, &backward), HX_OK);
        const hx_gemm_t product = {.dtype = HX_F32,
                                   .a_transposed = true,
                                   .rows = channels,
                                   .columns = channels,
                                   .inner = 2 * time,
                                   .alpha = 1,
                                   .a = out,
                                   .a_pitch = channels,
                                   .b = out,
                                   .b_pitch = channels,
                                   .beta = 1,
                                   .out = dqkv,
                                   .out_pitch = channels};
        cr_assert_eq(backend->ops->gemm(backend, 0, &product), HX_OK);
        cr_assert_eq(backend->ops->column_sum(backend, 0, dqkv, qkv, 6 * time, channels), HX_OK);
        device_take(backend, results[at], dqkv, 3 * count);
        device_drop(backend, out);
        device_drop(backend, stats);
    }
    cr_assert_eq(memcmp(results[0], results[1], 3 * count * sizeof(float)), 0);
    free(host);
    free(results[0]);
    free(results[1]);
    device_drop(backend, qkv);
}

Test(backend_grad, the_same_bits_run_after_run)
{
    device_each("same bits", same_bits_hold);
}
