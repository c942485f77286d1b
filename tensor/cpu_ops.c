// cpu_ops - the operations of the CPU backend that are one run of a kernel over threads.

#include "tensor/cpu_backend.h"

static size_t strips(size_t columns)
{
    return (columns + CPU_STRIP - 1) / CPU_STRIP;
}

hx_err_t cpu_bias_add(hx_backend_t *backend, hx_stream_t stream, float *x, const float *bias,
                      size_t rows, size_t columns)
{
    HX_ASSERT(stream == 0 && x && bias && columns > 0);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_prefill_t args = {
        .columns = columns,
        .beta = 1.0f,
        .add = x,
        .add_pitch = columns,
        .bias = bias,
        .out = x,
        .out_pitch = columns,
    };
    cpu_run(self, self->kernels->prefill, &args, rows, columns);
    return HX_OK;
}

hx_err_t cpu_column_sum(hx_backend_t *backend, hx_stream_t stream, float *out, const float *x,
                        size_t rows, size_t columns)
{
    HX_ASSERT(stream == 0 && out && x);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_column_sum_t args = {.rows = rows, .columns = columns, .x = x, .out = out};
    cpu_run(self, self->kernels->column_sum, &args, strips(columns), CPU_STRIP * (rows + 1));
    return HX_OK;
}

hx_err_t cpu_norm_forward(hx_backend_t *backend, hx_stream_t stream, const hx_norm_t *args)
{
    HX_ASSERT(stream == 0 && args && args->columns > 0 && args->eps > 0);
    HX_ASSERT(args->x && args->gain && args->shift && args->out && args->mean && args->rstd);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    cpu_run(self, self->kernels->norm_forward, args, args->rows, args->columns);
    return HX_OK;
}

hx_err_t cpu_norm_backward_input(hx_backend_t *backend, hx_stream_t stream,
                                 const hx_norm_grad_t *args)
{
    HX_ASSERT(stream == 0 && args && args->columns > 0);
    HX_ASSERT(args->x && args->gain && args->mean && args->rstd && args->dout && args->dx);
    HX_ASSERT(!args->accumulate || args->dx != args->dout);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    cpu_run(self, self->kernels->norm_backward_input, args, args->rows, args->columns);
    return HX_OK;
}

hx_err_t cpu_norm_backward_params(hx_backend_t *backend, hx_stream_t stream,
                                  const hx_norm_grad_t *args)
{
    HX_ASSERT(stream == 0 && args && args->columns > 0);
    HX_ASSERT(args->x && args->mean && args->rstd && args->dout && args->dgain && args->dshift);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    cpu_run(self, self->kernels->norm_backward_params, args, strips(args->columns),
            CPU_STRIP * (args->rows + 1));
    return HX_OK;
}

hx_err_t cpu_gelu_forward(hx_backend_t *backend, hx_stream_t stream, float *out, const float *x,
                          size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || (out && x)));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_flat_t args = {.out = out, .x = x};
    cpu_run(self, self->kernels->gelu_forward, &args, count, 1);
    return HX_OK;
}

hx_err_t cpu_gelu_backward(hx_backend_t *backend, hx_stream_t stream, float *dx, const float *x,
                           const float *dout, size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || (dx && x && dout)));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_flat_t args = {.out = dx, .x = x, .y = dout};
    cpu_run(self, self->kernels->gelu_backward, &args, count, 1);
    return HX_OK;
}

static bool tokens_known(const int32_t *tokens, size_t count, size_t vocab)
{
    for (size_t row = 0; row < count; row++) {
        if (tokens[row] < 0 || (size_t)tokens[row] >= vocab) {
            return false;
        }
    }
    return true;
}

hx_err_t cpu_embedding_forward(hx_backend_t *backend, hx_stream_t stream,
                               const hx_embedding_t *args)
{
    HX_ASSERT(stream == 0 && args && args->channels > 0);
    HX_ASSERT(args->tokens && args->wte && args->out);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const size_t rows = args->batch * args->time;
    if (!tokens_known(args->tokens, rows, args->vocab)) {
        return HX_E_ARG;
    }
    cpu_run(self, self->kernels->embedding_forward, args, rows, args->channels);
    return HX_OK;
}

hx_err_t cpu_embedding_backward_tokens(hx_backend_t *backend, hx_stream_t stream,
                                       const hx_embedding_grad_t *args)
{
    HX_ASSERT(stream == 0 && args && args->channels > 0);
    HX_ASSERT(args->tokens && args->dout && args->dtable);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const size_t rows = args->batch * args->time;
    if (!tokens_known(args->tokens, rows, args->vocab)) {
        return HX_E_ARG;
    }
    // Threads share channels, not rows: each element is added to by one thread, in row order.
    cpu_run(self, self->kernels->embedding_tokens, args, strips(args->channels),
            CPU_STRIP * (rows + 1));
    return HX_OK;
}

hx_err_t cpu_embedding_backward_positions(hx_backend_t *backend, hx_stream_t stream,
                                          const hx_embedding_grad_t *args)
{
    HX_ASSERT(stream == 0 && args && args->channels > 0 && args->dout && args->dtable);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    cpu_run(self, self->kernels->embedding_positions, args, args->time,
            args->channels * (args->batch + 1));
    return HX_OK;
}

hx_err_t cpu_cross_entropy(hx_backend_t *backend, hx_stream_t stream,
                           const hx_cross_entropy_t *args)
{
    HX_ASSERT(stream == 0 && args && args->vocab > 0 && args->pitch >= args->vocab);
    HX_ASSERT(args->logits && args->targets && args->losses);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    for (size_t row = 0; row < args->rows; row++) {
        if (args->targets[row] >= 0 && (size_t)args->targets[row] >= args->vocab) {
            return HX_E_ARG;
        }
    }
    cpu_run(self, self->kernels->cross_entropy, args, args->rows, args->pitch);
    return HX_OK;
}

hx_err_t cpu_add(hx_backend_t *backend, hx_stream_t stream, float *out, const float *a,
                 const float *b, size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || (out && a && b)));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_flat_t args = {.out = out, .x = a, .y = b};
    cpu_run(self, self->kernels->add, &args, count, 1);
    return HX_OK;
}

hx_err_t cpu_axpy(hx_backend_t *backend, hx_stream_t stream, float *y, float alpha, const float *x,
                  size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || (y && x)));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_flat_t args = {.out = y, .x = x, .alpha = alpha};
    cpu_run(self, self->kernels->axpy, &args, count, 1);
    return HX_OK;
}

hx_err_t cpu_scale(hx_backend_t *backend, hx_stream_t stream, float *x, float alpha, size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || x));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_flat_t args = {.out = x, .alpha = alpha};
    cpu_run(self, self->kernels->scale, &args, count, 1);
    return HX_OK;
}

hx_err_t cpu_sumsq(hx_backend_t *backend, hx_stream_t stream, const float *x, size_t count,
                   double *sum)
{
    HX_ASSERT(stream == 0 && (count == 0 || x) && sum);
    cpu_backend_t *const self = cpu_backend_of(backend);
    const size_t blocks = (count + CPU_BLOCK_SIZE - 1) / CPU_BLOCK_SIZE;
    void *scratch = NULL;
    HX_TRY(cpu_scratch(self, (blocks + 1) * sizeof(double), &scratch));
    const cpu_sumsq_t args = {.count = count, .x = x, .partials = scratch};
    cpu_run(self, self->kernels->sumsq, &args, blocks, CPU_BLOCK_SIZE);
    double total = 0;
    for (size_t block = 0; block < blocks; block++) {
        total += args.partials[block];
    }
    *sum = total;
    return HX_OK;
}

hx_err_t cpu_finite(hx_backend_t *backend, hx_stream_t stream, hx_dtype_t dtype, const void *x,
                    size_t count, bool *finite)
{
    HX_ASSERT(stream == 0 && (count == 0 || x) && finite);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    if (dtype == HX_I32) {
        return HX_E_UNSUPPORTED;
    }
    bool bad = false;
    const cpu_finite_t args = {.x = x, .bad = &bad};
    cpu_run(self, dtype == HX_F32 ? self->kernels->finite_f32 : self->kernels->finite_bf16, &args,
            count, 1);
    *finite = !bad;
    return HX_OK;
}

hx_err_t cpu_adamw(hx_backend_t *backend, hx_stream_t stream, const hx_adamw_t *args)
{
    HX_ASSERT(stream == 0 && args && args->w && args->m && args->v && args->g);
    HX_ASSERT(args->w_out && args->m_out && args->v_out);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    cpu_run(self, self->kernels->adamw, args, args->count, 1);
    return HX_OK;
}

hx_err_t cpu_sgd(hx_backend_t *backend, hx_stream_t stream, const hx_sgd_t *args)
{
    HX_ASSERT(stream == 0 && args && args->w && args->g && args->w_out);
    HX_ASSERT(!args->m == !args->m_out);
    const cpu_backend_t *const self = cpu_backend_of(backend);
    cpu_run(self, self->kernels->sgd, args, args->count, 1);
    return HX_OK;
}
