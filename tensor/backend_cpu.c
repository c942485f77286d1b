// backend_cpu - the CPU as a backend: its memory, its threads, its table.
//
// One team of OpenMP threads serves our kernels and OpenBLAS (its OpenMP build) alike. The team
// belongs to the calling thread, so a job thread may own a backend; products inside a parallel
// region run in one thread, so nothing is nested.

#include "tensor/cpu_backend.h"

#include "tensor/hx_log.h"

#include <cblas.h>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64
#define HUGE_SIZE ((size_t)2 << 20)  // From twice this on, memory is asked for in huge pages.

typedef struct {
    uint8_t *to;
    const uint8_t *from;
} copy_t;

typedef struct {
    void *to;
    uint32_t pattern;
} fill_t;

cpu_backend_t *cpu_backend_of(hx_backend_t *backend)
{
    HX_ASSERT(backend);
    return (cpu_backend_t *)backend;
}

static hx_err_t allocate(size_t size, void **memory_p)
{
    const size_t alignment = size >= 2 * HUGE_SIZE ? HUGE_SIZE : ALIGNMENT;
    void *memory = NULL;
    if (size <= SIZE_MAX - alignment) {
        memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    }
    if (!memory) {
        hx_log_error("cpu: %zu bytes wanted and not to be had", size);
        return HX_E_NOMEM;
    }
    if (alignment == HUGE_SIZE) {
        madvise(memory, size, MADV_HUGEPAGE);  // A wish: refusal costs speed only.
    }
    *memory_p = memory;
    return HX_OK;
}

hx_err_t cpu_scratch(cpu_backend_t *self, size_t size, void **memory_p)
{
    if (size > self->scratch_size) {
        void *memory = NULL;
        HX_TRY(allocate(size, &memory));
        free(self->scratch);
        self->scratch = memory;
        self->scratch_size = size;
    }
    *memory_p = self->scratch;
    return HX_OK;
}

void cpu_enter(const cpu_backend_t *self)
{
    omp_set_dynamic(0);  // These are the calling thread's own settings: it may be a new one.
    if (omp_get_max_threads() != self->threads) {
        omp_set_num_threads(self->threads);
    }
}

void cpu_enter_blas(const cpu_backend_t *self)
{
    cpu_enter(self);
    if (openblas_get_num_threads() != self->threads) {
        openblas_set_num_threads(self->threads);
    }
}

void cpu_run(const cpu_backend_t *self, cpu_kernel_fn kernel, const void *args, size_t count,
             size_t weight)
{
    HX_ASSERT(weight > 0);
    if (self->threads == 1 || count < 2 || count < CPU_PARALLEL_MIN / weight) {
        if (count > 0) {
            kernel(args, 0, count);
        }
        return;
    }
    cpu_enter(self);
    // Whole cache lines to each thread where a unit is one element.
    const size_t grain = weight == 1 ? ALIGNMENT : 1;
    const size_t grains = (count + grain - 1) / grain;
#pragma omp parallel
    {
        const size_t parts = (size_t)omp_get_num_threads();
        const size_t part = (size_t)omp_get_thread_num();
        const size_t first = HX_MIN(count, grains * part / parts * grain);
        const size_t end = HX_MIN(count, grains * (part + 1) / parts * grain);
        if (first < end) {
            kernel(args, first, end);
        }
    }
}

static hx_err_t cpu_alloc(hx_backend_t *backend, size_t size, void **memory_p)
{
    HX_ASSERT(backend && size > 0 && memory_p);
    return allocate(size, memory_p);
}

static void cpu_release(hx_backend_t *backend, void **memory_p)
{
    HX_ASSERT(backend && memory_p);
    free(*memory_p);
    *memory_p = NULL;
}

static void copy_part(const void *args_, size_t first, size_t end)
{
    const copy_t *const args = args_;
    memcpy(args->to + first, args->from + first, end - first);
}

static hx_err_t cpu_copy(hx_backend_t *backend, hx_stream_t stream, void *to, const void *from,
                         size_t size)
{
    HX_ASSERT(stream == 0 && (size == 0 || (to && from)));
    const copy_t args = {.to = to, .from = from};
    const size_t lines = size / ALIGNMENT;
    if (lines * (ALIGNMENT / sizeof(float)) < CPU_PARALLEL_MIN) {
        copy_part(&args, 0, size);
    } else {
        cpu_run(cpu_backend_of(backend), copy_part, &args, size, 1);
    }
    return HX_OK;
}

static hx_err_t cpu_sync(hx_backend_t *backend, hx_stream_t stream)
{
    HX_ASSERT(backend && stream == 0);
    return HX_OK;
}

static void fill_words(const void *args_, size_t first, size_t end)
{
    const fill_t *const args = args_;
    uint32_t *const to = args->to;
    for (size_t e = first; e < end; e++) {
        to[e] = args->pattern;
    }
}

static void fill_halves(const void *args_, size_t first, size_t end)
{
    const fill_t *const args = args_;
    uint16_t *const to = args->to;
    for (size_t e = first; e < end; e++) {
        to[e] = (uint16_t)args->pattern;
    }
}

static hx_err_t cpu_fill(hx_backend_t *backend, hx_stream_t stream, hx_dtype_t dtype, void *to,
                         double value, size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || to));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    fill_t args = {.to = to};
    if (dtype == HX_I32) {
        HX_ASSERT(value >= INT32_MIN && value <= INT32_MAX);
        args.pattern = (uint32_t)(int32_t)value;
    } else {
        const float number = (float)value;
        memcpy(&args.pattern, &number, sizeof number);
    }
    if (dtype == HX_BF16) {
        uint16_t half = 0;
        self->kernels->bf16_from_f32(&(cpu_convert_t){.to = &half, .from = &args.pattern}, 0, 1);
        args.pattern = half;
    }
    cpu_run(self, dtype == HX_BF16 ? fill_halves : fill_words, &args, count, 1);
    return HX_OK;
}

static hx_err_t cpu_convert(hx_backend_t *backend, hx_stream_t stream, hx_dtype_t to_dtype,
                            void *to, hx_dtype_t from_dtype, const void *from, size_t count)
{
    HX_ASSERT(stream == 0 && (count == 0 || (to && from)));
    const cpu_backend_t *const self = cpu_backend_of(backend);
    const cpu_convert_t args = {.to = to, .from = from};
    if (to_dtype == from_dtype) {
        return cpu_copy(backend, stream, to, from, count * hx_dtype_size(to_dtype));
    }
    if (to_dtype == HX_BF16 && from_dtype == HX_F32) {
        cpu_run(self, self->kernels->bf16_from_f32, &args, count, 1);
    } else if (to_dtype == HX_F32 && from_dtype == HX_BF16) {
        cpu_run(self, self->kernels->f32_from_bf16, &args, count, 1);
    } else {
        return HX_E_UNSUPPORTED;
    }
    return HX_OK;
}

static void cpu_destroy(hx_backend_t *backend)
{
    cpu_backend_t *const self = cpu_backend_of(backend);
    free(self->scratch);
    free(self);
}

static const hx_backend_ops_t cpu_ops = {
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy,
    .sync = cpu_sync,
    .fill = cpu_fill,
    .convert = cpu_convert,
    .gemm = cpu_gemm,
    .bias_add = cpu_bias_add,
    .column_sum = cpu_column_sum,
    .norm_forward = cpu_norm_forward,
    .norm_backward_input = cpu_norm_backward_input,
    .norm_backward_params = cpu_norm_backward_params,
    .gelu_forward = cpu_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward_tokens = cpu_embedding_backward_tokens,
    .embedding_backward_positions = cpu_embedding_backward_positions,
    .cross_entropy = cpu_cross_entropy,
    .add = cpu_add,
    .axpy = cpu_axpy,
    .scale = cpu_scale,
    .sumsq = cpu_sumsq,
    .finite = cpu_finite,
    .adamw = cpu_adamw,
    .sgd = cpu_sgd,
    .destroy = cpu_destroy,
};

static const char *const variant_names[HX_CPU_VARIANTS_COUNT] = {"baseline", "avx2", "avx512"};

// NULL: this processor cannot.
static const cpu_kernels_t *kernels_of(int variant)
{
    HX_ASSERT(variant >= 0 && variant < HX_CPU_VARIANTS_COUNT);
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (variant == 2) {
        return avx512 ? &cpu_kernels_avx512 : NULL;
    }
    if (variant == 1) {
        return avx2 ? &cpu_kernels_avx2 : NULL;
    }
#endif
    return variant == 0 ? &cpu_kernels_baseline : NULL;
}

const char *hx_cpu_variant_name(int variant)
{
    HX_ASSERT(variant >= 0 && variant < HX_CPU_VARIANTS_COUNT);
    return variant_names[variant];
}

hx_err_t hx_backend_cpu_variant(hx_backend_t *backend, int variant)
{
    HX_ASSERT(backend && backend->ops == &cpu_ops);
    const cpu_kernels_t *const kernels = kernels_of(variant);
    if (!kernels) {
        return HX_E_UNSUPPORTED;
    }
    cpu_backend_of(backend)->kernels = kernels;
    return HX_OK;
}

// The processors that the process may run on, which a container or taskset may have cut down.
static int processors_count(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    return count > 0 ? count : 1;
}

hx_backend_t *hx_backend_cpu_new(int threads)
{
    HX_ASSERT(threads >= 0);
    cpu_backend_t *const self = hx_new(1, sizeof *self);
    self->base.ops = &cpu_ops;
    self->base.name = "cpu";
    self->base.streams_count = 1;
    self->threads = threads > 0 ? threads : processors_count();
    for (int variant = 0; variant < HX_CPU_VARIANTS_COUNT; variant++) {
        const cpu_kernels_t *const kernels = kernels_of(variant);
        self->kernels = kernels ? kernels : self->kernels;
    }
    HX_ASSERT(self->kernels);
    cpu_enter_blas(self);
    return &self->base;
}

int hx_backend_cpu_threads(const hx_backend_t *backend)
{
    HX_ASSERT(backend && backend->ops == &cpu_ops);
    return ((const cpu_backend_t *)backend)->threads;
}

void hx_cpu_prepare(char **argv)
{
    HX_ASSERT(argv && argv[0]);
    if (getenv("OMP_WAIT_POLICY") || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) {
        return;
    }
    execv("/proc/self/exe", argv);
    hx_log_warn("cannot start again with OMP_WAIT_POLICY=passive: waiting threads will spin");
}
