// planner_lane - from profiles and links to the arrays that price.h wants.

#include "scheduler/planner_lane.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "scheduler/partition.h"

#define MICROS_STEADY 32u  // Microbatches after which a pipeline runs steadily, at least.

static uint32_t micros_of(const field_t *field, uint32_t rows)
{
    return (uint32_t)(((uint64_t)rows + field->conf->microbatch - 1) / field->conf->microbatch);
}

static size_t pair_of(const field_t *field, uint32_t from, uint32_t to)
{
    return (size_t)from * field->sites_count + to;
}

void lane_new(lane_t *self, const field_t *field, const draft_stage_t *stages,
              uint32_t stages_count)
{
    HX_ASSERT(stages_count > 0);
    *self = (lane_t){.stages = stages, .stages_count = stages_count};
    double **const arrays[] = {&self->forward, &self->backward, &self->line, &self->line_back,
                               &self->latency, &self->push,     &self->pull};
    for (size_t at = 0; at < HX_COUNT(arrays); at++) {
        *arrays[at] = hx_new(stages_count, sizeof(double));
    }
    self->caps = hx_new(stages_count, sizeof *self->caps);
    self->depths = hx_new(stages_count, sizeof *self->depths);
    const uint32_t rows = field->conf->microbatch;
    for (uint32_t at = 0; at < stages_count; at++) {
        const draft_stage_t *const stage = &stages[at];
        const profile_t *const profile = field_profile(field, stage->worker);
        const profile_time_t time =
            partition_time(profile, field->model, rows, stage->layer_first, stage->layer_end);
        self->forward[at] = time.forward;
        self->backward[at] = time.backward;
        self->slowest = fmax(self->slowest, time.forward + time.backward);
        self->caps[at] = partition_depth_max(field->model, rows, stage->layer_first,
                                             stage->layer_end, profile->memory);
        if (at + 1 < stages_count) {
            const uint32_t here = field_site(field, stage->worker);
            const uint32_t there = field_site(field, stages[at + 1].worker);
            const size_t pair = pair_of(field, here, there);
            const size_t back = pair_of(field, there, here);
            self->latency[at] = fmax(field->latency[pair], field->latency[back]);
            self->line[at] = field_message_size(field) / field->bandwidth[pair];
            self->line_back[at] = field_message_size(field) / field->bandwidth[back];
        }
    }
}

void lane_clear(lane_t *self)
{
    free(self->forward);
    free(self->backward);
    free(self->line);
    free(self->line_back);
    free(self->latency);
    free(self->push);
    free(self->pull);
    free(self->caps);
    free(self->depths);
    *self = (lane_t){0};
}

// Depths before memory is looked at.
static void wish_depths(lane_t *self, const field_t *field, uint32_t micros)
{
    const schedule_kind_t kind = field->conf->schedule;
    if (kind == SCHEDULE_H1F1B || kind == SCHEDULE_ZB) {
        double *const hop = hx_new(self->stages_count, sizeof *hop);
        for (uint32_t at = 0; at + 1 < self->stages_count; at++) {
            hop[at] = self->latency[at] + fmax(self->line[at], self->line_back[at]);
        }
        const schedule_times_t times = {
            .stages = self->stages_count, .hop = hop, .caps = self->caps, .t_max = self->slowest};
        schedule_depths(&times, self->depths);
        free(hop);
    } else {
        for (uint32_t at = 0; at < self->stages_count; at++) {
            self->depths[at] = kind == SCHEDULE_GPIPE ? micros : self->stages_count - at;
        }
    }
    for (uint32_t at = 0; at < self->stages_count; at++) {
        self->depths[at] = HX_MIN(self->depths[at], micros);
    }
}

// Activation sets that stage `at` holds at most.
static uint32_t peak_of(const lane_t *self, const field_t *field, uint32_t at, uint32_t micros)
{
    const schedule_in_t list = {.kind = field->conf->schedule,
                                .stage = at,
                                .stages = self->stages_count,
                                .micros = micros,
                                .depths = self->depths};
    schedule_op_t *const ops = hx_new(schedule_ops_max(&list), sizeof *ops);
    const uint32_t count = schedule_make(&list, ops);
    const uint32_t peak = schedule_peak(ops, count);
    free(ops);
    return peak;
}

hx_err_t lane_fit(lane_t *self, const field_t *field, uint32_t rows, hx_fault_t *fault)
{
    const uint32_t micros = micros_of(field, rows);
    HX_ASSERT(micros > 0);
    for (uint32_t at = 0; at < self->stages_count; at++) {
        self->caps[at] = HX_MAX(self->caps[at], 1u);  // Whether 1 fits is told below.
    }
    wish_depths(self, field, micros);
    for (uint32_t at = 0; at < self->stages_count; at++) {
        const draft_stage_t *const stage = &self->stages[at];
        const uint64_t memory = field_profile(field, stage->worker)->memory;
        uint32_t peak = peak_of(self, field, at, micros);
        while (field->conf->schedule == SCHEDULE_ZB && self->depths[at] > 1 &&
               partition_memory(field->model, field->conf->microbatch, stage->layer_first,
                                stage->layer_end, peak) > memory) {
            for (uint32_t behind = at; behind < self->stages_count; behind++) {
                self->depths[behind] = HX_MIN(self->depths[behind], self->depths[at] - 1);
            }
            peak = peak_of(self, field, at, micros);
        }
        const uint64_t need = partition_memory(field->model, field->conf->microbatch,
                                               stage->layer_first, stage->layer_end, peak);
        if (need > memory) {
            return hx_fault(fault, HX_E_ARG,
                            "plan: layers %" PRIu32 " to %" PRIu32 " do not fit on worker \"%s\": "
                            "they need %" PRIu64 " bytes with %" PRIu32
                            " microbatches in flight, it has %" PRIu64
                            " (give it fewer layers, or make plan.microbatch smaller)",
                            stage->layer_first, stage->layer_end - 1,
                            field_worker(field, stage->worker)->name, need, peak, memory);
        }
    }
    return HX_OK;
}

// Adds the bytes of a stage's parameters to those that go between its site and each server's.
static void add_load(const field_t *field, const draft_stage_t *stage, const uint32_t *group_site,
                     double *load)
{
    uint32_t *const groups = hx_new(model_groups_count(field->model), sizeof *groups);
    const uint32_t count =
        model_groups_of(field->model, stage->layer_first, stage->layer_end, groups);
    const uint32_t here = field_site(field, stage->worker);
    for (uint32_t at = 0; at < count; at++) {
        const uint64_t size = model_group(field->model, groups[at])->size * sizeof(float);
        load[pair_of(field, here, group_site[groups[at]])] += (double)size;
    }
    free(groups);
}

void lane_sync(lane_t *lanes, uint32_t lanes_count, const field_t *field,
               const uint32_t *group_site)
{
    const size_t pairs = (size_t)field->sites_count * field->sites_count;
    double *const all = hx_new(pairs, sizeof *all);
    double *const own = hx_new(pairs, sizeof *own);
    for (uint32_t lane = 0; lane < lanes_count; lane++) {
        for (uint32_t at = 0; at < lanes[lane].stages_count; at++) {
            add_load(field, &lanes[lane].stages[at], group_site, all);
        }
    }
    for (uint32_t lane = 0; lane < lanes_count; lane++) {
        for (uint32_t at = 0; at < lanes[lane].stages_count; at++) {
            for (size_t pair = 0; pair < pairs; pair++) {
                own[pair] = 0;
            }
            add_load(field, &lanes[lane].stages[at], group_site, own);
            const uint32_t here = field_site(field, lanes[lane].stages[at].worker);
            double push = 0;
            double pull = 0;
            for (uint32_t there = 0; there < field->sites_count; there++) {
                const size_t pair = pair_of(field, here, there);
                const size_t back = pair_of(field, there, here);
                if (own[pair] > 0) {
                    push = fmax(push, field->latency[pair] + all[pair] / field->bandwidth[pair]);
                    pull = fmax(pull, field->latency[pair] + field->latency[back] +
                                          all[pair] / field->bandwidth[back]);
                }
            }
            lanes[lane].push[at] = push;
            lanes[lane].pull[at] = pull;
        }
    }
    free(all);
    free(own);
}

static price_t simulate(const lane_t *self, const field_t *field, uint32_t rows)
{
    const price_in_t in = {.schedule = field->conf->schedule,
                           .stages = self->stages_count,
                           .rows = rows,
                           .microbatch = field->conf->microbatch,
                           .depths = self->depths,
                           .forward = self->forward,
                           .backward = self->backward,
                           .line = self->line,
                           .line_back = self->line_back,
                           .latency = self->latency,
                           .push = self->push,
                           .pull = self->pull,
                           .round = field->conf->sync_seconds,
                           .overlap = field->conf->overlap};
    return price_lease(&in);
}

// Between fill and drain every microbatch takes the same time: long leases are simulated short, and
// the rest is added in proportion.
price_t lane_price(const lane_t *self, const field_t *field, uint32_t rows)
{
    const uint32_t steady = HX_MAX(MICROS_STEADY, 4 * self->stages_count);
    const uint64_t longest = 2 * (uint64_t)steady * field->conf->microbatch;
    if (rows <= longest) {
        return simulate(self, field, rows);
    }
    const price_t half = simulate(self, field, (uint32_t)(longest / 2));
    const price_t whole = simulate(self, field, (uint32_t)longest);
    const double more = (double)(rows - longest) / (double)(longest / 2);
    price_t price = whole;
    price.lease += more * (whole.lease - half.lease);
    price.paced += more * (whole.paced - half.paced);
    price.period = fmax(price.paced, price.bound);
    return price;
}
