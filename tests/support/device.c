// device - see the header.

#include "tests/support/device.h"

#include "tests/support/seed.h"

#include <math.h>
#include <stdio.h>

static const int thread_counts[] = {1, 3};

void device_each(const char *name, device_check_fn check)
{
    const uint64_t seed = seed_of(name);
    for (int variant = 0; variant < HX_CPU_VARIANTS_COUNT; variant++) {
        for (size_t at = 0; at < HX_COUNT(thread_counts); at++) {
            hx_backend_t *backend = hx_backend_cpu_new(thread_counts[at]);
            fprintf(stderr, "%s: cpu %s, threads %d", name, hx_cpu_variant_name(variant),
                    thread_counts[at]);
            if (hx_backend_cpu_variant(backend, variant) == HX_OK) {
                fprintf(stderr, "\n");
                hx_rng_t rng = hx_rng_seed(seed);
                check(backend, &rng);
            } else {
                fprintf(stderr, ": passed over, this processor cannot\n");
            }
            hx_backend_destroy(&backend);
        }
    }
}

void *device_put(hx_backend_t *backend, const void *host, size_t size)
{
    void *memory = NULL;
    HX_ASSERT(backend->ops->alloc(backend, HX_MAX(size, (size_t)1), &memory) == HX_OK);
    if (host) {
        HX_ASSERT(backend->ops->upload(backend, 0, memory, host, size) == HX_OK);
        HX_ASSERT(backend->ops->sync(backend, 0) == HX_OK);
    }
    return memory;
}

void device_get(hx_backend_t *backend, void *host, const void *memory, size_t size)
{
    HX_ASSERT(backend->ops->download(backend, 0, host, memory, size) == HX_OK);
    HX_ASSERT(backend->ops->sync(backend, 0) == HX_OK);
}

void device_take(hx_backend_t *backend, float *host, float *memory, size_t count)
{
    device_get(backend, host, memory, count * sizeof *host);
    device_drop(backend, memory);
}

void device_drop(hx_backend_t *backend, void *memory)
{
    backend->ops->release(backend, &memory);
    HX_ASSERT(!memory);
}

void device_random(hx_rng_t *rng, float *x, size_t count)
{
    for (size_t e = 0; e < count; e++) {
        x[e] = (float)hx_rng_normal(rng);
    }
}

size_t device_between(hx_rng_t *rng, size_t first, size_t last)
{
    return first + (size_t)hx_rng_below(rng, last - first + 1);
}

double device_distance(const float *got, const double *wanted, size_t count)
{
    double difference = 0;
    double norm = 0;
    for (size_t e = 0; e < count; e++) {
        difference += ((double)got[e] - wanted[e]) * ((double)got[e] - wanted[e]);
        norm += wanted[e] * wanted[e];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
