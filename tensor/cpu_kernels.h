// cpu_kernels - the table of vector kernels of the CPU backend; one table for each instruction set.
//
// A kernel works on a part of an operation, units `first` .. `end` - 1, in one thread; what a unit
// is stands beside it. Arguments are the operation's struct of hx_backend.h, or one from here.
// Units are independent: any cut gives the same bits.

#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include "tensor/hx_backend.h"

typedef void (*cpu_kernel_fn)(const void *args, size_t first, size_t end);

#define CPU_STRIP 64         // Columns that a column sum takes together.
#define CPU_BLOCK_SIZE 8192  // Elements of one partial sum of sumsq.

// Flat operations of one or two inputs: out, x, y and a factor, as far as the operation has them.
typedef struct {
    float *out;
    const float *x;
    const float *y;
    float alpha;
} cpu_flat_t;

// out = beta * add + bias (add and bias may each be NULL); also x += bias with add = out.
typedef struct {
    size_t columns;
    float beta;
    const float *add;
    size_t add_pitch;
    const float *bias;
    float *out;
    size_t out_pitch;
} cpu_prefill_t;

typedef struct {
    size_t rows;
    size_t columns;
    const float *x;
    float *out;
} cpu_column_sum_t;

typedef struct {
    size_t count;
    const float *x;
    double *partials;  // One for each block.
} cpu_sumsq_t;

typedef struct {
    const void *x;
    bool *bad;  // Set when an element of the range is not finite; never cleared.
} cpu_finite_t;

typedef struct {
    void *to;
    const void *from;
} cpu_convert_t;

// A block of attention scores: `rows` queries from position `query`, `columns` keys from position
// `key`.
typedef struct {
    size_t query;
    size_t key;
    size_t rows;
    size_t columns;
    float *scores;  // (rows, columns), becomes probabilities, not yet divided by their sum
    float *max;     // (rows), running
    float *sum;     // (rows), running
    float *out;     // (rows, width), rescaled when the maximum grows
    size_t out_pitch;
    size_t width;
} cpu_softmax_t;

typedef struct {
    size_t query;
    size_t key;
    size_t rows;
    size_t columns;
    float scale;
    const float *stats;  // (rows), log-sum-exp
    const float *delta;  // (rows), sum over channels of dout * out
    float *scores;       // (rows, columns), becomes probabilities
    float *dscores;      // (rows, columns), of probabilities, becomes of unscaled scores
} cpu_softmax_grad_t;

// out[r] = sum over c of x[r, c] * y[r, c].
typedef struct {
    size_t columns;
    const float *x;
    size_t x_pitch;
    const float *y;
    size_t y_pitch;
    float *out;
} cpu_row_dot_t;

typedef struct {
    const char *name;
    cpu_kernel_fn prefill;               // cpu_prefill_t, rows
    cpu_kernel_fn column_sum;            // cpu_column_sum_t, strips of CPU_STRIP columns
    cpu_kernel_fn norm_forward;          // hx_norm_t, rows
    cpu_kernel_fn norm_backward_input;   // hx_norm_grad_t, rows
    cpu_kernel_fn norm_backward_params;  // hx_norm_grad_t, strips
    cpu_kernel_fn gelu_forward;          // cpu_flat_t out, x: elements, as are those below
    cpu_kernel_fn gelu_backward;         // cpu_flat_t out, x, y = dout
    cpu_kernel_fn add;                   // cpu_flat_t out = x + y
    cpu_kernel_fn axpy;                  // cpu_flat_t out += alpha x
    cpu_kernel_fn scale;                 // cpu_flat_t out *= alpha
    cpu_kernel_fn exponential;           // cpu_flat_t out = exp(x); below 2^-125 it is 0
    cpu_kernel_fn adamw;                 // hx_adamw_t
    cpu_kernel_fn sgd;                   // hx_sgd_t
    cpu_kernel_fn finite_f32;            // cpu_finite_t
    cpu_kernel_fn finite_bf16;
    cpu_kernel_fn bf16_from_f32;  // cpu_convert_t
    cpu_kernel_fn f32_from_bf16;
    cpu_kernel_fn sumsq;                // cpu_sumsq_t, blocks of CPU_BLOCK_SIZE
    cpu_kernel_fn embedding_forward;    // hx_embedding_t, rows of (batch, time)
    cpu_kernel_fn embedding_tokens;     // hx_embedding_grad_t, strips
    cpu_kernel_fn embedding_positions;  // hx_embedding_grad_t, positions
    cpu_kernel_fn cross_entropy;        // hx_cross_entropy_t, rows
    cpu_kernel_fn softmax;              // cpu_softmax_t, rows
    cpu_kernel_fn softmax_grad;         // cpu_softmax_grad_t, rows
    cpu_kernel_fn row_dot;              // cpu_row_dot_t, rows
} cpu_kernels_t;

extern const cpu_kernels_t cpu_kernels_baseline;
#if defined(__x86_64__)
extern const cpu_kernels_t cpu_kernels_avx2;
extern const cpu_kernels_t cpu_kernels_avx512;
#endif

#endif
