// hx_backend - the table of operations on numbers: memory, matrix products, kernels, reductions.
//
// A backend is one device. Everything that computes goes through its table, so that the CPU version
// is the oracle of any other. The table has no optional entries: a backend that lacks an element
// type answers HX_E_UNSUPPORTED and has done nothing.
//
// Rules that hold for every entry, unless it says otherwise:
// - Memory is a plain address of the device (on the CPU an ordinary pointer; elsewhere never to be
//   read by the caller, but arithmetic on it is fine). The caller owns it; nothing is kept after
//   the call, except that an asynchronous device reads and writes it until `sync` of that stream.
// - The structs of arguments are borrowed for the call. Matrices are row-major. A pitch is the
//   number of elements from one row to the next. Counts are in elements, sizes in bytes.
// - Work on one stream runs in order. The CPU runs it within the call, and a call may block for as
//   long as the work takes. An asynchronous device reports a failure of earlier work at `sync`.
// - Outputs do not overlap inputs, unless the entry says "may be the same".
// - Operations are deterministic: same inputs, same thread count, same bits.
// - HX_E_UNSUPPORTED: element type not available here. HX_E_NOMEM: scratch memory could not be had.
//   HX_E_IO: the device failed (never on the CPU).  Arguments that are our own mistakes assert.
// - A backend serves one caller at a time; make one for each job thread.

#ifndef HX_BACKEND_H
#define HX_BACKEND_H

#include "tensor/hx.h"

typedef enum { HX_F32, HX_BF16, HX_I32 } hx_dtype_t;

// Bytes of one element.
size_t hx_dtype_size(hx_dtype_t dtype);
// "f32", "bf16", "i32".
const char *hx_dtype_name(hx_dtype_t dtype);

// An index below `streams_count`; 0 always exists.
typedef int hx_stream_t;

typedef struct hx_backend hx_backend_t;

// out = alpha * op(a) op(b) + beta * add + bias, for each of `batches` products.
// op(a) is (rows, inner) and op(b) is (inner, columns); a transposed operand is stored the other
// way round. `a` and `b` are of `dtype` (HX_F32 or HX_BF16), all else is f32 and sums are in f32.
typedef struct {
    hx_dtype_t dtype;
    bool a_transposed;
    bool b_transposed;
    size_t rows;
    size_t columns;
    size_t inner;
    float alpha;
    const void *a;
    size_t a_pitch;
    const void *b;
    size_t b_pitch;
    float beta;        // 0: `add` is not read, whatever it holds.
    const float *add;  // (rows, columns); NULL: `out` itself.
    size_t add_pitch;
    const float *bias;  // (columns), added to each row; NULL: none.
    float *out;         // (rows, columns)
    size_t out_pitch;
    size_t batches;  // 0 counts as 1.
    size_t a_step;   // Elements from one product's operand to the next; 0 shares it.
    size_t b_step;
    size_t out_step;  // Also the step of `add`.
} hx_gemm_t;

// Layer normalisation over the columns (Ba, Kiros, Hinton 2016):
// out = (x - mean) * rstd * gain + shift, rstd = 1 / sqrt(variance + eps).
typedef struct {
    size_t rows;
    size_t columns;
    float eps;
    const float *x;      // (rows, columns)
    const float *gain;   // (columns)
    const float *shift;  // (columns)
    float *out;          // (rows, columns)
    float *mean;         // (rows), kept for backward
    float *rstd;         // (rows), kept for backward
} hx_norm_t;

// Both halves of its backward read the same struct; each writes only its own outputs.
typedef struct {
    size_t rows;
    size_t columns;
    const float *x;     // (rows, columns)
    const float *gain;  // (columns); only for the input gradient
    const float *mean;  // (rows)
    const float *rstd;  // (rows)
    const float *dout;  // (rows, columns)
    bool accumulate;    // dx += instead of dx =; for a residual path that has its gradient already.
    float *dx;          // (rows, columns); input half. May be the same as dout.
    float *dgain;       // (columns), +=; parameter half
    float *dshift;      // (columns), +=; parameter half
} hx_norm_grad_t;

// Causal attention over a packed qkv: channels 0..C-1 of a position are q, then k, then v; head h
// has channels h * C / heads onwards of each. Scores are scaled by 1 / sqrt(C / heads). Computed in
// blocks with a running softmax (Dao et al. 2022, FlashAttention); only the log-sum-exp is kept.
typedef struct {
    size_t batch;
    size_t time;
    size_t heads;
    size_t channels;   // A multiple of heads.
    const float *qkv;  // (batch, time, 3 * channels)
    float *out;        // (batch, time, channels)
    float *stats;      // (batch, heads, time), log-sum-exp of the scaled scores, kept for backward
} hx_attention_t;

typedef struct {
    size_t batch;
    size_t time;
    size_t heads;
    size_t channels;
    const float *qkv;    // (batch, time, 3 * channels)
    const float *out;    // (batch, time, channels), of the forward
    const float *stats;  // (batch, heads, time), of the forward
    const float *dout;   // (batch, time, channels)
    float *dqkv;         // (batch, time, 3 * channels), overwritten
} hx_attention_grad_t;

// out[b, t] = wte[tokens[b, t]] + wpe[t].
typedef struct {
    size_t batch;
    size_t time;
    size_t channels;
    size_t vocab;
    const int32_t *tokens;  // (batch, time), each in 0 .. vocab - 1
    const float *wte;       // (vocab, channels)
    const float *wpe;       // (at least time, channels); NULL: no positions
    float *out;             // (batch, time, channels)
} hx_embedding_t;

typedef struct {
    size_t batch;
    size_t time;
    size_t channels;
    size_t vocab;
    const int32_t *tokens;  // (batch, time); not read for positions
    const float *dout;      // (batch, time, channels)
    float *dtable;          // dwte (vocab, channels) or dwpe (time, channels), +=
} hx_embedding_grad_t;

// losses[r] = -log softmax(logits[r])[targets[r]]. With `gradient`, logits become their own
// gradient, (softmax - one at the target) * scale, and columns from vocab to pitch become 0.
typedef struct {
    size_t rows;
    size_t vocab;
    size_t pitch;            // At least vocab.
    float *logits;           // (rows, pitch), in place
    const int32_t *targets;  // (rows); a negative one: the row has loss 0 and gradient 0
    float *losses;           // (rows)
    bool gradient;
    float scale;  // For a mean over n tokens: 1 / n.
} hx_cross_entropy_t;

// One step of AdamW over a flat range, formula in optim.h. Outputs may be the same as inputs.
typedef struct {
    size_t count;
    const float *w;
    const float *m;
    const float *v;
    const float *g;
    float *w_out;
    float *m_out;
    float *v_out;
    double beta1;
    double beta2;
    float eps;
    float gradient_scale;  // Multiplies g before anything else (clipping, weights).
    float step_size;       // lr * scale / (1 - beta1^step)
    float v_scale;         // 1 / (1 - beta2^step)
    float decay;           // lr * scale * weight_decay
} hx_adamw_t;

// One step of SGD over a flat range, formula in optim.h. Outputs may be the same as inputs.
typedef struct {
    size_t count;
    const float *w;
    const float *m;  // NULL when momentum is 0
    const float *g;
    float *w_out;
    float *m_out;  // NULL when momentum is 0
    float momentum;
    bool nesterov;
    float gradient_scale;
    float step_size;  // lr * scale
    float decay;      // lr * scale * weight_decay
} hx_sgd_t;

typedef struct {
    // `size` bytes (at least 1), aligned to 64, contents undefined. May block.
    // HX_E_NOMEM: `*memory_p` is untouched.
    hx_err_t (*alloc)(hx_backend_t *self, size_t size, void **memory_p);
    // Gives memory back and sets `*memory_p` to NULL; NULL inside is accepted. Waits for work on
    // it.
    void (*release)(hx_backend_t *self, void **memory_p);
    // Host to device, device to host, device to device. The host side of an upload may be reused
    // and that of a download read only after `sync`. Size 0 is accepted.
    hx_err_t (*upload)(hx_backend_t *self, hx_stream_t stream, void *to, const void *from,
                       size_t size);
    hx_err_t (*download)(hx_backend_t *self, hx_stream_t stream, void *to, const void *from,
                         size_t size);
    hx_err_t (*copy)(hx_backend_t *self, hx_stream_t stream, void *to, const void *from,
                     size_t size);
    // Blocks until all work of the stream is done. HX_E_IO: some of it failed.
    hx_err_t (*sync)(hx_backend_t *self, hx_stream_t stream);
    // Sets each element to `value`, rounded to the type.
    hx_err_t (*fill)(hx_backend_t *self, hx_stream_t stream, hx_dtype_t dtype, void *to,
                     double value, size_t count);
    // f32 to bf16 (nearest, ties to even; NaN stays NaN), bf16 to f32 (exact), or a type to itself.
    hx_err_t (*convert)(hx_backend_t *self, hx_stream_t stream, hx_dtype_t to_dtype, void *to,
                        hx_dtype_t from_dtype, const void *from, size_t count);

    hx_err_t (*gemm)(hx_backend_t *self, hx_stream_t stream, const hx_gemm_t *args);
    // x[r, c] += bias[c].
    hx_err_t (*bias_add)(hx_backend_t *self, hx_stream_t stream, float *x, const float *bias,
                         size_t rows, size_t columns);
    // out[c] += sum over r of x[r, c]: the gradient of a bias.
    hx_err_t (*column_sum)(hx_backend_t *self, hx_stream_t stream, float *out, const float *x,
                           size_t rows, size_t columns);

    hx_err_t (*norm_forward)(hx_backend_t *self, hx_stream_t stream, const hx_norm_t *args);
    hx_err_t (*norm_backward_input)(hx_backend_t *self, hx_stream_t stream,
                                    const hx_norm_grad_t *args);
    hx_err_t (*norm_backward_params)(hx_backend_t *self, hx_stream_t stream,
                                     const hx_norm_grad_t *args);

    // out = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks, Gimpel 2016).
    // `out` and `x` may be the same.
    hx_err_t (*gelu_forward)(hx_backend_t *self, hx_stream_t stream, float *out, const float *x,
                             size_t count);
    // dx = dout * gelu'(x). `dx` may be the same as `dout` or `x`.
    hx_err_t (*gelu_backward)(hx_backend_t *self, hx_stream_t stream, float *dx, const float *x,
                              const float *dout, size_t count);

    hx_err_t (*attention_forward)(hx_backend_t *self, hx_stream_t stream,
                                  const hx_attention_t *args);
    hx_err_t (*attention_backward)(hx_backend_t *self, hx_stream_t stream,
                                   const hx_attention_grad_t *args);

    // HX_E_ARG: a token outside the vocabulary; the CPU has then written nothing. A device that
    // cannot look at them in time reads row 0 instead and reports HX_E_ARG at `sync`.
    hx_err_t (*embedding_forward)(hx_backend_t *self, hx_stream_t stream,
                                  const hx_embedding_t *args);
    // dtable[tokens[b, t]] += dout[b, t], in the order of (b, t). HX_E_ARG as above.
    hx_err_t (*embedding_backward_tokens)(hx_backend_t *self, hx_stream_t stream,
                                          const hx_embedding_grad_t *args);
    // dtable[t] += sum over b of dout[b, t].
    hx_err_t (*embedding_backward_positions)(hx_backend_t *self, hx_stream_t stream,
                                             const hx_embedding_grad_t *args);

    // HX_E_ARG: a target at or above vocab, as above.
    hx_err_t (*cross_entropy)(hx_backend_t *self, hx_stream_t stream,
                              const hx_cross_entropy_t *args);

    // out = a + b (a residual path). `out` may be the same as `a` or `b`.
    hx_err_t (*add)(hx_backend_t *self, hx_stream_t stream, float *out, const float *a,
                    const float *b, size_t count);
    // y += alpha * x.
    hx_err_t (*axpy)(hx_backend_t *self, hx_stream_t stream, float *y, float alpha, const float *x,
                     size_t count);
    // x *= alpha.
    hx_err_t (*scale)(hx_backend_t *self, hx_stream_t stream, float *x, float alpha, size_t count);
    // The sum of squares, added in double, in an order that depends on `count` alone, so that any
    // number of threads gives the same bits. `*sum` is of the host. Blocks until it is known.
    hx_err_t (*sumsq)(hx_backend_t *self, hx_stream_t stream, const float *x, size_t count,
                      double *sum);
    // Is no element NaN or infinite? `*finite` is of the host. Blocks until it is known.
    hx_err_t (*finite)(hx_backend_t *self, hx_stream_t stream, hx_dtype_t dtype, const void *x,
                       size_t count, bool *finite);

    hx_err_t (*adamw)(hx_backend_t *self, hx_stream_t stream, const hx_adamw_t *args);
    hx_err_t (*sgd)(hx_backend_t *self, hx_stream_t stream, const hx_sgd_t *args);

    // Waits for all streams and frees the backend; its memory must have been released before.
    void (*destroy)(hx_backend_t *self);
} hx_backend_ops_t;

// The head of every backend; what follows is its own.
struct hx_backend {
    const hx_backend_ops_t *ops;
    const char *name;   // "cpu", "cuda:0"
    int streams_count;  // At least 1.
};

// Destroys and sets the caller's pointer to NULL; NULL inside is accepted.
void hx_backend_destroy(hx_backend_t **backend_p);

// A CPU backend that computes with `threads` threads (0: as many as the process may run on), for
// its own kernels and for OpenBLAS alike, never nested. It may be used by any one thread at a time.
// Two backends used at once by two threads each have their own team; for products at once they must
// have the same number of threads, since OpenBLAS has one number for the process. Call
// hx_cpu_prepare first.
hx_backend_t *hx_backend_cpu_new(int threads);
int hx_backend_cpu_threads(const hx_backend_t *backend);

// Call first in `main`, before any thread exists: makes waiting OpenMP threads sleep instead of
// spin (OMP_WAIT_POLICY=passive unless the user has set it). OpenMP reads its environment when its
// library is loaded, before `main`, so this runs the program again once with the environment set.
// Does nothing, and returns, when the policy is set already.
void hx_cpu_prepare(char **argv);

// The variants of the CPU kernels, best last: "baseline", "avx2", "avx512". A new backend takes the
// best that this processor runs; tests take each. HX_E_UNSUPPORTED: this processor cannot.
#define HX_CPU_VARIANTS_COUNT 3
const char *hx_cpu_variant_name(int variant);
HX_MUST_USE hx_err_t hx_backend_cpu_variant(hx_backend_t *backend, int variant);

#endif
