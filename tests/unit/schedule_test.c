// schedule_test - laws of schedules, on random shapes, and the lists and times of some known ones.

#include "model/schedule.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STAGES 12u
#define MICROS 40u
#define OPS (3u * MICROS)

typedef struct {
    schedule_kind_t kind;
    uint32_t stages;
    uint32_t micros;
    uint32_t depths[STAGES];
} shape_t;

static schedule_in_t in_of(const shape_t *shape, uint32_t stage)
{
    return (schedule_in_t){.kind = shape->kind,
                           .stage = stage,
                           .stages = shape->stages,
                           .micros = shape->micros,
                           .depths = shape->depths};
}

static shape_t random_shape(hx_rng_t *rng)
{
    shape_t shape = {
        .kind = (schedule_kind_t)hx_rng_below(rng, SCHEDULE_KINDS_COUNT),
        .stages = 1 + (uint32_t)hx_rng_below(rng, STAGES),
        .micros = 1 + (uint32_t)hx_rng_below(rng, MICROS),
    };
    for (uint32_t stage = 0; stage < shape.stages; stage++) {
        shape.depths[stage] = (uint32_t)hx_rng_below(rng, 2 * STAGES);
    }
    return shape;
}

static void check_list(const shape_t *shape, uint32_t stage)
{
    const schedule_in_t in = in_of(shape, stage);
    schedule_op_t ops[OPS];
    uint32_t seen[4][MICROS] = {{0}};
    const uint32_t count = schedule_make(&in, ops);
    cr_assert_leq(count, schedule_ops_max(&in));
    for (uint32_t index = 0; index < count; index++) {
        const schedule_op_t op = ops[index];
        cr_assert_lt(op.micro, shape->micros);
        cr_assert_eq(seen[op.kind][op.micro], 0, "an operation stands twice");
        seen[op.kind][op.micro] = index + 1;
    }
    for (uint32_t micro = 0; micro < shape->micros; micro++) {
        const uint32_t forward = seen[SCHEDULE_FORWARD][micro];
        const uint32_t both = seen[SCHEDULE_BACKWARD][micro];
        const uint32_t input = seen[SCHEDULE_BACKWARD_INPUT][micro];
        const uint32_t weight = seen[SCHEDULE_BACKWARD_WEIGHT][micro];
        cr_assert_gt(forward, 0);
        cr_assert((both > 0) != (input > 0 && weight > 0), "neither one backward nor two parts");
        cr_assert(both > 0 ? both > forward : input > forward && weight > input);
    }
}

Test(schedule, has_each_microbatch_once_and_forwards_first)
{
    hx_rng_t rng = hx_rng_seed(seed_of("schedule lists"));
    for (uint32_t round = 0; round < 2000; round++) {
        const shape_t shape = random_shape(&rng);
        for (uint32_t stage = 0; stage < shape.stages; stage++) {
            check_list(&shape, stage);
        }
    }
}

// In-flight activations of every schedule: all microbatches for gpipe, min (M, stages - s) for
// 1f1b, the depths of the plan for h1f1b, and for zb on every stage as many as on the first.
static uint32_t peak_by_formula(const shape_t *shape, uint32_t stage)
{
    uint32_t least = shape->micros;
    switch (shape->kind) {
    case SCHEDULE_GPIPE:
        return shape->micros;
    case SCHEDULE_1F1B:
        return HX_MIN(shape->micros, shape->stages - stage);
    case SCHEDULE_ZB:
        return HX_MIN(shape->micros, HX_MAX(shape->depths[0], 1));
    default:
        for (uint32_t before = 0; before <= stage; before++) {
            least = HX_MIN(least, HX_MAX(shape->depths[before], 1));
        }
        return least;
    }
}

Test(schedule, has_the_peak_of_its_formula)
{
    hx_rng_t rng = hx_rng_seed(seed_of("schedule peak"));
    for (uint32_t round = 0; round < 2000; round++) {
        const shape_t shape = random_shape(&rng);
        for (uint32_t stage = 0; stage < shape.stages; stage++) {
            const schedule_in_t in = in_of(&shape, stage);
            schedule_op_t ops[OPS];
            const uint32_t peak = schedule_peak(ops, schedule_make(&in, ops));
            cr_assert_eq(peak, peak_by_formula(&shape, stage),
                         "%s, stage %u of %u, %u microbatches", schedule_kind_name(shape.kind),
                         stage, shape.stages, shape.micros);
            cr_assert(shape.kind == SCHEDULE_ZB || peak == schedule_depth(&in, stage));
        }
    }
}

// Stages that exchange messages under the credits. A forward takes its activation from the queue
// before and needs room in the one behind; a backward likewise, the other way.
typedef struct {
    schedule_op_t ops[STAGES][OPS];
    uint32_t counts[STAGES];
    uint32_t next[STAGES];
    uint32_t forward[STAGES];  // Messages on the boundary behind the stage.
    uint32_t backward[STAGES];
} pipe_t;

static bool can_run(const shape_t *shape, const pipe_t *pipe, uint32_t stage)
{
    const schedule_in_t in = in_of(shape, stage);
    const bool last = stage + 1 == shape->stages;
    if (pipe->next[stage] == pipe->counts[stage]) {
        return false;
    }
    switch (pipe->ops[stage][pipe->next[stage]].kind) {
    case SCHEDULE_FORWARD:
        return (stage == 0 || pipe->forward[stage - 1] > 0) &&
               (last || pipe->forward[stage] < schedule_credit_forward(&in, stage));
    case SCHEDULE_BACKWARD:
    case SCHEDULE_BACKWARD_INPUT:
        return (last || pipe->backward[stage] > 0) &&
               (stage == 0 || pipe->backward[stage - 1] < schedule_credit_backward(&in, stage - 1));
    case SCHEDULE_BACKWARD_WEIGHT:
        break;
    }
    return true;
}

static void run_one(const shape_t *shape, pipe_t *pipe, uint32_t stage)
{
    const bool last = stage + 1 == shape->stages;
    const schedule_op_kind_t kind = pipe->ops[stage][pipe->next[stage]++].kind;
    if (kind == SCHEDULE_FORWARD) {
        pipe->forward[stage] += !last;
        if (stage > 0) {
            pipe->forward[stage - 1]--;
        }
    } else if (kind != SCHEDULE_BACKWARD_WEIGHT) {
        pipe->backward[stage] -= !last;
        if (stage > 0) {
            pipe->backward[stage - 1]++;
        }
    }
}

// Runs a random stage that can, until none can; true if all lists came to their end. An operation
// that can run still can after any other stage's, so whether all end does not depend on the choice:
// one interleaving of a shape speaks for all of them.
static bool runs_through(const shape_t *shape, hx_rng_t *rng)
{
    pipe_t *const pipe = calloc(1, sizeof *pipe);
    for (uint32_t stage = 0; stage < shape->stages; stage++) {
        const schedule_in_t in = in_of(shape, stage);
        pipe->counts[stage] = schedule_make(&in, pipe->ops[stage]);
    }
    for (uint32_t ready = 1; ready > 0;) {
        uint32_t able[STAGES];
        ready = 0;
        for (uint32_t stage = 0; stage < shape->stages; stage++) {
            if (can_run(shape, pipe, stage)) {
                able[ready++] = stage;
            }
        }
        if (ready > 0) {
            run_one(shape, pipe, able[hx_rng_below(rng, ready)]);
        }
    }
    bool done = true;
    for (uint32_t stage = 0; stage < shape->stages; stage++) {
        done = done && pipe->next[stage] == pipe->counts[stage];
    }
    free(pipe);
    return done;
}

Test(schedule, never_deadlocks_under_its_credits)
{
    hx_rng_t rng = hx_rng_seed(seed_of("schedule deadlock"));
    for (uint32_t round = 0; round < 3000; round++) {
        shape_t shape = random_shape(&rng);
        if (round < 4 * MICROS) {
            shape.kind = (schedule_kind_t)(round % 4);
            shape.micros = 1 + round / 4;  // Every number of microbatches, from 1.
        }
        cr_assert(runs_through(&shape, &rng), "%s, %u stages, %u microbatches, round %u",
                  schedule_kind_name(shape.kind), shape.stages, shape.micros, round);
    }
}

// Time of all, in units of one microbatch's forward (1/3) and backward (2/3), messages taking
// `hop`.
static double time_of(const shape_t *shape, double hop)
{
    double ends[STAGES][4][MICROS * 2] = {{{0}}};
    double free_at[STAGES] = {0};
    uint32_t next[STAGES] = {0};
    schedule_op_t ops[STAGES][6 * MICROS];
    uint32_t left = 0;
    for (uint32_t stage = 0; stage < shape->stages; stage++) {
        const schedule_in_t in = in_of(shape, stage);
        left += schedule_make(&in, ops[stage]);
    }
    const double spans[] = {1.0 / 3, 2.0 / 3, 1.0 / 3, 1.0 / 3};
    while (left > 0) {
        for (uint32_t stage = 0; stage < shape->stages; stage++) {
            const schedule_in_t in = in_of(shape, stage);
            if (next[stage] == schedule_ops_max(&in)) {
                continue;
            }
            const schedule_op_t op = ops[stage][next[stage]];
            const bool forward = op.kind == SCHEDULE_FORWARD;
            const bool waits =
                forward ? stage > 0
                        : stage + 1 < shape->stages && op.kind != SCHEDULE_BACKWARD_WEIGHT;
            double start = free_at[stage];
            if (waits) {
                const double came = ends[forward ? stage - 1 : stage + 1][op.kind][op.micro];
                if (came <= 0) {
                    continue;
                }
                start = fmax(start, came + hop);
            }
            free_at[stage] = ends[stage][op.kind][op.micro] = start + spans[op.kind];
            next[stage]++;
            left--;
        }
    }
    double last = 0;
    for (uint32_t stage = 0; stage < shape->stages; stage++) {
        last = fmax(last, free_at[stage]);
    }
    return last;
}

Test(schedule, h1f1b_hides_a_slow_link_that_1f1b_does_not)
{
    const double hop = 0.4;
    shape_t shape = {.kind = SCHEDULE_1F1B, .stages = 2, .micros = 64};
    const double plain = time_of(&shape, hop);
    shape.kind = SCHEDULE_H1F1B;
    schedule_depths(&(schedule_times_t){.stages = 2, .hop = &hop, .t_max = 1}, shape.depths);
    const double hidden = time_of(&shape, hop);
    cr_assert_float_eq(plain, 90.6, 0.3, "1f1b took %g", plain);
    cr_assert_float_eq(hidden, 65.8, 0.1, "h1f1b took %g", hidden);
}

Test(schedule, zero_bubble_beats_1f1b_where_the_bubble_is_large)
{
    shape_t shape = {.kind = SCHEDULE_1F1B, .stages = 4, .micros = 8};
    const double plain = time_of(&shape, 0);
    shape.kind = SCHEDULE_ZB;
    for (uint32_t stage = 0; stage < 4; stage++) {
        shape.depths[stage] = 4 - stage;
    }
    const double split = time_of(&shape, 0);
    cr_assert_float_eq(plain, 11, 1e-9);
    cr_assert_leq(split, 9.5, "zb took %g", split);
}

Test(schedule, makes_the_known_list_of_1f1b)
{
    const schedule_in_t in = {.kind = SCHEDULE_1F1B, .stage = 1, .stages = 3, .micros = 4};
    const schedule_op_t known[] = {
        {SCHEDULE_FORWARD, 0},  {SCHEDULE_FORWARD, 1},  {SCHEDULE_BACKWARD, 0},
        {SCHEDULE_FORWARD, 2},  {SCHEDULE_BACKWARD, 1}, {SCHEDULE_FORWARD, 3},
        {SCHEDULE_BACKWARD, 2}, {SCHEDULE_BACKWARD, 3},
    };
    schedule_op_t ops[OPS];
    cr_assert_eq(schedule_make(&in, ops), HX_COUNT(known));
    for (size_t index = 0; index < HX_COUNT(known); index++) {
        cr_assert_eq(ops[index].kind, known[index].kind);
        cr_assert_eq(ops[index].micro, known[index].micro);
    }
}

Test(schedule, depths_follow_links_latencies_and_caps)
{
    uint32_t depths[4];
    const double none[] = {0.01, 0.01, 0.01};
    const double slow[] = {0.01, 0.7, 0.01};
    const double latency[] = {1, 1, 4, 1};
    const uint32_t caps[] = {9, 2, 9, 9};
    schedule_times_t times = {.stages = 4, .hop = none, .t_max = 1};
    schedule_depths(&times, depths);
    cr_assert_arr_eq(depths, ((uint32_t[]){4, 3, 2, 1}), sizeof depths);
    times.hop = slow;
    schedule_depths(&times, depths);
    cr_assert_arr_eq(depths, ((uint32_t[]){6, 5, 2, 1}), sizeof depths);
    times.latency = latency;
    schedule_depths(&times, depths);
    cr_assert_arr_eq(depths, ((uint32_t[]){9, 8, 5, 1}), sizeof depths);
    times.caps = caps;
    schedule_depths(&times, depths);
    cr_assert_arr_eq(depths, ((uint32_t[]){9, 2, 2, 1}), sizeof depths);
}

Test(schedule, knows_its_kinds_by_name)
{
    for (uint32_t kind = 0; kind < SCHEDULE_KINDS_COUNT; kind++) {
        schedule_kind_t found;
        cr_assert(schedule_kind_find(schedule_kind_name((schedule_kind_t)kind), &found));
        cr_assert_eq(found, kind);
    }
    schedule_kind_t unused;
    cr_assert_not(schedule_kind_find("2f2b", &unused));
}
