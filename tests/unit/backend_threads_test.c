// backend_threads_test - the CPU backend's threads: as many as asked, from any thread, asleep in
// waiting.

#include "tensor/hx_backend.h"
#include "tests/support/device.h"

#include <cblas.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static float *floats(size_t count)
{
    return hx_new(count, sizeof(float));
}

// A product, large enough for all threads, on a backend of its own.
static void *multiply_elsewhere(void *out)
{
    const size_t edge = 300;
    hx_rng_t rng = hx_rng_seed(1);
    hx_backend_t *backend = hx_backend_cpu_new(2);
    float *const x = floats(edge * edge);
    device_random(&rng, x, edge * edge);
    const hx_gemm_t args = {.dtype = HX_F32,
                            .rows = edge,
                            .columns = edge,
                            .inner = edge,
                            .alpha = 1,
                            .a = x,
                            .a_pitch = edge,
                            .b = x,
                            .b_pitch = edge,
                            .out = out,
                            .out_pitch = edge};
    HX_ASSERT(backend->ops->gemm(backend, 0, &args) == HX_OK);
    hx_backend_destroy(&backend);
    free(x);
    return NULL;
}

Test(backend_threads, two_job_threads_at_once_get_the_same_bits)
{
    const size_t count = 300 * 300;
    float *const outs[] = {floats(count), floats(count), floats(count)};
    pthread_t threads[2];
    multiply_elsewhere(outs[0]);
    for (int round = 0; round < 5; round++) {
        for (size_t at = 0; at < 2; at++) {
            cr_assert_eq(pthread_create(&threads[at], NULL, multiply_elsewhere, outs[at + 1]), 0);
        }
        for (size_t at = 0; at < 2; at++) {
            pthread_join(threads[at], NULL);
            cr_assert_eq(memcmp(outs[0], outs[at + 1], count * sizeof(float)), 0);
        }
    }
    for (size_t at = 0; at < HX_COUNT(outs); at++) {
        free(outs[at]);
    }
}

Test(backend_threads, threads_are_as_asked_and_openblas_shares_them)
{
    hx_backend_t *one = hx_backend_cpu_new(1);
    hx_backend_t *two = hx_backend_cpu_new(2);
    hx_backend_t *all = hx_backend_cpu_new(0);
    cr_assert_eq(hx_backend_cpu_threads(one), 1);
    cr_assert_eq(hx_backend_cpu_threads(two), 2);
    cr_assert_geq(hx_backend_cpu_threads(all), 1);
    cr_assert_eq(openblas_get_parallel(), OPENBLAS_OPENMP,
                 "OpenBLAS must be its OpenMP build, else there are two teams of threads");
    hx_backend_destroy(&one);
    hx_backend_destroy(&two);
    hx_backend_destroy(&all);
}

// In a child: the program becomes itself again, here only to list its tests.
Test(backend_threads, prepare_starts_the_program_again_once)
{
    char *argv[] = {"backend_threads_test", "--list", NULL};
    const pid_t child = fork();
    if (child == 0) {
        unsetenv("OMP_WAIT_POLICY");
        unsetenv("BXFI_MAP");  // By which the test runner knows its own children.
        hx_cpu_prepare(argv);
        _exit(7);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    setenv("OMP_WAIT_POLICY", "active", 1);
    hx_cpu_prepare(argv);
    cr_assert_str_eq(getenv("OMP_WAIT_POLICY"), "active");
}
