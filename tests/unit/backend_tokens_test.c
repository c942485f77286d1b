// backend_tokens_test - embedding and cross entropy of a backend, where tokens enter and leave a
// model.

#include "tensor/hx_backend.h"
#include "tests/support/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#define TOLERANCE 3e-6

static float *random_floats(hx_rng_t *rng, size_t count)
{
    float *const x = hx_new(count, sizeof *x);
    device_random(rng, x, count);
    return x;
}

static double *doubles(const float *x, size_t count)
{
    double *const y = hx_new(count, sizeof *y);
    for (size_t e = 0; e < count; e++) {
        y[e] = (double)x[e];
    }
    return y;
}

static float *put(hx_backend_t *backend, const float *x, size_t count)
{
    return device_put(backend, x, count * sizeof *x);
}

static void embedding_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t batch = device_between(rng, 1, 4);
    const size_t time = device_between(rng, 1, 90);
    const size_t channels = device_between(rng, 1, 200);
    const size_t vocab = 11;
    const size_t rows = batch * time;
    float *const wte = random_floats(rng, vocab * channels);
    float *const wpe = random_floats(rng, time * channels);
    float *const dout = random_floats(rng, rows * channels);
    float *const got = hx_new(HX_MAX(HX_MAX(rows, vocab), time) * channels, sizeof(float));
    int32_t *const tokens = hx_new(rows, sizeof *tokens);
    double *const out = hx_new(rows * channels, sizeof(double));
    double *const dwte = doubles(wte, vocab * channels);
    double *const dwpe = doubles(wpe, time * channels);
    for (size_t row = 0; row < rows; row++) {
        tokens[row] = (int32_t)hx_rng_below(rng, vocab);
        for (size_t c = 0; c < channels; c++) {
            const size_t token = (size_t)tokens[row] * channels + c;
            const size_t position = row % time * channels + c;
            out[row * channels + c] = (double)wte[token] + (double)wpe[position];
            dwte[token] += (double)dout[row * channels + c];
            dwpe[position] += (double)dout[row * channels + c];
        }
    }
    hx_embedding_t args = {.batch = batch, .time = time, .channels = channels, .vocab = vocab};
    args.tokens = device_put(backend, tokens, rows * sizeof *tokens);
    args.wte = put(backend, wte, vocab * channels);
    args.wpe = put(backend, wpe, time * channels);
    args.out = put(backend, NULL, rows * channels);
    hx_embedding_grad_t grad = {.batch = batch, .time = time, .channels = channels, .vocab = vocab};
    grad.tokens = args.tokens;
    grad.dout = put(backend, dout, rows * channels);
    cr_assert_eq(backend->ops->embedding_forward(backend, 0, &args), HX_OK);
    device_get(backend, got, args.out, rows * channels * sizeof(float));
    cr_assert_lt(device_distance(got, out, rows * channels), TOLERANCE);
    // The tables themselves serve as the gradients that are added to.
    grad.dtable = (float *)args.wte;
    cr_assert_eq(backend->ops->embedding_backward_tokens(backend, 0, &grad), HX_OK);
    grad.dtable = (float *)args.wpe;
    cr_assert_eq(backend->ops->embedding_backward_positions(backend, 0, &grad), HX_OK);
    device_get(backend, got, args.wte, vocab * channels * sizeof(float));
    cr_assert_lt(device_distance(got, dwte, vocab * channels), TOLERANCE);
    device_take(backend, got, (float *)args.wpe, time * channels);
    cr_assert_lt(device_distance(got, dwpe, time * channels), TOLERANCE);
    device_drop(backend, (void *)args.tokens);
    device_drop(backend, (void *)args.wte);
    device_drop(backend, args.out);
    device_drop(backend, (void *)grad.dout);
    void *const host[] = {wte, wpe, dout, got, tokens, out, dwte, dwpe};
    for (size_t at = 0; at < HX_COUNT(host); at++) {
        free(host[at]);
    }
}

Test(backend_tokens, embedding_gathers_and_scatters)
{
    device_each("embedding", embedding_holds);
}

static void unknown_tokens_are_refused(hx_backend_t *backend, hx_rng_t *rng)
{
    const int32_t bad[] = {-1, 4, INT32_MAX, INT32_MIN};
    float *const wte = random_floats(rng, 8);
    float *const table = put(backend, wte, 8);
    float *const out = put(backend, NULL, 4);
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        const int32_t tokens[] = {3, bad[at]};
        int32_t *const memory = device_put(backend, tokens, sizeof tokens);
        const hx_embedding_t args = {.batch = 1,
                                     .time = 2,
                                     .channels = 2,
                                     .vocab = 4,
                                     .tokens = memory,
                                     .wte = table,
                                     .out = out};
        const hx_embedding_grad_t grad = {.batch = 1,
                                          .time = 2,
                                          .channels = 2,
                                          .vocab = 4,
                                          .tokens = memory,
                                          .dout = out,
                                          .dtable = table};
        cr_assert_eq(backend->ops->embedding_forward(backend, 0, &args), HX_E_ARG);
        cr_assert_eq(backend->ops->embedding_backward_tokens(backend, 0, &grad), HX_E_ARG);
        device_drop(backend, memory);
    }
    float back[8];
    device_take(backend, back, table, 8);
    cr_assert_arr_eq(back, wte, sizeof back, "nothing was written");
    device_drop(backend, out);
    free(wte);
}

Test(backend_tokens, a_token_outside_the_vocabulary_is_refused)
{
    device_each("unknown tokens", unknown_tokens_are_refused);
}

// The gradient by formula: it is the definition in the header, not a derivation.
static double entropy_row(const float *logits, size_t vocab, int32_t target, double scale,
                          double *gradient)
{
    double top = -INFINITY;
    double sum = 0;
    for (size_t c = 0; c < vocab; c++) {
        top = fmax(top, (double)logits[c]);
    }
    for (size_t c = 0; c < vocab; c++) {
        sum += exp((double)logits[c] - top);
    }
    for (size_t c = 0; c < vocab && target >= 0; c++) {
        gradient[c] = scale * (exp((double)logits[c] - top) / sum - (c == (size_t)target ? 1 : 0));
    }
    return target < 0 ? 0 : log(sum) + top - (double)logits[target];
}

static void entropy_holds_of(hx_backend_t *backend, hx_rng_t *rng, size_t rows, size_t vocab)
{
    const size_t pitch = vocab + device_between(rng, 0, 5);
    const float scale = 1.0f / (float)rows;
    float *const logits = random_floats(rng, rows * pitch);
    float *const got = hx_new(rows * pitch, sizeof(float));
    int32_t *const targets = hx_new(rows, sizeof *targets);
    double *const losses = hx_new(rows, sizeof(double));
    double *const gradient = hx_new(rows * pitch, sizeof(double));
    for (size_t row = 0; row < rows; row++) {
        targets[row] = (int32_t)hx_rng_below(rng, vocab + 1) - 1;
        logits[row * pitch] += row % 3 == 0 ? 500.0f : 0.0f;
        losses[row] = entropy_row(logits + row * pitch, vocab, targets[row], (double)scale,
                                  gradient + row * pitch);
    }
    hx_cross_entropy_t args = {.rows = rows, .vocab = vocab, .pitch = pitch, .scale = scale};
    args.logits = put(backend, logits, rows * pitch);
    args.losses = put(backend, NULL, rows);
    args.targets = device_put(backend, targets, rows * sizeof *targets);
    cr_assert_eq(backend->ops->cross_entropy(backend, 0, &args), HX_OK);
    device_get(backend, got, args.losses, rows * sizeof(float));
    cr_assert_lt(device_distance(got, losses, rows), TOLERANCE);
    device_get(backend, got, args.logits, rows * pitch * sizeof(float));
    cr_assert_arr_eq(got, logits, rows * pitch * sizeof(float), "kept without gradient");
    args.gradient = true;
    cr_assert_eq(backend->ops->cross_entropy(backend, 0, &args), HX_OK);
    device_take(backend, got, args.losses, rows);
    cr_assert_lt(device_distance(got, losses, rows), TOLERANCE);
    device_take(backend, got, args.logits, rows * pitch);
    cr_assert_lt(device_distance(got, gradient, rows * pitch), TOLERANCE);
    device_drop(backend, (void *)args.targets);
    free(logits);
    free(got);
    free(targets);
    free(losses);
    free(gradient);
}

static void entropy_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    for (int round = 0; round < 6; round++) {
        entropy_holds_of(backend, rng, device_between(rng, 1, 40), device_between(rng, 1, 90));
    }
    entropy_holds_of(backend, rng, 9, 50000);
}

Test(backend_tokens, cross_entropy_and_its_gradient_in_place)
{
    device_each("entropy", entropy_holds);
}

static void bad_targets_are_refused(hx_backend_t *backend, hx_rng_t *rng)
{
    const int32_t targets[] = {2, 3};
    float *const logits = random_floats(rng, 6);
    float got[6];
    const hx_cross_entropy_t args = {.rows = 2,
                                     .vocab = 3,
                                     .pitch = 3,
                                     .logits = put(backend, logits, 6),
                                     .targets = device_put(backend, targets, sizeof targets),
                                     .losses = put(backend, NULL, 2),
                                     .gradient = true,
                                     .scale = 1};
    cr_assert_eq(backend->ops->cross_entropy(backend, 0, &args), HX_E_ARG);
    device_take(backend, got, args.logits, 6);
    cr_assert_arr_eq(got, logits, sizeof got);
    device_drop(backend, (void *)args.targets);
    device_drop(backend, args.losses);
    free(logits);
}

Test(backend_tokens, a_target_outside_the_vocabulary_is_refused)
{
    device_each("bad targets", bad_targets_are_refused);
}
