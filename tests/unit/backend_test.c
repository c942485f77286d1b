// backend_test - memory, products and flat operations of a backend against loops in double.

#include "tensor/cpu_kernels.h"
#include "tensor/hx_backend.h"
#include "tests/support/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 2e-6
#define LARGE 150000  // Elements: enough for several threads.

static float *floats(size_t count)
{
    return hx_new(count, sizeof(float));
}

static void memory_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t sizes[] = {0, 1, 63, 4096, 5000001};
    for (size_t at = 0; at < HX_COUNT(sizes); at++) {
        const size_t size = sizes[at];
        uint8_t *const host = hx_new(size, 1);
        uint8_t *const back = hx_new(size, 1);
        for (size_t e = 0; e < size; e++) {
            host[e] = (uint8_t)hx_rng_next(rng);
        }
        void *first = device_put(backend, host, size);
        void *const second = device_put(backend, NULL, size);
        cr_assert_eq((uintptr_t)first % 64, 0);
        cr_assert_eq(backend->ops->copy(backend, 0, second, first, size), HX_OK);
        device_get(backend, back, second, size);
        cr_assert_arr_eq(back, host, size);
        device_drop(backend, second);
        backend->ops->release(backend, &first);
        cr_assert_null(first);
        backend->ops->release(backend, &first);
        free(host);
        free(back);
    }
}

Test(backend, memory_goes_there_and_back)
{
    device_each("memory", memory_holds);
}

static void too_much_is_refused(hx_backend_t *backend, hx_rng_t *rng)
{
    (void)rng;
    void *memory = backend;
    cr_assert_eq(backend->ops->alloc(backend, SIZE_MAX, &memory), HX_E_NOMEM);
    cr_assert_eq(backend->ops->alloc(backend, SIZE_MAX / 4, &memory), HX_E_NOMEM);
    cr_assert_eq(memory, backend, "a failed alloc must leave its output alone");
}

Test(backend, memory_that_is_not_there_is_refused)
{
    device_each("refused", too_much_is_refused);
}

static void fill_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t count = device_between(rng, 1, LARGE);
    uint32_t *const words = hx_new(count, 4);
    void *const memory = device_put(backend, NULL, count * 4);
    const float value = 1.5f;
    uint32_t wanted = 0;
    memcpy(&wanted, &value, sizeof wanted);
    cr_assert_eq(backend->ops->fill(backend, 0, HX_F32, memory, 1.5, count), HX_OK);
    device_get(backend, words, memory, count * 4);
    for (size_t e = 0; e < count; e++) {
        cr_assert_eq(words[e], wanted);
    }
    cr_assert_eq(backend->ops->fill(backend, 0, HX_I32, memory, -7, count), HX_OK);
    device_get(backend, words, memory, count * 4);
    for (size_t e = 0; e < count; e++) {
        cr_assert_eq((int32_t)words[e], -7);
    }
    // Two bf16 of 1.5 fill each word but the last, which keeps what it held.
    cr_assert_eq(backend->ops->fill(backend, 0, HX_BF16, memory, 1.5, 2 * count - 2), HX_OK);
    device_get(backend, words, memory, count * 4);
    for (size_t e = 0; e + 1 < count; e++) {
        cr_assert_eq(words[e], 0x3fc03fc0u);
    }
    cr_assert_eq((int32_t)words[count - 1], -7);
    device_drop(backend, memory);
    free(words);
}

Test(backend, fill_sets_every_element)
{
    device_each("fill", fill_holds);
}

// What the bits of a float are as bf16: the nearer of its two neighbours, found by comparing.
static uint16_t nearest_bf16(uint32_t bits)
{
    const uint32_t low = bits & 0xffff0000u;
    const uint32_t rest = bits & 0xffffu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (bits >> 16 & 1) != 0);
    return (uint16_t)((low >> 16) + (up ? 1 : 0));
}

static void convert_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t count = 65536;
    uint16_t *const halves = hx_new(count, 2);
    uint32_t *const words = hx_new(count, 4);
    for (size_t e = 0; e < count; e++) {
        halves[e] = (uint16_t)e;
    }
    void *const half = device_put(backend, halves, count * 2);
    void *const word = device_put(backend, NULL, count * 4);
    cr_assert_eq(backend->ops->convert(backend, 0, HX_F32, word, HX_BF16, half, count), HX_OK);
    device_get(backend, words, word, count * 4);
    for (size_t e = 0; e < count; e++) {
        cr_assert_eq(words[e], (uint32_t)e << 16);
    }
    for (size_t e = 0; e < count; e++) {
        words[e] = (uint32_t)hx_rng_next(rng);
    }
    const uint32_t chosen[] = {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f800000u, 0x7f7fffffu,
                               0x7f800001u, 0xffc00000u, 0x7fffffffu, 0x80000000u, 0x00000001u};
    memcpy(words, chosen, sizeof chosen);
    cr_assert_eq(backend->ops->upload(backend, 0, word, words, count * 4), HX_OK);
    cr_assert_eq(backend->ops->convert(backend, 0, HX_BF16, half, HX_F32, word, count), HX_OK);
    device_get(backend, halves, half, count * 2);
    for (size_t e = 0; e < count; e++) {
        if ((words[e] & 0x7fffffffu) > 0x7f800000u) {
            cr_assert((halves[e] & 0x7fffu) > 0x7f80u, "a NaN stays one");
        } else {
            cr_assert_eq(halves[e], nearest_bf16(words[e]), "of %08x", words[e]);
        }
    }
    cr_assert_eq(backend->ops->convert(backend, 0, HX_F32, word, HX_F32, word, 0), HX_OK);
    cr_assert_eq(backend->ops->convert(backend, 0, HX_F32, word, HX_I32, half, 1),
                 HX_E_UNSUPPORTED);
    device_drop(backend, half);
    device_drop(backend, word);
    free(halves);
    free(words);
}

Test(backend, conversion_to_bf16_rounds_to_nearest_even)
{
    device_each("convert", convert_holds);
}

// A random product: shapes, pitches and options in `args`, host operands beside it.
typedef struct {
    hx_gemm_t args;
    float *a;
    float *b;
    float *add;
    float *bias;
    float *out;
    size_t a_count;
    size_t b_count;
    size_t out_count;
} product_t;

static size_t a_rows(const hx_gemm_t *args)
{
    return args->a_transposed ? args->inner : args->rows;
}

static size_t b_rows(const hx_gemm_t *args)
{
    return args->b_transposed ? args->columns : args->inner;
}

static product_t random_product(hx_rng_t *rng)
{
    const float factors[] = {0.0f, 1.0f, -0.5f};
    hx_gemm_t args = {
        .dtype = HX_F32,
        .a_transposed = hx_rng_below(rng, 2) != 0,
        .b_transposed = hx_rng_below(rng, 2) != 0,
        .rows = device_between(rng, 1, 70),
        .columns = device_between(rng, 1, 70),
        .inner = device_between(rng, 1, 70),
        .alpha = factors[1 + hx_rng_below(rng, 2)],
        .beta = factors[hx_rng_below(rng, 3)],
        .batches = hx_rng_below(rng, 3) == 0 ? device_between(rng, 2, 5) : hx_rng_below(rng, 2),
    };
    args.a_pitch = (args.a_transposed ? args.rows : args.inner) + hx_rng_below(rng, 4);
    args.b_pitch = (args.b_transposed ? args.inner : args.columns) + hx_rng_below(rng, 4);
    args.add_pitch = args.columns + hx_rng_below(rng, 4);
    args.out_pitch = args.columns + hx_rng_below(rng, 4);
    const size_t batches = HX_MAX(args.batches, (size_t)1);
    args.a_step = a_rows(&args) * args.a_pitch;
    args.b_step = hx_rng_below(rng, 2) ? b_rows(&args) * args.b_pitch : 0;
    args.out_step = args.rows * HX_MAX(args.out_pitch, args.add_pitch);
    product_t product = {
        .args = args,
        .a_count = batches * args.a_step,
        .b_count = batches * b_rows(&args) * args.b_pitch,
        .out_count = batches * args.out_step,
    };
    product.a = floats(product.a_count);
    product.b = floats(product.b_count);
    product.add = floats(product.out_count);
    product.bias = floats(args.columns);
    product.out = floats(product.out_count);
    device_random(rng, product.a, product.a_count);
    device_random(rng, product.b, product.b_count);
    device_random(rng, product.add, product.out_count);
    device_random(rng, product.bias, args.columns);
    device_random(rng, product.out, product.out_count);
    return product;
}

static void drop_product(product_t *product)
{
    free(product->a);
    free(product->b);
    free(product->add);
    free(product->bias);
    free(product->out);
}

// The whole output, gaps included, as a plain loop makes it.
static double *wanted_product(const product_t *product, bool with_add, bool with_bias)
{
    const hx_gemm_t *const args = &product->args;
    double *const wanted = hx_new(product->out_count, sizeof(double));
    for (size_t e = 0; e < product->out_count; e++) {
        wanted[e] = (double)product->out[e];
    }
    for (size_t batch = 0; batch < HX_MAX(args->batches, (size_t)1); batch++) {
        const float *const a = product->a + batch * args->a_step;
        const float *const b = product->b + batch * args->b_step;
        for (size_t r = 0; r < args->rows; r++) {
            for (size_t c = 0; c < args->columns; c++) {
                const size_t at = batch * args->out_step + r * args->out_pitch + c;
                double sum = 0;
                for (size_t k = 0; k < args->inner; k++) {
                    sum +=
                        (double)
                            a[args->a_transposed ? k * args->a_pitch + r : r * args->a_pitch + k] *
                        (double)
                            b[args->b_transposed ? c * args->b_pitch + k : k * args->b_pitch + c];
                }
                const float old =
                    with_add ? product->add[batch * args->out_step + r * args->add_pitch + c]
                             : product->out[at];
                wanted[at] = (double)args->alpha * sum +
                             (args->beta != 0.0f ? (double)args->beta * (double)old : 0.0) +
                             (with_bias ? (double)product->bias[c] : 0.0);
            }
        }
    }
    return wanted;
}

static void gemm_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    for (int round = 0; round < 60; round++) {
        product_t product = random_product(rng);
        hx_gemm_t args = product.args;
        const bool with_add = hx_rng_below(rng, 2) != 0;
        const bool with_bias = hx_rng_below(rng, 2) != 0;
        double *const wanted = wanted_product(&product, with_add, with_bias);
        void *const a = device_put(backend, product.a, product.a_count * sizeof(float));
        void *const b = device_put(backend, product.b, product.b_count * sizeof(float));
        float *const add = device_put(backend, product.add, product.out_count * sizeof(float));
        float *const bias = device_put(backend, product.bias, args.columns * sizeof(float));
        float *const out = device_put(backend, product.out, product.out_count * sizeof(float));
        args.a = a;
        args.b = b;
        args.add = with_add ? add : NULL;
        args.bias = with_bias ? bias : NULL;
        args.out = out;
        cr_assert_eq(backend->ops->gemm(backend, 0, &args), HX_OK);
        device_take(backend, product.out, out, product.out_count);
        cr_assert_lt(device_distance(product.out, wanted, product.out_count), TOLERANCE, "round %d",
                     round);
        device_drop(backend, a);
        device_drop(backend, b);
        device_drop(backend, add);
        device_drop(backend, bias);
        drop_product(&product);
        free(wanted);
    }
}

Test(backend, gemm_equals_a_loop_for_every_option)
{
    device_each("gemm", gemm_holds);
}

static void gemm_bf16_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    for (int round = 0; round < 20; round++) {
        product_t product = random_product(rng);
        hx_gemm_t args = product.args;
        args.dtype = HX_BF16;
        void *const wide = device_put(backend, product.a, product.a_count * sizeof(float));
        void *const wide_b = device_put(backend, product.b, product.b_count * sizeof(float));
        void *const a = device_put(backend, NULL, product.a_count * 2);
        void *const b = device_put(backend, NULL, product.b_count * 2);
        cr_assert_eq(backend->ops->convert(backend, 0, HX_BF16, a, HX_F32, wide, product.a_count),
                     HX_OK);
        cr_assert_eq(backend->ops->convert(backend, 0, HX_BF16, b, HX_F32, wide_b, product.b_count),
                     HX_OK);
        // The loop works on what bf16 kept of the operands.
        cr_assert_eq(backend->ops->convert(backend, 0, HX_F32, wide, HX_BF16, a, product.a_count),
                     HX_OK);
        cr_assert_eq(backend->ops->convert(backend, 0, HX_F32, wide_b, HX_BF16, b, product.b_count),
                     HX_OK);
        device_take(backend, product.a, wide, product.a_count);
        device_take(backend, product.b, wide_b, product.b_count);
        double *const wanted = wanted_product(&product, false, false);
        float *const out = device_put(backend, product.out, product.out_count * sizeof(float));
        args.a = a;
        args.b = b;
        args.out = out;
        cr_assert_eq(backend->ops->gemm(backend, 0, &args), HX_OK);
        args.dtype = HX_I32;
        cr_assert_eq(backend->ops->gemm(backend, 0, &args), HX_E_UNSUPPORTED);
        device_take(backend, product.out, out, product.out_count);
        cr_assert_lt(device_distance(product.out, wanted, product.out_count), TOLERANCE);
        device_drop(backend, a);
        device_drop(backend, b);
        drop_product(&product);
        free(wanted);
    }
}

Test(backend, gemm_takes_bf16_operands)
{
    device_each("gemm bf16", gemm_bf16_holds);
}

static void old_nan_is_not_read(hx_backend_t *backend, hx_rng_t *rng)
{
    (void)rng;
    float values[] = {1, 2, 3, NAN};
    float *const x = device_put(backend, values, sizeof values);
    hx_gemm_t args = {.dtype = HX_F32,
                      .rows = 1,
                      .columns = 1,
                      .inner = 3,
                      .alpha = 1,
                      .a = x,
                      .a_pitch = 3,
                      .b = x,
                      .b_pitch = 1,
                      .out = x + 3,
                      .out_pitch = 1};
    cr_assert_eq(backend->ops->gemm(backend, 0, &args), HX_OK);
    device_get(backend, values, x, sizeof values);
    cr_assert_eq(values[3], 14.0f);
    // With a bias the output is written before the product: neither then may old values count.
    values[3] = NAN;
    cr_assert_eq(backend->ops->upload(backend, 0, x, values, sizeof values), HX_OK);
    args.bias = x + 1;
    cr_assert_eq(backend->ops->gemm(backend, 0, &args), HX_OK);
    device_take(backend, values, x, 4);
    cr_assert_eq(values[3], 16.0f);
}

Test(backend, gemm_with_beta_zero_does_not_read_its_output)
{
    device_each("beta zero", old_nan_is_not_read);
}

static void rows_hold(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t rows = device_between(rng, 1, 700);
    const size_t columns = device_between(rng, 1, 300);
    const size_t count = rows * columns;
    float *const x = floats(count);
    float *const bias = floats(columns);
    double *const sums = hx_new(columns, sizeof(double));
    double *const added = hx_new(count, sizeof(double));
    device_random(rng, x, count);
    device_random(rng, bias, columns);
    for (size_t c = 0; c < columns; c++) {
        sums[c] = (double)bias[c];
    }
    for (size_t e = 0; e < count; e++) {
        sums[e % columns] += (double)x[e];
        added[e] = (double)x[e] + (double)bias[e % columns];
    }
    float *const memory = device_put(backend, x, count * sizeof(float));
    float *const bias_memory = device_put(backend, bias, columns * sizeof(float));
    float *const sum_memory = device_put(backend, bias, columns * sizeof(float));
    cr_assert_eq(backend->ops->column_sum(backend, 0, sum_memory, memory, rows, columns), HX_OK);
    cr_assert_eq(backend->ops->bias_add(backend, 0, memory, bias_memory, rows, columns), HX_OK);
    device_take(backend, bias, sum_memory, columns);
    device_take(backend, x, memory, count);
    cr_assert_lt(device_distance(bias, sums, columns), TOLERANCE);
    cr_assert_lt(device_distance(x, added, count), TOLERANCE);
    device_drop(backend, bias_memory);
    free(x);
    free(bias);
    free(sums);
    free(added);
}

static void rows_hold_often(hx_backend_t *backend, hx_rng_t *rng)
{
    for (int round = 0; round < 8; round++) {
        rows_hold(backend, rng);
    }
}

Test(backend, bias_is_added_and_its_gradient_summed)
{
    device_each("rows", rows_hold_often);
}

static void flat_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t counts[] = {0, 1, 17, 1000, device_between(rng, LARGE / 2, LARGE)};
    for (size_t at = 0; at < HX_COUNT(counts); at++) {
        const size_t count = counts[at];
        float *const x = floats(count);
        float *const y = floats(count);
        double *const wanted = hx_new(count, sizeof(double));
        device_random(rng, x, count);
        device_random(rng, y, count);
        for (size_t e = 0; e < count; e++) {
            wanted[e] = -2.0 * (((double)x[e] + (double)y[e]) + 0.5 * (double)x[e]);
        }
        float *const x_memory = device_put(backend, x, count * sizeof(float));
        float *const y_memory = device_put(backend, y, count * sizeof(float));
        cr_assert_eq(backend->ops->add(backend, 0, y_memory, x_memory, y_memory, count), HX_OK);
        cr_assert_eq(backend->ops->axpy(backend, 0, y_memory, 0.5f, x_memory, count), HX_OK);
        cr_assert_eq(backend->ops->scale(backend, 0, y_memory, -2.0f, count), HX_OK);
        device_take(backend, y, y_memory, count);
        cr_assert_lt(device_distance(y, wanted, count), TOLERANCE);
        device_drop(backend, x_memory);
        free(x);
        free(y);
        free(wanted);
    }
}

Test(backend, add_axpy_and_scale_equal_loops)
{
    device_each("flat", flat_holds);
}

static void sumsq_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    static double first_sum;
    const size_t count = LARGE + 13;
    float *const x = floats(count);
    device_random(rng, x, count);
    double wanted = 0;
    for (size_t e = 0; e < count; e++) {
        wanted += (double)x[e] * (double)x[e];
    }
    float *const memory = device_put(backend, x, count * sizeof(float));
    double sum = 0;
    cr_assert_eq(backend->ops->sumsq(backend, 0, memory, count, &sum), HX_OK);
    cr_assert_float_eq(sum, wanted, 1e-12 * wanted);
    first_sum = first_sum > 0 ? first_sum : sum;
    cr_assert_eq(sum, first_sum, "the same bits for any threads and variant");
    cr_assert_eq(backend->ops->sumsq(backend, 0, memory, 0, &sum), HX_OK);
    cr_assert_eq(sum, 0.0);
    device_drop(backend, memory);
    free(x);
}

Test(backend, sum_of_squares_has_the_same_bits_for_any_threads)
{
    device_each("sumsq", sumsq_holds);
}

static void finite_holds(hx_backend_t *backend, hx_rng_t *rng)
{
    const size_t count = LARGE;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float *const x = floats(count);
    uint16_t *const halves = hx_new(count, 2);
    device_random(rng, x, count);
    x[5] = 3.4e38f;
    halves[7] = 0x7f7f;
    bool finite = false;
    float *const memory = device_put(backend, x, count * sizeof(float));
    uint16_t *const half_memory = device_put(backend, halves, count * 2);
    cr_assert_eq(backend->ops->finite(backend, 0, HX_F32, memory, count, &finite), HX_OK);
    cr_assert(finite);
    cr_assert_eq(backend->ops->finite(backend, 0, HX_BF16, half_memory, count, &finite), HX_OK);
    cr_assert(finite);
    cr_assert_eq(backend->ops->finite(backend, 0, HX_I32, memory, count, &finite),
                 HX_E_UNSUPPORTED);
    for (int round = 0; round < 12; round++) {
        const size_t where = round == 0 ? 0 : round == 1 ? count - 1 : hx_rng_below(rng, count);
        const float value = bad[round % 4];
        uint32_t bits = 0;
        memcpy(&bits, &value, sizeof bits);
        const uint16_t half = (uint16_t)(bits >> 16);
        const uint16_t good = 0;
        backend->ops->upload(backend, 0, memory + where, &value, sizeof value);
        backend->ops->upload(backend, 0, half_memory + where, &half, sizeof half);
        cr_assert_eq(backend->ops->finite(backend, 0, HX_F32, memory, count, &finite), HX_OK);
        cr_assert_not(finite, "at %zu", where);
        cr_assert_eq(backend->ops->finite(backend, 0, HX_BF16, half_memory, count, &finite), HX_OK);
        cr_assert_not(finite, "at %zu", where);
        backend->ops->upload(backend, 0, memory + where, &x[where], sizeof value);
        backend->ops->upload(backend, 0, half_memory + where, &good, sizeof good);
        backend->ops->sync(backend, 0);
    }
    device_drop(backend, memory);
    device_drop(backend, half_memory);
    free(x);
    free(halves);
}

Test(backend, one_bad_element_anywhere_is_found)
{
    device_each("finite", finite_holds);
}

// Relative error of every 13th float from the lowest to the highest power, and the edges.
static void exponential_holds(const cpu_kernels_t *kernels)
{
    double worst = 0;
    for (double at = -86.0; at < 88.7; at += 0.00137) {
        const float x = (float)at;
        float y = 0;
        kernels->exponential(&(cpu_flat_t){.out = &y, .x = &x}, 0, 1);
        worst = fmax(worst, fabs((double)y / exp((double)x) - 1.0));
    }
    cr_assert_lt(worst, 2.5e-7, "%s: %g", kernels->name, worst);
    const float edges[] = {-INFINITY, -1e30f, -90.0f, 0.0f, 89.0f, INFINITY, NAN};
    float got[HX_COUNT(edges)];
    kernels->exponential(&(cpu_flat_t){.out = got, .x = edges}, 0, HX_COUNT(edges));
    cr_assert(got[0] == 0 && got[1] == 0 && got[2] == 0 && got[3] == 1.0f);
    cr_assert(isinf(got[4]) && isinf(got[5]) && isnan(got[6]));
}

Test(backend, exponential_is_right_to_two_units)
{
    hx_backend_t *backend = hx_backend_cpu_new(1);
    exponential_holds(&cpu_kernels_baseline);
#if defined(__x86_64__)
    if (hx_backend_cpu_variant(backend, 1) == HX_OK) {
        exponential_holds(&cpu_kernels_avx2);
    }
    if (hx_backend_cpu_variant(backend, 2) == HX_OK) {
        exponential_holds(&cpu_kernels_avx512);
    }
#endif
    hx_backend_destroy(&backend);
    cr_assert_null(backend);
}
