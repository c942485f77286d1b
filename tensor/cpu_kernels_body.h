// cpu_kernels_body - the CPU kernels that go over rows or columns, and the table of all. Included
// by cpu_kernels_<set>.c, which defines CPU_KERNELS_TABLE and CPU_KERNELS_NAME and is compiled for
// that instruction set.
//
// Loops are plain C for the compiler to vectorise: no calls, no branches inside, sums marked as
// reductions. So all variants agree to rounding, and there is one source to test.

#ifndef CPU_KERNELS_BODY_H
#define CPU_KERNELS_BODY_H

#include "tensor/cpu_kernels.h"
#include "tensor/cpu_kernels_flat.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define CHUNK 2048     // Elements added in float before the sum goes on in double.
#define ROWS_CHUNK 64  // Rows likewise.
#define MAX_LANES 32   // Partial maxima.

static void kernel_prefill(const void *args_, size_t first, size_t end)
{
    const cpu_prefill_t *const args = args_;
    for (size_t row = first; row < end; row++) {
        float *const out = args->out + row * args->out_pitch;
        const float *const bias = args->bias;
        const float *const add = args->add ? args->add + row * args->add_pitch : NULL;
        const float beta = args->beta;
        const size_t columns = args->columns;
        if (add && bias) {
#pragma omp simd
            for (size_t c = 0; c < columns; c++) {
                out[c] = beta * add[c] + bias[c];
            }
        } else if (add) {
#pragma omp simd
            for (size_t c = 0; c < columns; c++) {
                out[c] = beta * add[c];
            }
        } else {
            memcpy(out, bias, columns * sizeof *out);
        }
    }
}

static void kernel_column_sum(const void *args_, size_t first, size_t end)
{
    const cpu_column_sum_t *const args = args_;
    for (size_t strip = first; strip < end; strip++) {
        const size_t start = strip * CPU_STRIP;
        const size_t width = HX_MIN((size_t)CPU_STRIP, args->columns - start);
        double total[CPU_STRIP] = {0};
        for (size_t chunk = 0; chunk < args->rows; chunk += ROWS_CHUNK) {
            float partial[CPU_STRIP] = {0};
            const size_t stop = HX_MIN(args->rows, chunk + ROWS_CHUNK);
            for (size_t row = chunk; row < stop; row++) {
                const float *const x = args->x + row * args->columns + start;
#pragma omp simd
                for (size_t c = 0; c < width; c++) {
                    partial[c] += x[c];
                }
            }
            for (size_t c = 0; c < width; c++) {
                total[c] += (double)partial[c];
            }
        }
        for (size_t c = 0; c < width; c++) {
            args->out[start + c] += (float)total[c];
        }
    }
}

static void kernel_norm_forward(const void *args_, size_t first, size_t end)
{
    const hx_norm_t *const args = args_;
    const size_t columns = args->columns;
    for (size_t row = first; row < end; row++) {
        const float *const x = args->x + row * columns;
        float *const out = args->out + row * columns;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < columns; c++) {
            sum += x[c];
        }
        const float mean = sum / (float)columns;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (size_t c = 0; c < columns; c++) {
            squares += (x[c] - mean) * (x[c] - mean);
        }
        const float rstd = 1.0f / sqrtf(squares / (float)columns + args->eps);
        const float *const gain = args->gain;
        const float *const shift = args->shift;
#pragma omp simd
        for (size_t c = 0; c < columns; c++) {
            out[c] = (x[c] - mean) * rstd * gain[c] + shift[c];
        }
        args->mean[row] = mean;
        args->rstd[row] = rstd;
    }
}

// With n = (x - mean) rstd and h = dout gain: dx = rstd (h - mean(h) - n mean(h n)).
static void kernel_norm_backward_input(const void *args_, size_t first, size_t end)
{
    const hx_norm_grad_t *const args = args_;
    const size_t columns = args->columns;
    const float *const gain = args->gain;
    for (size_t row = first; row < end; row++) {
        const float *const x = args->x + row * columns;
        const float *const dout = args->dout + row * columns;
        float *const dx = args->dx + row * columns;
        const float mean = args->mean[row];
        const float rstd = args->rstd[row];
        float sum = 0;
        float product = 0;
#pragma omp simd reduction(+ : sum, product)
        for (size_t c = 0; c < columns; c++) {
            const float h = dout[c] * gain[c];
            sum += h;
            product += h * (x[c] - mean);
        }
        const float a = rstd * sum / (float)columns;
        const float b = rstd * rstd * rstd * product / (float)columns;
        if (args->accumulate) {
#pragma omp simd
            for (size_t c = 0; c < columns; c++) {
                dx[c] += rstd * dout[c] * gain[c] - a - b * (x[c] - mean);
            }
        } else {
#pragma omp simd
            for (size_t c = 0; c < columns; c++) {
                dx[c] = rstd * dout[c] * gain[c] - a - b * (x[c] - mean);
            }
        }
    }
}

static void kernel_norm_backward_params(const void *args_, size_t first, size_t end)
{
    const hx_norm_grad_t *const args = args_;
    for (size_t strip = first; strip < end; strip++) {
        const size_t start = strip * CPU_STRIP;
        const size_t width = HX_MIN((size_t)CPU_STRIP, args->columns - start);
        double gain_total[CPU_STRIP] = {0};
        double shift_total[CPU_STRIP] = {0};
        for (size_t chunk = 0; chunk < args->rows; chunk += ROWS_CHUNK) {
            float gain[CPU_STRIP] = {0};
            float shift[CPU_STRIP] = {0};
            const size_t stop = HX_MIN(args->rows, chunk + ROWS_CHUNK);
            for (size_t row = chunk; row < stop; row++) {
                const float *const x = args->x + row * args->columns + start;
                const float *const dout = args->dout + row * args->columns + start;
                const float mean = args->mean[row];
                const float rstd = args->rstd[row];
#pragma omp simd
                for (size_t c = 0; c < width; c++) {
                    gain[c] += dout[c] * ((x[c] - mean) * rstd);
                    shift[c] += dout[c];
                }
            }
            for (size_t c = 0; c < width; c++) {
                gain_total[c] += (double)gain[c];
                shift_total[c] += (double)shift[c];
            }
        }
        for (size_t c = 0; c < width; c++) {
            args->dgain[start + c] += (float)gain_total[c];
            args->dshift[start + c] += (float)shift_total[c];
        }
    }
}

static void kernel_embedding_forward(const void *args_, size_t first, size_t end)
{
    const hx_embedding_t *const args = args_;
    const size_t channels = args->channels;
    for (size_t row = first; row < end; row++) {
        const float *const token = args->wte + (size_t)args->tokens[row] * channels;
        float *const out = args->out + row * channels;
        if (!args->wpe) {
            memcpy(out, token, channels * sizeof *out);
            continue;
        }
        const float *const position = args->wpe + (row % args->time) * channels;
#pragma omp simd
        for (size_t c = 0; c < channels; c++) {
            out[c] = token[c] + position[c];
        }
    }
}

static void kernel_embedding_tokens(const void *args_, size_t first, size_t end)
{
    const hx_embedding_grad_t *const args = args_;
    const size_t start = first * CPU_STRIP;
    const size_t stop = HX_MIN(args->channels, end * CPU_STRIP);
    for (size_t row = 0; row < args->batch * args->time; row++) {
        const float *const dout = args->dout + row * args->channels;
        float *const dtable = args->dtable + (size_t)args->tokens[row] * args->channels;
#pragma omp simd
        for (size_t c = start; c < stop; c++) {
            dtable[c] += dout[c];
        }
    }
}

static void kernel_embedding_positions(const void *args_, size_t first, size_t end)
{
    const hx_embedding_grad_t *const args = args_;
    for (size_t position = first; position < end; position++) {
        float *const dtable = args->dtable + position * args->channels;
        for (size_t row = 0; row < args->batch; row++) {
            const float *const dout = args->dout + (row * args->time + position) * args->channels;
#pragma omp simd
            for (size_t c = 0; c < args->channels; c++) {
                dtable[c] += dout[c];
            }
        }
    }
}

// Lanes of its own, since compilers do not agree on reordering a maximum. NaN is passed over; the
// exponentials that follow bring it back.
static inline float max_of(const float *x, size_t count)
{
    float lanes[MAX_LANES];
    for (size_t lane = 0; lane < MAX_LANES; lane++) {
        lanes[lane] = -FLT_MAX;
    }
    size_t e = 0;
    for (; e + MAX_LANES <= count; e += MAX_LANES) {
#pragma omp simd
        for (size_t lane = 0; lane < MAX_LANES; lane++) {
            lanes[lane] = x[e + lane] > lanes[lane] ? x[e + lane] : lanes[lane];
        }
    }
    for (; e < count; e++) {
        lanes[0] = x[e] > lanes[0] ? x[e] : lanes[0];
    }
    float max = lanes[0];
    for (size_t lane = 1; lane < MAX_LANES; lane++) {
        max = lanes[lane] > max ? lanes[lane] : max;
    }
    return max;
}

// Replaces x by exp(x - max) where it is to be kept, and returns the sum.
static inline double exp_sum(float *x, size_t count, float max, bool keep)
{
    double total = 0;
    for (size_t chunk = 0; chunk < count; chunk += CHUNK) {
        const size_t stop = HX_MIN(count, chunk + CHUNK);
        float sum = 0;
        if (keep) {
#pragma omp simd reduction(+ : sum)
            for (size_t e = chunk; e < stop; e++) {
                const float y = exp_of(x[e] - max);
                x[e] = y;
                sum += y;
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (size_t e = chunk; e < stop; e++) {
                sum += exp_of(x[e] - max);
            }
        }
        total += (double)sum;
    }
    return total;
}

static inline void scale_row(float *x, size_t count, float factor)
{
#pragma omp simd
    for (size_t e = 0; e < count; e++) {
        x[e] *= factor;
    }
}

static void kernel_cross_entropy(const void *args_, size_t first, size_t end)
{
    const hx_cross_entropy_t *const args = args_;
    for (size_t row = first; row < end; row++) {
        float *const logits = args->logits + row * args->pitch;
        const int32_t target = args->targets[row];
        if (args->gradient) {
            memset(logits + args->vocab, 0, (args->pitch - args->vocab) * sizeof *logits);
        }
        if (target < 0) {
            args->losses[row] = 0;
            if (args->gradient) {
                memset(logits, 0, args->vocab * sizeof *logits);
            }
            continue;
        }
        const float wanted = logits[target];
        const float max = max_of(logits, args->vocab);
        const double sum = exp_sum(logits, args->vocab, max, args->gradient);
        args->losses[row] = (float)(log(sum) + (double)max - (double)wanted);
        if (args->gradient) {
            scale_row(logits, args->vocab, (float)((double)args->scale / sum));
            logits[target] -= args->scale;
        }
    }
}

// How many keys of a block a query sees: those up to its own position.
static inline size_t visible(size_t query, size_t key, size_t columns)
{
    return query < key ? 0 : HX_MIN(columns, query - key + 1);
}

static void kernel_softmax(const void *args_, size_t first, size_t end)
{
    const cpu_softmax_t *const args = args_;
    for (size_t row = first; row < end; row++) {
        float *const scores = args->scores + row * args->columns;
        const size_t seen = visible(args->query + row, args->key, args->columns);
        memset(scores + seen, 0, (args->columns - seen) * sizeof *scores);
        if (seen == 0) {
            continue;
        }
        const float old = args->max[row];
        const float here = max_of(scores, seen);
        const float max = here > old ? here : old;
        const float sum = (float)exp_sum(scores, seen, max, true);
        const float keep = exp_of(old - max);  // 0 in the first block, where old is -infinity
        if (args->key > 0 && keep != 1.0f) {
            scale_row(args->out + row * args->out_pitch, args->width, keep);
        }
        args->sum[row] = args->sum[row] * keep + sum;
        args->max[row] = max;
    }
}

// p = exp(score - log-sum-exp); d(score) = p (dp - delta), times the scale of the scores.
static void kernel_softmax_grad(const void *args_, size_t first, size_t end)
{
    const cpu_softmax_grad_t *const args = args_;
    for (size_t row = first; row < end; row++) {
        float *const scores = args->scores + row * args->columns;
        float *const dscores = args->dscores + row * args->columns;
        const size_t seen = visible(args->query + row, args->key, args->columns);
        const float stat = args->stats[row];
        const float delta = args->delta[row];
        const float scale = args->scale;
#pragma omp simd
        for (size_t c = 0; c < seen; c++) {
            const float p = exp_of(scores[c] - stat);
            scores[c] = p;
            dscores[c] = p * (dscores[c] - delta) * scale;
        }
        memset(scores + seen, 0, (args->columns - seen) * sizeof *scores);
        memset(dscores + seen, 0, (args->columns - seen) * sizeof *dscores);
    }
}

static void kernel_row_dot(const void *args_, size_t first, size_t end)
{
    const cpu_row_dot_t *const args = args_;
    for (size_t row = first; row < end; row++) {
        const float *const x = args->x + row * args->x_pitch;
        const float *const y = args->y + row * args->y_pitch;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < args->columns; c++) {
            sum += x[c] * y[c];
        }
        args->out[row] = sum;
    }
}

const cpu_kernels_t CPU_KERNELS_TABLE = {
    .name = CPU_KERNELS_NAME,
    .prefill = kernel_prefill,
    .column_sum = kernel_column_sum,
    .norm_forward = kernel_norm_forward,
    .norm_backward_input = kernel_norm_backward_input,
    .norm_backward_params = kernel_norm_backward_params,
    .gelu_forward = kernel_gelu_forward,
    .gelu_backward = kernel_gelu_backward,
    .add = kernel_add,
    .axpy = kernel_axpy,
    .scale = kernel_scale,
    .exponential = kernel_exponential,
    .adamw = kernel_adamw,
    .sgd = kernel_sgd,
    .finite_f32 = kernel_finite_f32,
    .finite_bf16 = kernel_finite_bf16,
    .bf16_from_f32 = kernel_bf16_from_f32,
    .f32_from_bf16 = kernel_f32_from_bf16,
    .sumsq = kernel_sumsq,
    .embedding_forward = kernel_embedding_forward,
    .embedding_tokens = kernel_embedding_tokens,
    .embedding_positions = kernel_embedding_positions,
    .cross_entropy = kernel_cross_entropy,
    .softmax = kernel_softmax,
    .softmax_grad = kernel_softmax_grad,
    .row_dot = kernel_row_dot,
};

#endif
