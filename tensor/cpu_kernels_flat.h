// cpu_kernels_flat - the exponential, and the kernels that go over a flat range of elements.
// Included by cpu_kernels_body.h alone, and compiled with it for each instruction set.

#ifndef CPU_KERNELS_FLAT_H
#define CPU_KERNELS_FLAT_H

#include "tensor/cpu_kernels.h"

#include <math.h>
#include <string.h>

#define LANES 16  // Partial sums kept apart in sumsq, the same for every instruction set.

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2, and exp(r) by its Taylor
// polynomial of degree 7 (truncation 5e-9). n is rounded by adding 1.5 * 2^23, whose low bits then
// hold it. ln 2 is in two parts, so that r is exact to float. Relative error below 2e-7. Below
// 2^-125 the result is 0; above FLT_MAX infinity; NaN stays NaN.
static inline float exp_of(float x)
{
    const float round = 12582912.0f;
    const float low = -86.64f;
    const float high = 88.72283f;
    const float clamped = x < low ? low : (x > high ? high : x);
    const float shifted = clamped * 1.44269504088896341f + round;
    const float n = shifted - round;
    const float r = (clamped - n * 0.693359375f) + n * 2.12194440054690583e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // 2^(n - 1), then twice: n may be 128.
    const uint32_t power = (bits_of(shifted) - bits_of(round) + 126u) << 23;
    const float y = p * float_of(power) * 2.0f;
    const float bounded = x > high ? INFINITY : y;
    return x < low ? 0.0f : bounded;
}

#define GELU_A 1.59576912160573071f    // 2 sqrt(2 / pi)
#define GELU_B 0.0713548162726002527f  // GELU_A * 0.044715

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)): one exponential, and no cancellation for negative u.
static void kernel_gelu_forward(const void *args_, size_t first, size_t end)
{
    const cpu_flat_t *const args = args_;
    const float *const x = args->x;
    float *const out = args->out;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        const float v = x[e];
        const float u = v * (GELU_A + GELU_B * v * v);
        out[e] = v / (1.0f + exp_of(-u));
    }
}

// With s = 1 / (1 + exp(-2u)): gelu'(x) = s + x s (1 - s) d(2u)/dx.
static void kernel_gelu_backward(const void *args_, size_t first, size_t end)
{
    const cpu_flat_t *const args = args_;
    const float *const x = args->x;
    const float *const dout = args->y;
    float *const dx = args->out;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        const float v = x[e];
        const float square = v * v;
        const float s = 1.0f / (1.0f + exp_of(-v * (GELU_A + GELU_B * square)));
        const float slope = GELU_A + 3.0f * GELU_B * square;
        dx[e] = dout[e] * (s + v * s * (1.0f - s) * slope);
    }
}

static void kernel_add(const void *args_, size_t first, size_t end)
{
    const cpu_flat_t *const args = args_;
    const float *const x = args->x;
    const float *const y = args->y;
    float *const out = args->out;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        out[e] = x[e] + y[e];
    }
}

static void kernel_axpy(const void *args_, size_t first, size_t end)
{
    const cpu_flat_t *const args = args_;
    const float *const x = args->x;
    float *const out = args->out;
    const float alpha = args->alpha;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        out[e] += alpha * x[e];
    }
}

static void kernel_scale(const void *args_, size_t first, size_t end)
{
    const cpu_flat_t *const args = args_;
    float *const out = args->out;
    const float alpha = args->alpha;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        out[e] *= alpha;
    }
}

static void kernel_exponential(const void *args_, size_t first, size_t end)
{
    const cpu_flat_t *const args = args_;
    const float *const x = args->x;
    float *const out = args->out;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        out[e] = exp_of(x[e]);
    }
}

static void kernel_adamw(const void *args_, size_t first, size_t end)
{
    const hx_adamw_t args = *(const hx_adamw_t *)args_;
    const float beta1 = (float)args.beta1;
    const float beta2 = (float)args.beta2;
    const float rest1 = (float)(1.0 - args.beta1);
    const float rest2 = (float)(1.0 - args.beta2);
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        const float g = args.gradient_scale * args.g[e];
        const float m = beta1 * args.m[e] + rest1 * g;
        const float v = beta2 * args.v[e] + rest2 * g * g;
        const float w = args.w[e];
        args.m_out[e] = m;
        args.v_out[e] = v;
        args.w_out[e] =
            w - args.step_size * m / (sqrtf(v * args.v_scale) + args.eps) - args.decay * w;
    }
}

static void kernel_sgd(const void *args_, size_t first, size_t end)
{
    const hx_sgd_t args = *(const hx_sgd_t *)args_;
    if (!args.m) {
#pragma omp simd
        for (size_t e = first; e < end; e++) {
            const float w = args.w[e];
            args.w_out[e] = w - args.step_size * args.gradient_scale * args.g[e] - args.decay * w;
        }
        return;
    }
    const float on_g = args.nesterov ? 1.0f : 0.0f;
    const float on_m = args.nesterov ? args.momentum : 1.0f;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        const float g = args.gradient_scale * args.g[e];
        const float m = args.momentum * args.m[e] + g;
        const float w = args.w[e];
        args.m_out[e] = m;
        args.w_out[e] = w - args.step_size * (on_g * g + on_m * m) - args.decay * w;
    }
}

// Infinities and NaN are those whose exponent bits are all set.
static void kernel_finite_f32(const void *args_, size_t first, size_t end)
{
    const cpu_finite_t *const args = args_;
    const uint32_t *const x = args->x;
    uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (size_t e = first; e < end; e++) {
        bad |= (x[e] & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    }
    if (bad) {
        __atomic_store_n(args->bad, true, __ATOMIC_RELAXED);
    }
}

static void kernel_finite_bf16(const void *args_, size_t first, size_t end)
{
    const cpu_finite_t *const args = args_;
    const uint16_t *const x = args->x;
    uint16_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (size_t e = first; e < end; e++) {
        bad = (uint16_t)(bad | ((x[e] & 0x7f80u) == 0x7f80u ? 1u : 0u));
    }
    if (bad) {
        __atomic_store_n(args->bad, true, __ATOMIC_RELAXED);
    }
}

// Nearest, ties to even: add half of what is cut off, less one when the kept part is even. A NaN is
// cut and made quiet, since rounding could turn it into an infinity.
static void kernel_bf16_from_f32(const void *args_, size_t first, size_t end)
{
    const cpu_convert_t *const args = args_;
    const uint32_t *const from = args->from;
    uint16_t *const to = args->to;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        const uint32_t bits = from[e];
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const uint32_t quiet = (bits >> 16) | 0x40u;
        to[e] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

static void kernel_f32_from_bf16(const void *args_, size_t first, size_t end)
{
    const cpu_convert_t *const args = args_;
    const uint16_t *const from = args->from;
    uint32_t *const to = args->to;
#pragma omp simd
    for (size_t e = first; e < end; e++) {
        to[e] = (uint32_t)from[e] << 16;
    }
}

// The lanes are fixed and a float's square is exact in double, so all variants give the same bits.
static void kernel_sumsq(const void *args_, size_t first, size_t end)
{
    const cpu_sumsq_t *const args = args_;
    for (size_t block = first; block < end; block++) {
        const size_t start = block * CPU_BLOCK_SIZE;
        const size_t count = HX_MIN((size_t)CPU_BLOCK_SIZE, args->count - start);
        const float *const x = args->x + start;
        double lanes[LANES] = {0};
        size_t e = 0;
        for (; e + LANES <= count; e += LANES) {
            for (size_t lane = 0; lane < LANES; lane++) {
                lanes[lane] += (double)x[e + lane] * (double)x[e + lane];
            }
        }
        for (; e < count; e++) {
            lanes[e % LANES] += (double)x[e] * (double)x[e];
        }
        double sum = 0;
        for (size_t lane = 0; lane < LANES; lane++) {
            sum += lanes[lane];
        }
        args->partials[block] = sum;
    }
}

#endif
