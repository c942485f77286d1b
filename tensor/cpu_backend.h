// cpu_backend - what the files of the CPU backend share: its state, its scratch memory, its
// threads.

#ifndef CPU_BACKEND_H
#define CPU_BACKEND_H

#include "tensor/cpu_kernels.h"

// Elements below which waking other threads costs more than it gains.
#define CPU_PARALLEL_MIN 32768

typedef struct {
    hx_backend_t base;  // First, so that a hx_backend_t * is one of these.
    int threads;
    const cpu_kernels_t *kernels;
    void *scratch;  // Grows to the largest need and stays.
    size_t scratch_size;
} cpu_backend_t;

cpu_backend_t *cpu_backend_of(hx_backend_t *backend);

// Memory for the length of one operation, aligned to 64. HX_E_NOMEM.
HX_MUST_USE hx_err_t cpu_scratch(cpu_backend_t *self, size_t size, void **memory_p);

// Makes the calling thread's OpenMP regions use the backend's number of threads.
void cpu_enter(const cpu_backend_t *self);
// Likewise OpenBLAS, whose number belongs to the process. (Inside a region it uses one thread
// anyway.)
void cpu_enter_blas(const cpu_backend_t *self);

// Runs a kernel over units 0 .. count - 1, cut evenly among the threads. `weight` is the elements
// of one unit. The cut depends on count, weight and thread count alone.
void cpu_run(const cpu_backend_t *self, cpu_kernel_fn kernel, const void *args, size_t count,
             size_t weight);

// The entries of the table that have files of their own.
hx_err_t cpu_gemm(hx_backend_t *backend, hx_stream_t stream, const hx_gemm_t *args);
hx_err_t cpu_attention_forward(hx_backend_t *backend, hx_stream_t stream,
                               const hx_attention_t *args);
hx_err_t cpu_attention_backward(hx_backend_t *backend, hx_stream_t stream,
                                const hx_attention_grad_t *args);
hx_err_t cpu_bias_add(hx_backend_t *backend, hx_stream_t stream, float *x, const float *bias,
                      size_t rows, size_t columns);
hx_err_t cpu_column_sum(hx_backend_t *backend, hx_stream_t stream, float *out, const float *x,
                        size_t rows, size_t columns);
hx_err_t cpu_norm_forward(hx_backend_t *backend, hx_stream_t stream, const hx_norm_t *args);
hx_err_t cpu_norm_backward_input(hx_backend_t *backend, hx_stream_t stream,
                                 const hx_norm_grad_t *args);
hx_err_t cpu_norm_backward_params(hx_backend_t *backend, hx_stream_t stream,
                                  const hx_norm_grad_t *args);
hx_err_t cpu_gelu_forward(hx_backend_t *backend, hx_stream_t stream, float *out, const float *x,
                          size_t count);
hx_err_t cpu_gelu_backward(hx_backend_t *backend, hx_stream_t stream, float *dx, const float *x,
                           const float *dout, size_t count);
hx_err_t cpu_embedding_forward(hx_backend_t *backend, hx_stream_t stream,
                               const hx_embedding_t *args);
hx_err_t cpu_embedding_backward_tokens(hx_backend_t *backend, hx_stream_t stream,
                                       const hx_embedding_grad_t *args);
hx_err_t cpu_embedding_backward_positions(hx_backend_t *backend, hx_stream_t stream,
                                          const hx_embedding_grad_t *args);
hx_err_t cpu_cross_entropy(hx_backend_t *backend, hx_stream_t stream,
                           const hx_cross_entropy_t *args);
hx_err_t cpu_add(hx_backend_t *backend, hx_stream_t stream, float *out, const float *a,
                 const float *b, size_t count);
hx_err_t cpu_axpy(hx_backend_t *backend, hx_stream_t stream, float *y, float alpha, const float *x,
                  size_t count);
hx_err_t cpu_scale(hx_backend_t *backend, hx_stream_t stream, float *x, float alpha, size_t count);
hx_err_t cpu_sumsq(hx_backend_t *backend, hx_stream_t stream, const float *x, size_t count,
                   double *sum);
hx_err_t cpu_finite(hx_backend_t *backend, hx_stream_t stream, hx_dtype_t dtype, const void *x,
                    size_t count, bool *finite);
hx_err_t cpu_adamw(hx_backend_t *backend, hx_stream_t stream, const hx_adamw_t *args);
hx_err_t cpu_sgd(hx_backend_t *backend, hx_stream_t stream, const hx_sgd_t *args);

#endif
