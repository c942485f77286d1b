// layer_kinds - see the header.

#include "model/layer_kinds.h"

#include "model/model_gpt2.h"

static size_t positions(const layer_call_t *call)
{
    return call->rows * call->time;
}

static size_t channels_of(const layer_call_t *call)
{
    return model_conf(call->model)->channels;
}

static float eps_of(const layer_call_t *call)
{
    return (float)model_conf(call->model)->ln_eps;
}

// Where a tensor lies in the flat vector of the layer's group `use`.
static size_t offset_of(const layer_call_t *call, uint32_t use, uint32_t tensor)
{
    const model_group_t *const group = model_group(call->model, call->layer->groups[use]);
    HX_ASSERT(tensor < group->tensors_count);
    return model_tensor(call->model, group->tensors_first + tensor)->offset;
}

static const float *param(const layer_call_t *call, uint32_t use, uint32_t tensor)
{
    return call->params[use] + offset_of(call, use, tensor);
}

static float *grad(const layer_call_t *call, uint32_t use, uint32_t tensor)
{
    return call->grads[use] + offset_of(call, use, tensor);
}

static hx_err_t gemm(const layer_call_t *call, const hx_gemm_t *args)
{
    return call->backend->ops->gemm(call->backend, call->queue, args);
}

// A linear layer of the block: weight (in, out) and the bias that follows it in the group.
typedef struct {
    uint32_t weight;  // gpt2_tensor_t
    size_t in;
    size_t out;
} linear_t;

typedef enum { LINEAR_ATTN, LINEAR_ATTN_PROJ, LINEAR_FC, LINEAR_FC_PROJ } linear_kind_t;

static linear_t linear_of(const layer_call_t *call, linear_kind_t kind)
{
    const size_t channels = channels_of(call);
    switch (kind) {
    case LINEAR_ATTN:
        return (linear_t){GPT2_ATTN_WEIGHT, channels, 3 * channels};
    case LINEAR_ATTN_PROJ:
        return (linear_t){GPT2_ATTN_PROJ_WEIGHT, channels, channels};
    case LINEAR_FC:
        return (linear_t){GPT2_FC_WEIGHT, channels, 4 * channels};
    case LINEAR_FC_PROJ:
        break;
    }
    return (linear_t){GPT2_FC_PROJ_WEIGHT, 4 * channels, channels};
}

// out = x weight + bias + add
static hx_err_t linear_forward(const layer_call_t *call, linear_kind_t kind, const float *x,
                               const float *add, float *out)
{
    const linear_t linear = linear_of(call, kind);
    const hx_gemm_t args = {
        .rows = positions(call),
        .columns = linear.out,
        .inner = linear.in,
        .alpha = 1,
        .a = x,
        .a_pitch = linear.in,
        .b = param(call, 0, linear.weight),
        .b_pitch = linear.out,
        .beta = add ? 1.0F : 0.0F,
        .add = add,
        .add_pitch = linear.out,
        .bias = param(call, 0, linear.weight + 1),
        .out = out,
        .out_pitch = linear.out,
    };
    return gemm(call, &args);
}

// dx = dout weight^T
static hx_err_t linear_input(const layer_call_t *call, linear_kind_t kind, const float *dout,
                             float *dx)
{
    const linear_t linear = linear_of(call, kind);
    const hx_gemm_t args = {
        .b_transposed = true,
        .rows = positions(call),
        .columns = linear.in,
        .inner = linear.out,
        .alpha = 1,
        .a = dout,
        .a_pitch = linear.out,
        .b = param(call, 0, linear.weight),
        .b_pitch = linear.out,
        .out = dx,
        .out_pitch = linear.in,
    };
    return gemm(call, &args);
}

// dweight += x^T dout, dbias += column sums of dout
static hx_err_t linear_weight(const layer_call_t *call, linear_kind_t kind, const float *x,
                              const float *dout)
{
    const linear_t linear = linear_of(call, kind);
    const hx_gemm_t args = {
        .a_transposed = true,
        .rows = linear.in,
        .columns = linear.out,
        .inner = positions(call),
        .alpha = 1,
        .a = x,
        .a_pitch = linear.in,
        .b = dout,
        .b_pitch = linear.out,
        .beta = 1,
        .out = grad(call, 0, linear.weight),
        .out_pitch = linear.out,
    };
    HX_TRY(gemm(call, &args));
    return call->backend->ops->column_sum(call->backend, call->queue,
                                          grad(call, 0, linear.weight + 1), dout, positions(call),
                                          linear.out);
}

// A layer norm of the layer's group 0: gain `tensor`, shift the next one.
typedef struct {
    uint32_t tensor;
    float *x;
    float *out;
    float *mean;
    float *rstd;
} norm_t;

static hx_err_t norm_forward(const layer_call_t *call, const norm_t *norm, size_t rows)
{
    const hx_norm_t args = {
        .rows = rows,
        .columns = channels_of(call),
        .eps = eps_of(call),
        .x = norm->x,
        .gain = param(call, 0, norm->tensor),
        .shift = param(call, 0, norm->tensor + 1),
        .out = norm->out,
        .mean = norm->mean,
        .rstd = norm->rstd,
    };
    return call->backend->ops->norm_forward(call->backend, call->queue, &args);
}

// Adds the gradients of gain and shift; then `dout` becomes the gradient of the norm's input.
static hx_err_t norm_backward(const layer_call_t *call, const norm_t *norm, float *dout)
{
    const hx_norm_grad_t args = {
        .rows = positions(call),
        .columns = channels_of(call),
        .x = norm->x,
        .gain = param(call, 0, norm->tensor),
        .mean = norm->mean,
        .rstd = norm->rstd,
        .dout = dout,
        .dx = dout,
        .dgain = grad(call, 0, norm->tensor),
        .dshift = grad(call, 0, norm->tensor + 1),
    };
    const hx_backend_ops_t *const ops = call->backend->ops;
    HX_TRY(ops->norm_backward_params(call->backend, call->queue, &args));
    return ops->norm_backward_input(call->backend, call->queue, &args);
}

static norm_t norm_1(const layer_call_t *call)
{
    return (norm_t){GPT2_LN_1_WEIGHT, call->stream, call->block[BLOCK_NORM_1],
                    call->block[BLOCK_MEAN_1], call->block[BLOCK_RSTD_1]};
}

static norm_t norm_2(const layer_call_t *call)
{
    return (norm_t){GPT2_LN_2_WEIGHT, call->block[BLOCK_MIDDLE], call->block[BLOCK_NORM_2],
                    call->block[BLOCK_MEAN_2], call->block[BLOCK_RSTD_2]};
}

static hx_err_t attention_forward(const layer_call_t *call)
{
    const hx_attention_t args = {
        .batch = call->rows,
        .time = call->time,
        .heads = model_conf(call->model)->heads,
        .channels = channels_of(call),
        .qkv = call->block[BLOCK_QKV],
        .out = call->block[BLOCK_ATTENDED],
        .stats = call->block[BLOCK_STATS],
    };
    return call->backend->ops->attention_forward(call->backend, call->queue, &args);
}

static hx_err_t attention_backward(const layer_call_t *call, const float *dout, float *dqkv)
{
    const hx_attention_grad_t args = {
        .batch = call->rows,
        .time = call->time,
        .heads = model_conf(call->model)->heads,
        .channels = channels_of(call),
        .qkv = call->block[BLOCK_QKV],
        .out = call->block[BLOCK_ATTENDED],
        .stats = call->block[BLOCK_STATS],
        .dout = dout,
        .dqkv = dqkv,
    };
    return call->backend->ops->attention_backward(call->backend, call->queue, &args);
}

// All of a block but its last product: what a backward needs.
static hx_err_t block_again(const layer_call_t *call)
{
    float *const *const block = call->block;
    const norm_t first = norm_1(call);
    const norm_t second = norm_2(call);
    HX_TRY(norm_forward(call, &first, positions(call)));
    HX_TRY(linear_forward(call, LINEAR_ATTN, block[BLOCK_NORM_1], NULL, block[BLOCK_QKV]));
    HX_TRY(attention_forward(call));
    HX_TRY(linear_forward(call, LINEAR_ATTN_PROJ, block[BLOCK_ATTENDED], call->stream,
                          block[BLOCK_MIDDLE]));
    HX_TRY(norm_forward(call, &second, positions(call)));
    HX_TRY(linear_forward(call, LINEAR_FC, block[BLOCK_NORM_2], NULL, block[BLOCK_WIDE]));
    return call->backend->ops->gelu_forward(call->backend, call->queue, block[BLOCK_GELU],
                                            block[BLOCK_WIDE],
                                            positions(call) * 4 * channels_of(call));
}

static hx_err_t block_forward(const layer_call_t *call)
{
    HX_TRY(block_again(call));
    return linear_forward(call, LINEAR_FC_PROJ, call->block[BLOCK_GELU], call->block[BLOCK_MIDDLE],
                          call->next);
}

static hx_err_t block_input(const layer_call_t *call)
{
    const hx_backend_ops_t *const ops = call->backend->ops;
    float *const *const block = call->block;
    const size_t count = positions(call) * channels_of(call);
    const norm_t first = norm_1(call);
    const norm_t second = norm_2(call);
    HX_TRY(linear_input(call, LINEAR_FC_PROJ, call->next, call->big));
    HX_TRY(ops->gelu_backward(call->backend, call->queue, block[BLOCK_WIDE], block[BLOCK_WIDE],
                              call->big, 4 * count));
    HX_TRY(linear_input(call, LINEAR_FC, block[BLOCK_WIDE], call->small));
    HX_TRY(norm_backward(call, &second, call->small));
    HX_TRY(
        ops->add(call->backend, call->queue, block[BLOCK_MIDDLE], call->next, call->small, count));
    HX_TRY(linear_input(call, LINEAR_ATTN_PROJ, block[BLOCK_MIDDLE], call->small));
    HX_TRY(attention_backward(call, call->small, call->big));
    HX_TRY(linear_input(call, LINEAR_ATTN, call->big, call->small));
    if (call->apart) {
        HX_TRY(ops->copy(call->backend, call->queue, block[BLOCK_QKV], call->big,
                         sizeof(float) * 3 * count));
    }
    HX_TRY(norm_backward(call, &first, call->small));
    return ops->add(call->backend, call->queue, call->stream, block[BLOCK_MIDDLE], call->small,
                    count);
}

// The bias of the keys adds the same amount, q . bias, to all scores of a query, and softmax takes
// no notice: its gradient is 0. What f32 leaves of that sum is noise of about the size of AdamW's
// epsilon, which AdamW would scale up to real steps; so it is set to what it is.
static hx_err_t clear_key_bias(const layer_call_t *call)
{
    const size_t channels = channels_of(call);
    return call->backend->ops->fill(call->backend, call->queue, HX_F32,
                                    grad(call, 0, GPT2_ATTN_BIAS) + channels, 0, channels);
}

static hx_err_t block_weight(const layer_call_t *call)
{
    float *const *const block = call->block;
    const float *const dqkv = call->apart ? block[BLOCK_QKV] : call->big;
    HX_TRY(linear_weight(call, LINEAR_FC_PROJ, block[BLOCK_GELU], call->next));
    HX_TRY(linear_weight(call, LINEAR_FC, block[BLOCK_NORM_2], block[BLOCK_WIDE]));
    HX_TRY(linear_weight(call, LINEAR_ATTN_PROJ, block[BLOCK_ATTENDED], block[BLOCK_MIDDLE]));
    HX_TRY(linear_weight(call, LINEAR_ATTN, block[BLOCK_NORM_1], dqkv));
    return clear_key_bias(call);
}

static hx_err_t embed_forward(const layer_call_t *call)
{
    const hx_embedding_t args = {
        .batch = call->rows,
        .time = call->time,
        .channels = channels_of(call),
        .vocab = model_conf(call->model)->vocab,
        .tokens = call->tokens,
        .wte = param(call, 0, 0),
        .wpe = param(call, 1, 0),
        .out = call->next,
    };
    return call->backend->ops->embedding_forward(call->backend, call->queue, &args);
}

static hx_err_t embed_weight(const layer_call_t *call)
{
    const hx_backend_ops_t *const ops = call->backend->ops;
    hx_embedding_grad_t args = {
        .batch = call->rows,
        .time = call->time,
        .channels = channels_of(call),
        .vocab = model_conf(call->model)->vocab,
        .tokens = call->tokens,
        .dout = call->next,
        .dtable = grad(call, 0, 0),
    };
    HX_TRY(ops->embedding_backward_tokens(call->backend, call->queue, &args));
    args.dtable = grad(call, 1, 0);
    return ops->embedding_backward_positions(call->backend, call->queue, &args);
}

static norm_t head_norm(const layer_call_t *call)
{
    return (norm_t){0, call->stream, call->norm, call->mean, call->rstd};
}

static hx_err_t head_forward(const layer_call_t *call)
{
    const norm_t norm = head_norm(call);
    return norm_forward(call, &norm, positions(call));
}

// logits = norm wte^T, for some rows
static hx_err_t head_product(const layer_call_t *call, const float *norm, size_t rows,
                             float *logits)
{
    const hx_gemm_t args = {
        .b_transposed = true,
        .rows = rows,
        .columns = model_conf(call->model)->vocab,
        .inner = channels_of(call),
        .alpha = 1,
        .a = norm,
        .a_pitch = channels_of(call),
        .b = param(call, 1, 0),
        .b_pitch = channels_of(call),
        .out = logits,
        .out_pitch = call->logits_pitch,
    };
    return gemm(call, &args);
}

// As many rows at once as there is room for. Smaller pieces would find their logits still in cache,
// but measured slower: each has to go through the whole matrix again (12 % for 256 rows of 1024, at
// 50304 x 384).
hx_err_t layer_kind_loss(const layer_call_t *call, bool gradient)
{
    const size_t count = positions(call);
    HX_ASSERT(!gradient || call->logits_rows >= count);
    const size_t step = call->logits_rows;
    for (size_t first = 0; first < count; first += step) {
        float *const logits = call->logits + (gradient ? first * call->logits_pitch : 0);
        const size_t rows = HX_MIN(step, count - first);
        HX_TRY(head_product(call, call->norm + first * channels_of(call), rows, logits));
        const hx_cross_entropy_t args = {
            .rows = rows,
            .vocab = model_conf(call->model)->vocab,
            .pitch = call->logits_pitch,
            .logits = logits,
            .targets = call->targets + first,
            .losses = call->losses + first,
            .gradient = gradient,
            .scale = call->loss_scale,
        };
        HX_TRY(call->backend->ops->cross_entropy(call->backend, call->queue, &args));
    }
    return HX_OK;
}

hx_err_t layer_kind_logits(const layer_call_t *call, size_t first, size_t count)
{
    HX_ASSERT(first + count <= positions(call) && count <= call->logits_rows);
    const norm_t norm = {0, call->stream + first * channels_of(call), call->small,
                         call->mean + first, call->rstd + first};
    HX_TRY(norm_forward(call, &norm, count));
    return head_product(call, call->small, count, call->logits);
}

// The gradient of the tied matrix belongs to the weight part by nature, but it is made here: it
// reads the logits' gradient, for which there is one place, not one for each microbatch.
static hx_err_t head_input(const layer_call_t *call)
{
    const size_t channels = channels_of(call);
    const size_t vocab = model_conf(call->model)->vocab;
    const norm_t norm = head_norm(call);
    const hx_gemm_t input = {
        .rows = positions(call),
        .columns = channels,
        .inner = vocab,
        .alpha = 1,
        .a = call->logits,
        .a_pitch = call->logits_pitch,
        .b = param(call, 1, 0),
        .b_pitch = channels,
        .out = call->small,
        .out_pitch = channels,
    };
    HX_TRY(gemm(call, &input));
    const hx_gemm_t weight = {
        .a_transposed = true,
        .rows = vocab,
        .columns = channels,
        .inner = positions(call),
        .alpha = 1,
        .a = call->logits,
        .a_pitch = call->logits_pitch,
        .b = call->norm,
        .b_pitch = channels,
        .beta = 1,
        .out = grad(call, 1, 0),
        .out_pitch = channels,
    };
    HX_TRY(gemm(call, &weight));
    HX_TRY(norm_backward(call, &norm, call->small));
    return call->backend->ops->copy(call->backend, call->queue, call->stream, call->small,
                                    sizeof(float) * positions(call) * channels);
}

static hx_err_t nothing(const layer_call_t *call)
{
    (void)call;
    return HX_OK;
}

const layer_kind_ops_t *layer_kind_ops(layer_kind_t kind)
{
    static const layer_kind_ops_t kinds[] = {
        [LAYER_EMBED] = {embed_forward, nothing, nothing, embed_weight},
        [LAYER_BLOCK] = {block_forward, block_again, block_input, block_weight},
        [LAYER_HEAD] = {head_forward, nothing, head_input, nothing},
    };
    HX_ASSERT((size_t)kind < HX_COUNT(kinds));
    return &kinds[kind];
}
