// profiler: plausible times of every kind of layer, in about the time that it may take.

#include "worker/profiler.h"

#include <criterion/criterion.h>
#include <time.h>

static model_t *open_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
    conf.heads = 2;
    conf.channels = 32;
    conf.context = 16;
    conf.vocab = 64;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    return model;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

Test(profiler, measures_what_a_peer_may_claim)
{
    model_t *model = open_model();
    hx_backend_t *backend = hx_backend_cpu_new(1);
    profiler_conf_t conf = {.backend = backend,
                            .model = model,
                            .microbatch = 2,
                            .threads = 1,
                            .slowdown = 1,
                            .seconds = 0.06};
    profile_t profile;
    const double start = seconds_now();
    cr_assert_eq(profiler_run(&conf, &profile), HX_OK);
    cr_assert_lt(seconds_now() - start, 10, "a machine under load may be slow, not that slow");
    cr_assert(profile_valid(&profile));
    cr_assert_eq(profile.microbatch, 2);
    cr_assert_eq(profile.threads, 1);
    cr_assert_gt(profile.embed.forward, 0);
    cr_assert_gt(profile.head.backward, 0);
    cr_assert_lt(profile.block.backward, 1);
    cr_assert_leq(profile.memory, profiler_memory() + ((uint64_t)4 << 30));
    hx_backend_destroy(&backend);
    model_destroy(&model);
}

Test(profiler, slowdown_stretches_every_time)
{
    model_t *model = open_model();
    hx_backend_t *backend = hx_backend_cpu_new(1);
    profiler_conf_t conf = {.backend = backend,
                            .model = model,
                            .microbatch = 1,
                            .threads = 1,
                            .slowdown = 1,
                            .seconds = 0.06};
    profile_t plain;
    profile_t slow;
    cr_assert_eq(profiler_run(&conf, &plain), HX_OK);
    conf.slowdown = 1000;
    cr_assert_eq(profiler_run(&conf, &slow), HX_OK);
    // Far beyond what load on the machine could do to a median.
    cr_assert_gt(slow.embed.forward, 50 * plain.embed.forward);
    cr_assert_gt(slow.block.forward, 50 * plain.block.forward);
    cr_assert_gt(slow.head.backward, 50 * plain.head.backward);
    hx_backend_destroy(&backend);
    model_destroy(&model);
}
