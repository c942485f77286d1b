// schedule - see the header.

#include "model/schedule.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[SCHEDULE_KINDS_COUNT] = {
    [SCHEDULE_GPIPE] = "gpipe",
    [SCHEDULE_1F1B] = "1f1b",
    [SCHEDULE_H1F1B] = "h1f1b",
    [SCHEDULE_ZB] = "zb",
};

const char *schedule_kind_name(schedule_kind_t kind)
{
    HX_ASSERT((size_t)kind < HX_COUNT(kind_names));
    return kind_names[kind];
}

bool schedule_kind_find(const char *name, schedule_kind_t *kind)
{
    for (size_t index = 0; index < HX_COUNT(kind_names); index++) {
        if (strcmp(name, kind_names[index]) == 0) {
            *kind = (schedule_kind_t)index;
            return true;
        }
    }
    return false;
}

static void check(const schedule_in_t *in)
{
    HX_ASSERT(in->stages >= 1 && in->stages <= SCHEDULE_STAGES_MAX);
    HX_ASSERT(in->stage < in->stages);
    HX_ASSERT(in->micros >= 1 && in->micros <= SCHEDULE_MICROS_MAX);
}

uint32_t schedule_depth(const schedule_in_t *in, uint32_t stage)
{
    check(in);
    HX_ASSERT(stage < in->stages);
    uint32_t depth = in->micros;
    if (in->kind == SCHEDULE_GPIPE) {
        return depth;
    }
    if (in->kind == SCHEDULE_1F1B || !in->depths) {
        return HX_MIN(depth, in->stages - stage);
    }
    for (uint32_t before = 0; before <= stage; before++) {
        depth = HX_MIN(depth, HX_MAX(in->depths[before], 1));
    }
    return depth;
}

uint32_t schedule_credit_forward(const schedule_in_t *in, uint32_t stage)
{
    HX_ASSERT(stage + 1 < in->stages);
    const uint32_t spare = schedule_depth(in, stage) - schedule_depth(in, stage + 1);
    return HX_MAX(spare, 1);
}

uint32_t schedule_credit_backward(const schedule_in_t *in, uint32_t stage)
{
    HX_ASSERT(stage + 1 < in->stages);
    return schedule_depth(in, stage);
}

uint32_t schedule_ops_max(const schedule_in_t *in)
{
    return in->micros * (in->kind == SCHEDULE_ZB ? 3 : 2);
}

// Enough forwards first to fill the stages behind, then one backward for each forward, then the
// rest. So at most `depth` sets are alive, whatever the number of microbatches (Narayanan et al.
// 2019).
static uint32_t make_one_to_one(uint32_t micros, uint32_t depth, schedule_op_t *out)
{
    uint32_t count = 0;
    uint32_t forward = 0;
    while (forward < depth - 1) {
        out[count++] = (schedule_op_t){SCHEDULE_FORWARD, forward++};
    }
    for (uint32_t backward = 0; backward < micros; backward++) {
        if (forward < micros) {
            out[count++] = (schedule_op_t){SCHEDULE_FORWARD, forward++};
        }
        out[count++] = (schedule_op_t){SCHEDULE_BACKWARD, backward};
    }
    return count;
}

// The same order, with weight parts `lag` microbatches behind their input part: later stages put
// them off longer, so that gradients reach the earlier ones sooner, which then have weight parts to
// fill the wait (the first handcrafted schedule of Qi et al. 2023, "Zero bubble pipeline
// parallelism").
static uint32_t make_zero_bubble(uint32_t micros, uint32_t depth, uint32_t lag, schedule_op_t *out)
{
    uint32_t count = 0;
    uint32_t forward = 0;
    uint32_t weight = 0;
    while (forward < depth - 1) {
        out[count++] = (schedule_op_t){SCHEDULE_FORWARD, forward++};
    }
    for (uint32_t backward = 0; backward < micros; backward++) {
        if (forward < micros) {
            out[count++] = (schedule_op_t){SCHEDULE_FORWARD, forward++};
        }
        out[count++] = (schedule_op_t){SCHEDULE_BACKWARD_INPUT, backward};
        if (backward - weight + 1 > lag) {
            out[count++] = (schedule_op_t){SCHEDULE_BACKWARD_WEIGHT, weight++};
        }
    }
    while (weight < micros) {
        out[count++] = (schedule_op_t){SCHEDULE_BACKWARD_WEIGHT, weight++};
    }
    return count;
}

uint32_t schedule_make(const schedule_in_t *in, schedule_op_t *out)
{
    HX_ASSERT(out);
    const uint32_t depth = schedule_depth(in, in->stage);
    uint32_t count = 0;
    if (in->kind == SCHEDULE_ZB) {
        count = make_zero_bubble(in->micros, depth, schedule_depth(in, 0) - depth, out);
    } else {
        count = make_one_to_one(in->micros, depth, out);
    }
    HX_ASSERT(count == schedule_ops_max(in));
    return count;
}

// A set ends with its backward or its weight part, and each microbatch has exactly one of the two.
uint32_t schedule_peak(const schedule_op_t *ops, uint32_t ops_count)
{
    uint32_t alive = 0;
    uint32_t peak = 0;
    for (uint32_t index = 0; index < ops_count; index++) {
        if (ops[index].kind == SCHEDULE_FORWARD) {
            alive++;
            peak = HX_MAX(peak, alive);
        } else if (ops[index].kind != SCHEDULE_BACKWARD_INPUT) {
            HX_ASSERT(alive > 0);
            alive--;
        }
    }
    return peak;
}

static uint32_t rounds(double time, double t_max)
{
    const double count = ceil(time / t_max);
    return count < SCHEDULE_MICROS_MAX ? (uint32_t)count : SCHEDULE_MICROS_MAX;
}

void schedule_depths(const schedule_times_t *times, uint32_t *depths)
{
    HX_ASSERT(times->stages >= 1 && times->stages <= SCHEDULE_STAGES_MAX);
    HX_ASSERT(times->t_max > 0);
    uint32_t depth = 0;
    for (uint32_t stage = times->stages; stage-- > 0;) {
        const uint32_t own = times->latency ? rounds(times->latency[stage], times->t_max) : 1;
        depth += HX_MAX(own, 1);
        if (stage + 1 < times->stages && times->hop[stage] >= 0.02 * times->t_max) {
            depth += rounds(2 * times->hop[stage], times->t_max);
        }
        depth = HX_MIN(depth, SCHEDULE_MICROS_MAX);
        depths[stage] = depth;
    }
    for (uint32_t stage = 0; stage < times->stages; stage++) {
        if (times->caps) {
            depths[stage] = HX_MIN(depths[stage], HX_MAX(times->caps[stage], 1));
        }
        if (stage > 0) {
            depths[stage] = HX_MIN(depths[stage], depths[stage - 1]);
        }
    }
}
