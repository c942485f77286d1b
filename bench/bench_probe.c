// bench_probe - the machine at this moment: see bench.h.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"
#include "tensor/hx_clock.h"

#define COPY_SIZE ((size_t)64 << 20)
#define COPY_ROUNDS 4
#define FMA_LANES 128
#define FMA_ROUNDS 4000000

double bench_now(void)
{
    return (double)hx_now() / 1e9;
}

double bench_cpu(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double bench_median(double *values, size_t count)
{
    HX_ASSERT(count > 0);
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void *copy_some(void *argument)
{
    char *const memory = argument;
    for (int round = 0; round < COPY_ROUNDS; round++) {
        memcpy(memory, memory + COPY_SIZE, COPY_SIZE);
    }
    return NULL;
}

// gcc vectorises and fuses only if told to; clang fuses by itself, and knows no such attribute.
#if defined(__clang__)
#define FAST
#else
#define FAST __attribute__((optimize("O3,fast-math")))
#endif

__attribute__((target_clones("avx512f", "arch=haswell", "default"))) FAST static void
fma_some(float *lanes)
{
    float sums[FMA_LANES];
    memcpy(sums, lanes, sizeof sums);
    for (int round = 0; round < FMA_ROUNDS; round++) {
        for (int lane = 0; lane < FMA_LANES; lane++) {
            sums[lane] = sums[lane] * 0.999f + 0.5f;
        }
    }
    memcpy(lanes, sums, sizeof sums);
}

static void *fma_thread(void *argument)
{
    fma_some(argument);
    return NULL;
}

// Runs `work` in one or two threads at once and returns the seconds that it took.
static double timed(void *(*work)(void *), void **arguments, int threads)
{
    pthread_t ids[2];
    const double start = bench_now();
    for (int at = 0; at < threads; at++) {
        HX_ASSERT(pthread_create(&ids[at], NULL, work, arguments[at]) == 0);
    }
    for (int at = 0; at < threads; at++) {
        pthread_join(ids[at], NULL);
    }
    return bench_now() - start;
}

void bench_probe(bench_probe_t *out)
{
    void *copies[2];
    void *lanes[2];
    for (int at = 0; at < 2; at++) {
        copies[at] = malloc(2 * COPY_SIZE);
        HX_ASSERT(copies[at]);
        memset(copies[at], at + 1, 2 * COPY_SIZE);
        lanes[at] = hx_new(FMA_LANES, sizeof(float));
    }
    const double copied = (double)COPY_SIZE * COPY_ROUNDS;
    const double flops = 2.0 * FMA_LANES * FMA_ROUNDS;
    out->memcpy_one = copied / timed(copy_some, copies, 1);
    out->memcpy_two = 2 * copied / timed(copy_some, copies, 2);
    out->fma_one = flops / timed(fma_thread, lanes, 1);
    out->fma_two = 2 * flops / timed(fma_thread, lanes, 2);
    out->cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (int at = 0; at < 2; at++) {
        free(copies[at]);
        free(lanes[at]);
    }
}

json_t *bench_probe_json(const bench_probe_t *probe)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:I}", "memcpy_1", probe->memcpy_one, "memcpy_2",
                     probe->memcpy_two, "fma_1", probe->fma_one, "fma_2", probe->fma_two, "cores",
                     (json_int_t)probe->cores);
}

void bench_probe_print(const bench_probe_t *probe)
{
    printf("machine now: %ld cores; copy %.1f GB/s (1 thread), %.1f (2); "
           "multiply-add %.0f GFLOP/s (1 thread), %.0f (2)\n",
           probe->cores, 1e-9 * probe->memcpy_one, 1e-9 * probe->memcpy_two, 1e-9 * probe->fma_one,
           1e-9 * probe->fma_two);
}

void bench_print_json(json_t *object)
{
    HX_ASSERT(object);
    json_dumpf(object, stdout, JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(object);
}
