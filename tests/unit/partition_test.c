// partition_test - the tables against trying every cut, on small random chains.

#include "scheduler/partition.h"

#include <criterion/criterion.h>
#include <math.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#define DEVICES_MAX 4
#define SITES_MAX 2

typedef struct {
    model_t *model;
    profile_t profiles[DEVICES_MAX];
    const profile_t *devices[DEVICES_MAX];
    uint32_t sites[DEVICES_MAX];
    double hop[SITES_MAX * SITES_MAX];
    partition_in_t in;
} chain_t;

static void chain_make(chain_t *self, hx_rng_t *rng)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 1 + (uint32_t)hx_rng_below(rng, 5);
    conf.heads = 1;
    conf.channels = 4;
    conf.context = 4;
    conf.vocab = 8;
    cr_assert_eq(model_open(&conf, &self->model, NULL), HX_OK);
    const uint32_t devices = 1 + (uint32_t)hx_rng_below(rng, DEVICES_MAX);
    const uint64_t whole = partition_memory(self->model, 2, 0, conf.layers + 2, 1);
    for (uint32_t at = 0; at < devices; at++) {
        const double slow = 1 + hx_rng_unit(rng) * 5;
        self->profiles[at] = (profile_t){
            .microbatch = 2,
            .embed = {0.1 * slow, 0.2 * slow},
            .block = {1 * slow, 2 * slow},
            .head = {hx_rng_unit(rng) * 2 * slow, hx_rng_unit(rng) * 4 * slow},
            // From a fifth of the model to a bit more than all of it.
            .memory = (uint64_t)((double)whole * (0.2 + hx_rng_unit(rng))),
        };
        self->devices[at] = &self->profiles[at];
        self->sites[at] = (uint32_t)hx_rng_below(rng, SITES_MAX);
    }
    for (uint32_t at = 0; at < SITES_MAX * SITES_MAX; at++) {
        self->hop[at] = hx_rng_unit(rng);
    }
    self->in = (partition_in_t){.model = self->model,
                                .microbatch = 2,
                                .devices_count = devices,
                                .devices = self->devices,
                                .sites = self->sites,
                                .sites_count = SITES_MAX,
                                .hop = self->hop};
}

static double hop_between(const chain_t *self, uint32_t a, uint32_t b)
{
    const uint32_t from = self->sites[a];
    const uint32_t to = self->sites[b];
    return self->hop[from * SITES_MAX + to] + self->hop[to * SITES_MAX + from];
}

// Least dearest stage over all cuts of layers [first, ..) into `stages`, the first one on `device`;
// on any device if that is 0, which no later stage can be on.
static double try_all(const chain_t *self, uint32_t stages, uint32_t device, uint32_t first)
{
    const uint32_t layers = model_layers_count(self->model);
    double best = INFINITY;
    for (uint32_t on = device; on < self->in.devices_count; on++) {
        for (uint32_t end = first + 1; end <= layers; end++) {
            if ((stages == 1) != (end == layers) ||
                partition_memory(self->model, 2, first, end, stages) > self->profiles[on].memory) {
                continue;
            }
            const profile_time_t time =
                partition_time(&self->profiles[on], self->model, 2, first, end);
            const double own = time.forward + time.backward;
            if (stages == 1) {
                best = fmin(best, own);
                continue;
            }
            // The hop depends on who comes next, so the next device is fixed here.
            for (uint32_t next = on + 1; next < self->in.devices_count; next++) {
                const double rest = try_all(self, stages - 1, next, end);
                best = fmin(best, fmax(own + hop_between(self, on, next), rest));
            }
        }
        if (device > 0) {
            break;  // A caller with device > 0 asks for exactly this device.
        }
    }
    return best;
}

static void check_cut(const chain_t *self, uint32_t stages, const partition_stage_t *cut,
                      double slowest)
{
    double dearest = 0;
    for (uint32_t at = 0; at < stages; at++) {
        cr_assert_eq(cut[at].layer_first, at > 0 ? cut[at - 1].layer_end : 0);
        cr_assert_lt(cut[at].layer_first, cut[at].layer_end);
        cr_assert(at == 0 || cut[at].device > cut[at - 1].device);
        cr_assert_leq(
            partition_memory(self->model, 2, cut[at].layer_first, cut[at].layer_end, stages - at),
            self->profiles[cut[at].device].memory);
        const profile_time_t time = partition_time(&self->profiles[cut[at].device], self->model, 2,
                                                   cut[at].layer_first, cut[at].layer_end);
        const double hop =
            at + 1 < stages ? hop_between(self, cut[at].device, cut[at + 1].device) : 0;
        dearest = fmax(dearest, time.forward + time.backward + hop);
    }
    cr_assert_eq(cut[stages - 1].layer_end, model_layers_count(self->model));
    cr_assert_float_eq(dearest, slowest, 1e-9 * dearest);
}

Test(partition, is_as_good_as_trying_every_cut)
{
    hx_rng_t rng = hx_rng_seed(seed_of("partition"));
    uint32_t found = 0;
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 300; round++) {
        chain_t chain;
        chain_make(&chain, &rng);
        partition_t *partition = partition_new(&chain.in);
        for (uint32_t stages = 1; stages <= partition_stages_max(partition); stages++) {
            partition_stage_t cut[DEVICES_MAX];
            double slowest = 0;
            const double best = try_all(&chain, stages, 0, 0);
            const bool fits = partition_cut(partition, stages, cut, &slowest);
            cr_assert_eq(fits, isfinite(best), "round %u, %u stages", round, stages);
            if (fits) {
                check_cut(&chain, stages, cut, slowest);
                cr_assert_float_eq(slowest, best, 1e-9 * best, "round %u, %u stages: %g, best %g",
                                   round, stages, slowest, best);
            }
            found += fits ? 1 : 0;
            refused += fits ? 0 : 1;
        }
        partition_destroy(&partition);
        model_destroy(&chain.model);
    }
    cr_assert_gt(found, 100);
    cr_assert_gt(refused, 20);
}

Test(partition, memory_counts_a_tied_group_once_in_one_stage)
{
    hx_rng_t rng = hx_rng_seed(1);
    chain_t chain;
    chain_make(&chain, &rng);
    const uint32_t layers = model_layers_count(chain.model);
    const uint64_t params = model_params_count(chain.model) * 4;
    const uint64_t one = partition_memory(chain.model, 1, 0, layers, 0);
    const uint64_t two =
        partition_memory(chain.model, 1, 0, 1, 0) + partition_memory(chain.model, 1, 1, layers, 0);
    const uint64_t tied = model_group(chain.model, 0)->size * 4;
    cr_assert_eq(one - model_layer(chain.model, layers - 1)->logits_size, 4 * params);
    cr_assert_eq(two - one, 4 * tied);
    model_destroy(&chain.model);
}

Test(partition, depth_max_is_the_largest_that_fits)
{
    hx_rng_t rng = hx_rng_seed(2);
    chain_t chain;
    chain_make(&chain, &rng);
    for (uint32_t depth = 1; depth < 5; depth++) {
        const uint64_t memory = partition_memory(chain.model, 2, 0, 2, depth);
        cr_assert_eq(partition_depth_max(chain.model, 2, 0, 2, memory), depth);
        cr_assert_eq(partition_depth_max(chain.model, 2, 0, 2, memory - 1), depth - 1);
    }
    cr_assert_eq(partition_depth_max(chain.model, 2, 0, 2, 1), 0);
    model_destroy(&chain.model);
}
