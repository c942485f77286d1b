// cpu_gemm - matrix products of the CPU backend, by OpenBLAS.
//
// OpenBLAS has no bias and no separate addend. Both are written to the output beforehand and the
// product is added to it, which costs no more than the zeros that OpenBLAS would write.

#include "tensor/cpu_backend.h"

#include <cblas.h>
#include <limits.h>
#include <omp.h>

static void check(const hx_gemm_t *args)
{
    const size_t a_columns = args->a_transposed ? args->rows : args->inner;
    const size_t b_columns = args->b_transposed ? args->inner : args->columns;
    HX_ASSERT(args->a && args->b && args->out);
    HX_ASSERT(args->rows <= INT_MAX && args->columns <= INT_MAX && args->inner <= INT_MAX);
    HX_ASSERT(args->inner > 0);
    HX_ASSERT(args->a_pitch >= a_columns && args->a_pitch <= INT_MAX);
    HX_ASSERT(args->b_pitch >= b_columns && args->b_pitch <= INT_MAX);
    HX_ASSERT(args->out_pitch >= args->columns && args->out_pitch <= INT_MAX);
    HX_ASSERT(!args->add || args->add_pitch >= args->columns);
}

// One product of f32 operands with their pitches.
static void multiply(const cpu_backend_t *self, const hx_gemm_t *args, size_t batch, const float *a,
                     size_t a_pitch, const float *b, size_t b_pitch, bool alone)
{
    float *const out = args->out + batch * args->out_step;
    const float *add = args->add ? args->add + batch * args->out_step : out;
    float beta = args->beta;
    if (args->bias || (add != out && beta != 0.0f)) {
        const cpu_prefill_t prefill = {
            .columns = args->columns,
            .beta = beta,
            .add = beta == 0.0f ? NULL : add,
            .add_pitch = add == out ? args->out_pitch : args->add_pitch,
            .bias = args->bias,
            .out = out,
            .out_pitch = args->out_pitch,
        };
        if (alone) {
            cpu_run(self, self->kernels->prefill, &prefill, args->rows, args->columns);
        } else {
            self->kernels->prefill(&prefill, 0, args->rows);
        }
        beta = 1.0f;
    }
    cblas_sgemm(CblasRowMajor, args->a_transposed ? CblasTrans : CblasNoTrans,
                args->b_transposed ? CblasTrans : CblasNoTrans, (blasint)args->rows,
                (blasint)args->columns, (blasint)args->inner, args->alpha, a, (blasint)a_pitch, b,
                (blasint)b_pitch, beta, out, (blasint)args->out_pitch);
}

// Many products: one thread each, side by side.
static void multiply_batches(const cpu_backend_t *self, const hx_gemm_t *args)
{
    const float *const a = args->a;
    const float *const b = args->b;
#pragma omp parallel for schedule(static)
    for (size_t batch = 0; batch < args->batches; batch++) {
        multiply(self, args, batch, a + batch * args->a_step, args->a_pitch,
                 b + batch * args->b_step, args->b_pitch, false);
    }
}

// A bf16 matrix with a pitch as a packed f32 one.
static void widen(const cpu_backend_t *self, float *to, const uint16_t *from, size_t rows,
                  size_t columns, size_t pitch)
{
    if (pitch == columns) {
        const cpu_convert_t args = {.to = to, .from = from};
        cpu_run(self, self->kernels->f32_from_bf16, &args, rows * columns, 1);
        return;
    }
    for (size_t row = 0; row < rows; row++) {
        const cpu_convert_t args = {.to = to + row * columns, .from = from + row * pitch};
        self->kernels->f32_from_bf16(&args, 0, columns);
    }
}

static hx_err_t multiply_bf16(cpu_backend_t *self, const hx_gemm_t *args, size_t batches)
{
    const size_t a_rows = args->a_transposed ? args->inner : args->rows;
    const size_t a_columns = args->a_transposed ? args->rows : args->inner;
    const size_t b_rows = args->b_transposed ? args->columns : args->inner;
    const size_t b_columns = args->b_transposed ? args->inner : args->columns;
    void *scratch = NULL;
    HX_TRY(cpu_scratch(self, (a_rows * a_columns + b_rows * b_columns) * sizeof(float), &scratch));
    float *const a = scratch;
    float *const b = a + a_rows * a_columns;
    for (size_t batch = 0; batch < batches; batch++) {
        const uint16_t *const a_half = (const uint16_t *)args->a + batch * args->a_step;
        const uint16_t *const b_half = (const uint16_t *)args->b + batch * args->b_step;
        if (batch == 0 || args->a_step > 0) {
            widen(self, a, a_half, a_rows, a_columns, args->a_pitch);
        }
        if (batch == 0 || args->b_step > 0) {
            widen(self, b, b_half, b_rows, b_columns, args->b_pitch);
        }
        multiply(self, args, batch, a, a_columns, b, b_columns, true);
    }
    return HX_OK;
}

hx_err_t cpu_gemm(hx_backend_t *backend, hx_stream_t stream, const hx_gemm_t *args)
{
    HX_ASSERT(stream == 0 && args);
    cpu_backend_t *const self = cpu_backend_of(backend);
    const size_t batches = HX_MAX(args->batches, (size_t)1);
    if (args->dtype != HX_F32 && args->dtype != HX_BF16) {
        return HX_E_UNSUPPORTED;
    }
    if (args->rows == 0 || args->columns == 0) {
        return HX_OK;
    }
    check(args);
    cpu_enter_blas(self);
    if (args->dtype == HX_BF16) {
        return multiply_bf16(self, args, batches);
    }
    if (batches > 1 && batches >= (size_t)self->threads) {
        multiply_batches(self, args);
        return HX_OK;
    }
    for (size_t batch = 0; batch < batches; batch++) {
        multiply(self, args, batch, (const float *)args->a + batch * args->a_step, args->a_pitch,
                 (const float *)args->b + batch * args->b_step, args->b_pitch, true);
    }
    return HX_OK;
}
