// profile_test - sums of layers' times, and what is refused from a peer.

#include "model/profile.h"

#include <criterion/criterion.h>
#include <math.h>

static model_t *open_model(uint32_t layers)
{
    model_conf_t conf = model_conf_default();
    conf.layers = layers;
    conf.heads = 2;
    conf.channels = 8;
    conf.context = 4;
    conf.vocab = 16;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    return model;
}

static profile_t sample(void)
{
    return (profile_t){.microbatch = 2,
                       .embed = {1, 2},
                       .block = {10, 20},
                       .head = {100, 200},
                       .memory = 1 << 20,
                       .threads = 1,
                       .slowdown = 1};
}

Test(profile, sums_the_kinds_of_a_range)
{
    model_t *model = open_model(3);
    const profile_t profile = sample();
    const profile_time_t all = profile_layers(&profile, model, 0, 5);
    cr_assert_float_eq(all.forward, 1 + 30 + 100, 1e-12);
    cr_assert_float_eq(all.backward, 2 + 60 + 200, 1e-12);
    const profile_time_t inner = profile_layers(&profile, model, 1, 3);
    cr_assert_float_eq(inner.forward, 20, 1e-12);
    const profile_time_t none = profile_layers(&profile, model, 2, 2);
    cr_assert_float_eq(none.forward + none.backward, 0, 1e-12);
    model_destroy(&model);
}

Test(profile, refuses_what_no_device_can_have)
{
    const profile_t good = sample();
    cr_assert(profile_valid(&good));
    profile_t bad = good;
    bad.microbatch = 0;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.block.forward = NAN;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.head.backward = INFINITY;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.embed.forward = -1;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.block.backward = 0;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.memory = 0;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.slowdown = 0.5;
    cr_assert_not(profile_valid(&bad));
    bad = good;
    bad.memory = UINT64_MAX;
    cr_assert_not(profile_valid(&bad));
}

Test(profile, declared_times_follow_threads_and_slowdown_alone)
{
    model_t *model = open_model(3);
    profile_t fast = sample(), slow = sample();
    slow.block.forward *= 1.01;  // What a second measurement would give.
    profile_t a = profile_declared(&fast, model), b = profile_declared(&slow, model);
    cr_assert_eq(a.block.forward, b.block.forward);
    slow.slowdown = 3;
    b = profile_declared(&slow, model);
    cr_assert_float_eq(b.block.backward / a.block.backward, 3, 1e-3);
    fast.threads = 2;
    cr_assert_float_eq(profile_declared(&fast, model).block.forward / a.block.forward, 0.5, 1e-3);
    model_destroy(&model);
}

Test(profile, refuses_links_that_are_none)
{
    const profile_link_t good = {.from = 2, .to = 3, .latency = 0, .bandwidth = 1e6};
    cr_assert(profile_link_valid(&good));
    profile_link_t bad = good;
    bad.bandwidth = 0;
    cr_assert_not(profile_link_valid(&bad));
    bad = good;
    bad.latency = -1e-3;
    cr_assert_not(profile_link_valid(&bad));
    bad = good;
    bad.latency = NAN;
    cr_assert_not(profile_link_valid(&bad));
    bad = good;
    bad.to = NODE_NONE;
    cr_assert_not(profile_link_valid(&bad));
}
