// cpu_attention - causal attention of the CPU backend, in blocks.
//
//              keys -->
//            +-------+-------+      A block of scores (QUERY_BLOCK, KEY_BLOCK) is made by a
//            product,
//   queries  | whole |       |      turned into probabilities in place, and used up by the next
//      |     +-------+-------+      product; it stays in the cache. Blocks above the diagonal are
//      v     | whole | half  |      not visited. Heads (and, forward, blocks of queries) are dealt
//            +-------+-------+      to threads; each runs its products alone.
//
// Forward keeps a running maximum and sum for each query (Milakov, Gimelshein 2018; Dao et al.
// 2022), and leaves log-sum-exp for backward, which makes the probabilities anew from it.

#include "tensor/cpu_backend.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#define QUERY_BLOCK 128
#define KEY_BLOCK 256
#define BLOCK_COUNT ((size_t)QUERY_BLOCK * KEY_BLOCK)

// One head of one row of the batch.
typedef struct {
    const cpu_kernels_t *kernels;
    size_t time;
    size_t width;      // Channels of the head.
    size_t pitch;      // Of out and dout.
    size_t qkv_pitch;  // Of q, k, v and their gradients.
    float scale;
    const float *q;
    const float *k;
    const float *v;
    float *scores;  // (QUERY_BLOCK, KEY_BLOCK), the thread's own
} head_t;

// out (rows, columns) = alpha op(a) op(b) + beta out, in the calling thread.
static void product(CBLAS_TRANSPOSE a_order, CBLAS_TRANSPOSE b_order, size_t rows, size_t columns,
                    size_t inner, float alpha, const float *a, size_t a_pitch, const float *b,
                    size_t b_pitch, float beta, float *out, size_t out_pitch)
{
    cblas_sgemm(CblasRowMajor, a_order, b_order, (blasint)rows, (blasint)columns, (blasint)inner,
                alpha, a, (blasint)a_pitch, b, (blasint)b_pitch, beta, out, (blasint)out_pitch);
}

static head_t head_of(const cpu_kernels_t *kernels, const float *qkv, size_t row, size_t head,
                      size_t time, size_t heads, size_t channels, float *scores)
{
    const size_t width = channels / heads;
    const float *const q = qkv + row * time * 3 * channels + head * width;
    return (head_t){
        .kernels = kernels,
        .time = time,
        .width = width,
        .pitch = channels,
        .qkv_pitch = 3 * channels,
        .scale = 1.0f / sqrtf((float)width),
        .q = q,
        .k = q + channels,
        .v = q + 2 * channels,
        .scores = scores,
    };
}

// The queries from `query` on, at most QUERY_BLOCK. `out` and `stats` are the head's.
static void forward_block(const head_t *head, size_t query, float *out, float *stats)
{
    const size_t rows = HX_MIN((size_t)QUERY_BLOCK, head->time - query);
    float max[QUERY_BLOCK];
    float sum[QUERY_BLOCK];
    for (size_t row = 0; row < rows; row++) {
        max[row] = -INFINITY;
        sum[row] = 0;
    }
    float *const block_out = out + query * head->pitch;
    for (size_t key = 0; key < query + rows; key += KEY_BLOCK) {
        const size_t columns = HX_MIN((size_t)KEY_BLOCK, query + rows - key);
        product(CblasNoTrans, CblasTrans, rows, columns, head->width, head->scale,
                head->q + query * head->qkv_pitch, head->qkv_pitch, head->k + key * head->qkv_pitch,
                head->qkv_pitch, 0.0f, head->scores, columns);
        const cpu_softmax_t softmax = {
            .query = query,
            .key = key,
            .rows = rows,
            .columns = columns,
            .scores = head->scores,
            .max = max,
            .sum = sum,
            .out = block_out,
            .out_pitch = head->pitch,
            .width = head->width,
        };
        head->kernels->softmax(&softmax, 0, rows);
        product(CblasNoTrans, CblasNoTrans, rows, head->width, columns, 1.0f, head->scores, columns,
                head->v + key * head->qkv_pitch, head->qkv_pitch, key > 0 ? 1.0f : 0.0f, block_out,
                head->pitch);
    }
    for (size_t row = 0; row < rows; row++) {
        const cpu_flat_t divide = {.out = block_out + row * head->pitch, .alpha = 1.0f / sum[row]};
        head->kernels->scale(&divide, 0, head->width);
        stats[query + row] = max[row] + logf(sum[row]);
    }
}

static void check(size_t batch, size_t time, size_t heads, size_t channels)
{
    HX_ASSERT(heads > 0 && channels > 0 && channels % heads == 0);
    HX_ASSERT(time <= INT_MAX && channels <= INT_MAX / 3);
    HX_ASSERT(batch == 0 || time <= SIZE_MAX / batch / channels / 3);
}

hx_err_t cpu_attention_forward(hx_backend_t *backend, hx_stream_t stream,
                               const hx_attention_t *args)
{
    HX_ASSERT(stream == 0 && args && args->qkv && args->out && args->stats);
    check(args->batch, args->time, args->heads, args->channels);
    cpu_backend_t *const self = cpu_backend_of(backend);
    const size_t blocks = (args->time + QUERY_BLOCK - 1) / QUERY_BLOCK;
    const size_t units = args->batch * args->heads * blocks;
    const size_t width = args->channels / args->heads;
    void *scratch = NULL;
    HX_TRY(cpu_scratch(self, (size_t)self->threads * BLOCK_COUNT * sizeof(float), &scratch));
    cpu_enter(self);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t unit = 0; unit < units; unit++) {
        const size_t row = unit / blocks / args->heads;
        const size_t index = unit / blocks % args->heads;
        float *const scores = (float *)scratch + (size_t)omp_get_thread_num() * BLOCK_COUNT;
        const head_t head = head_of(self->kernels, args->qkv, row, index, args->time, args->heads,
                                    args->channels, scores);
        forward_block(&head, unit % blocks * QUERY_BLOCK,
                      args->out + row * args->time * args->channels + index * width,
                      args->stats + (row * args->heads + index) * args->time);
    }
    return HX_OK;
}

// The gradients of one head; dq, dk, dv have the pitch of qkv and are cleared already.
typedef struct {
    const float *out;
    const float *dout;
    const float *stats;
    float *dscores;  // As head_t.scores.
    float *dq;
    float *dk;
    float *dv;
} head_grad_t;

static void backward_pair(const head_t *head, const head_grad_t *grad, size_t query, size_t rows,
                          size_t key, size_t columns, const float *delta)
{
    const size_t pitch = head->qkv_pitch;
    const float *const q = head->q + query * pitch;
    const float *const k = head->k + key * pitch;
    const float *const dout = grad->dout + query * head->pitch;
    product(CblasNoTrans, CblasTrans, rows, columns, head->width, head->scale, q, pitch, k, pitch,
            0.0f, head->scores, columns);
    product(CblasNoTrans, CblasTrans, rows, columns, head->width, 1.0f, dout, head->pitch,
            head->v + key * pitch, pitch, 0.0f, grad->dscores, columns);
    const cpu_softmax_grad_t softmax = {
        .query = query,
        .key = key,
        .rows = rows,
        .columns = columns,
        .scale = head->scale,
        .stats = grad->stats + query,
        .delta = delta,
        .scores = head->scores,
        .dscores = grad->dscores,
    };
    head->kernels->softmax_grad(&softmax, 0, rows);
    product(CblasTrans, CblasNoTrans, columns, head->width, rows, 1.0f, head->scores, columns, dout,
            head->pitch, 1.0f, grad->dv + key * pitch, pitch);
    product(CblasNoTrans, CblasNoTrans, rows, head->width, columns, 1.0f, grad->dscores, columns, k,
            pitch, 1.0f, grad->dq + query * pitch, pitch);
    product(CblasTrans, CblasNoTrans, columns, head->width, rows, 1.0f, grad->dscores, columns, q,
            pitch, 1.0f, grad->dk + key * pitch, pitch);
}

static void backward_head(const head_t *head, const head_grad_t *grad)
{
    for (size_t position = 0; position < head->time; position++) {
        memset(grad->dq + position * head->qkv_pitch, 0, head->width * sizeof(float));
        memset(grad->dk + position * head->qkv_pitch, 0, head->width * sizeof(float));
        memset(grad->dv + position * head->qkv_pitch, 0, head->width * sizeof(float));
    }
    for (size_t query = 0; query < head->time; query += QUERY_BLOCK) {
        const size_t rows = HX_MIN((size_t)QUERY_BLOCK, head->time - query);
        float delta[QUERY_BLOCK];
        const cpu_row_dot_t dot = {
            .columns = head->width,
            .x = grad->dout + query * head->pitch,
            .x_pitch = head->pitch,
            .y = grad->out + query * head->pitch,
            .y_pitch = head->pitch,
            .out = delta,
        };
        head->kernels->row_dot(&dot, 0, rows);
        for (size_t key = 0; key < query + rows; key += KEY_BLOCK) {
            const size_t columns = HX_MIN((size_t)KEY_BLOCK, query + rows - key);
            backward_pair(head, grad, query, rows, key, columns, delta);
        }
    }
}

hx_err_t cpu_attention_backward(hx_backend_t *backend, hx_stream_t stream,
                                const hx_attention_grad_t *args)
{
    HX_ASSERT(stream == 0 && args && args->qkv && args->out && args->stats);
    HX_ASSERT(args->dout && args->dqkv);
    check(args->batch, args->time, args->heads, args->channels);
    cpu_backend_t *const self = cpu_backend_of(backend);
    const size_t width = args->channels / args->heads;
    void *scratch = NULL;
    HX_TRY(cpu_scratch(self, (size_t)self->threads * 2 * BLOCK_COUNT * sizeof(float), &scratch));
    cpu_enter(self);
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t unit = 0; unit < args->batch * args->heads; unit++) {
        const size_t row = unit / args->heads;
        const size_t index = unit % args->heads;
        float *const scores = (float *)scratch + (size_t)omp_get_thread_num() * 2 * BLOCK_COUNT;
        const head_t head = head_of(self->kernels, args->qkv, row, index, args->time, args->heads,
                                    args->channels, scores);
        const size_t offset = row * args->time * args->channels + index * width;
        float *const dq = args->dqkv + row * args->time * 3 * args->channels + index * width;
        const head_grad_t grad = {
            .out = args->out + offset,
            .dout = args->dout + offset,
            .stats = args->stats + unit * args->time,
            .dscores = scores + BLOCK_COUNT,
            .dq = dq,
            .dk = dq + args->channels,
            .dv = dq + 2 * args->channels,
        };
        backward_head(&head, &grad);
    }
    return HX_OK;
}
