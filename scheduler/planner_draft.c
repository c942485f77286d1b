// planner_draft - rows, shard map, and the plan's arrays.

#include "scheduler/planner_draft.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOVES_MAX 256u   // Of rows between pipelines.
#define SERVER_RATE 1e9  // Bytes of parameters that a shard brings up to date in a second.

void draft_new(draft_t *self, const field_t *field)
{
    *self = (draft_t){0};
    self->stages = hx_new(field->workers_count, sizeof *self->stages);
    self->pipelines = hx_new((size_t)field->workers_count + 1, sizeof *self->pipelines);
}

void draft_clear(draft_t *self)
{
    free(self->stages);
    free(self->pipelines);
    *self = (draft_t){0};
}

void draft_add(draft_t *self, const draft_stage_t *stages, uint32_t stages_count)
{
    memcpy(&self->stages[self->stages_count], stages, stages_count * sizeof *stages);
    self->stages_count += stages_count;
    self->pipelines[++self->pipelines_count] = self->stages_count;
}

void draft_remove(draft_t *self, uint32_t pipeline)
{
    const uint32_t first = self->pipelines[pipeline];
    const uint32_t end = self->pipelines[pipeline + 1];
    memmove(&self->stages[first], &self->stages[end],
            (self->stages_count - end) * sizeof *self->stages);
    for (uint32_t at = pipeline; at < self->pipelines_count; at++) {
        self->pipelines[at] = self->pipelines[at + 1] - (end - first);
    }
    self->pipelines_count--;
    self->stages_count -= end - first;
}

// ---- Which server keeps which group ----

typedef struct {
    uint32_t layer;
    uint64_t size;
} unit_t;

static int compare_units(const void *a, const void *b)
{
    const unit_t *const left = a;
    const unit_t *const right = b;
    if (left->size != right->size) {
        return left->size < right->size ? 1 : -1;
    }
    return (left->layer > right->layer) - (left->layer < right->layer);
}

// How many rows a second pass through each layer at each site: layers x sites.
static double *weigh_sites(const field_t *field, const lane_t *lanes, uint32_t lanes_count)
{
    double *const weights =
        hx_new((size_t)model_layers_count(field->model) * field->sites_count, sizeof *weights);
    for (uint32_t lane = 0; lane < lanes_count; lane++) {
        for (uint32_t at = 0; at < lanes[lane].stages_count; at++) {
            const draft_stage_t *const stage = &lanes[lane].stages[at];
            const uint32_t site = field_site(field, stage->worker);
            for (uint32_t layer = stage->layer_first; layer < stage->layer_end; layer++) {
                weights[(size_t)layer * field->sites_count + site] += 1 / lanes[lane].slowest;
            }
        }
    }
    return weights;
}

// What is placed so far: elements on each shard, and on each line between two sites.
typedef struct {
    uint64_t *shards;
    double *lines;  // sites x sites, from workers' to servers'.
} loads_t;

// How long the busiest of the lines to `shard`, and the shard itself, would need for all that they
// have and the unit.
static double busiest(const field_t *field, const double *weights, const unit_t *unit,
                      const loads_t *loads, uint32_t shard)
{
    const uint32_t there = field->site_of[field->shards[shard]];
    double most = (double)(loads->shards[shard] + unit->size) * sizeof(float) / SERVER_RATE;
    for (uint32_t here = 0; here < field->sites_count; here++) {
        const size_t pair = (size_t)here * field->sites_count + there;
        if (weights[(size_t)unit->layer * field->sites_count + here] > 0) {
            const double load = loads->lines[pair] + (double)unit->size;
            most = fmax(most, field->latency[pair] + load * sizeof(float) / field->bandwidth[pair]);
        }
    }
    return most;
}

// The shard where that is soonest; then at the site that runs the layer most, then the least
// loaded.
static uint32_t choose_shard(const field_t *field, const double *weights, const unit_t *unit,
                             const loads_t *loads)
{
    uint32_t best = UINT32_MAX;
    double best_time = 0, best_weight = 0;
    for (uint32_t shard = 0; shard < field->shards_count; shard++) {
        const uint32_t site = field->site_of[field->shards[shard]];
        const double time = busiest(field, weights, unit, loads, shard);
        const double weight = weights[(size_t)unit->layer * field->sites_count + site];
        const bool equal = time == best_time;
        if (best == UINT32_MAX || time < best_time || (equal && weight > best_weight) ||
            (equal && weight == best_weight && loads->shards[shard] < loads->shards[best])) {
            best = shard;
            best_time = time;
            best_weight = weight;
        }
    }
    return best;
}

static void add_unit(const field_t *field, const double *weights, const unit_t *unit,
                     uint32_t shard, loads_t *loads)
{
    const uint32_t there = field->site_of[field->shards[shard]];
    loads->shards[shard] += unit->size;
    for (uint32_t here = 0; here < field->sites_count; here++) {
        if (weights[(size_t)unit->layer * field->sites_count + here] > 0) {
            loads->lines[(size_t)here * field->sites_count + there] += (double)unit->size;
        }
    }
}

// Whole layers, largest first; a tied group goes with the first layer that uses it.
static void place_groups(const field_t *field, const lane_t *lanes, uint32_t lanes_count,
                         uint32_t *group_shard)
{
    const model_t *const model = field->model;
    const uint32_t layers = model_layers_count(model);
    unit_t *const units = hx_new(layers, sizeof *units);
    uint32_t *const owner = hx_new(model_groups_count(model), sizeof *owner);
    for (uint32_t layer = layers; layer-- > 0;) {
        const model_layer_t *const at = model_layer(model, layer);
        for (uint32_t use = 0; use < at->groups_count; use++) {
            owner[at->groups[use]] = layer;
        }
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        units[layer].layer = layer;
    }
    for (uint32_t group = 0; group < model_groups_count(model); group++) {
        units[owner[group]].size += model_group(model, group)->size;
    }
    qsort(units, layers, sizeof *units, compare_units);
    double *const weights = weigh_sites(field, lanes, lanes_count);
    loads_t loads = {
        .shards = hx_new(field->shards_count, sizeof *loads.shards),
        .lines = hx_new((size_t)field->sites_count * field->sites_count, sizeof *loads.lines)};
    for (uint32_t unit = 0; unit < layers; unit++) {
        const uint32_t shard = choose_shard(field, weights, &units[unit], &loads);
        add_unit(field, weights, &units[unit], shard, &loads);
        for (uint32_t group = 0; group < model_groups_count(model); group++) {
            if (owner[group] == units[unit].layer) {
                group_shard[group] = shard;
            }
        }
    }
    free(units);
    free(owner);
    free(weights);
    free(loads.shards);
    free(loads.lines);
}

// ---- Rows ----

// Shares `rows` out by `wants` (each at least 1): whole numbers, largest remainders first.
static void share_out(uint32_t rows, const double *wants, uint32_t count, uint32_t *out)
{
    double sum = 0;
    for (uint32_t at = 0; at < count; at++) {
        sum += fmax(wants[at], 0);
    }
    const double spare = (double)(rows - count);
    uint32_t given = 0;
    for (uint32_t at = 0; at < count; at++) {
        const double want = sum > 0 ? fmax(wants[at], 0) * rows / sum : (double)rows / count;
        out[at] = 1 + (uint32_t)fmin(fmax(floor(want) - 1, 0), spare);
        given += out[at];
    }
    // Too many or too few by rounding and by the floor of 1: one row at a time where it is furthest
    // off.
    while (given != rows) {
        uint32_t best = UINT32_MAX;
        double off = 0;
        for (uint32_t at = 0; at < count; at++) {
            const double want = sum > 0 ? fmax(wants[at], 0) * rows / sum : (double)rows / count;
            const double gap = given < rows ? want - out[at] : out[at] - want;
            if ((given < rows || out[at] > 1) && (best == UINT32_MAX || gap > off)) {
                best = at;
                off = gap;
            }
        }
        out[best] = given < rows ? out[best] + 1 : out[best] - 1;
        given = given < rows ? given + 1 : given - 1;
    }
}

typedef struct {
    const field_t *field;
    lane_t *lanes;
    uint32_t count;
    uint32_t *rows;
    double *periods;
} shares_t;

static double period_of(const shares_t *self, uint32_t lane, uint32_t rows)
{
    lane_t *const at = &self->lanes[lane];
    hx_fault_t ignored;
    // Too little memory for gpipe's many sets is told at the end; here it is only a bad choice.
    if (lane_fit(at, self->field, rows, &ignored) != HX_OK) {
        return INFINITY;
    }
    return lane_price(at, self->field, rows).period;
}

static uint32_t slowest_of(const shares_t *self)
{
    uint32_t slowest = 0;
    for (uint32_t at = 1; at < self->count; at++) {
        slowest = self->periods[at] > self->periods[slowest] ? at : slowest;
    }
    return slowest;
}

// Moves `step` rows from the slowest pipeline to the one that then ends first, if that helps.
static bool move_rows(shares_t *self, uint32_t step)
{
    const uint32_t from = slowest_of(self);
    if (self->rows[from] <= step) {
        return false;
    }
    uint32_t to = UINT32_MAX;
    double to_period = self->periods[from];
    for (uint32_t at = 0; at < self->count; at++) {
        if (at == from) {
            continue;
        }
        const double period = period_of(self, at, self->rows[at] + step);
        if (period < to_period) {
            to = at;
            to_period = period;
        }
    }
    if (to == UINT32_MAX) {
        return false;
    }
    const double from_period = period_of(self, from, self->rows[from] - step);
    if (!(from_period < self->periods[from])) {
        return false;
    }
    self->rows[from] -= step;
    self->rows[to] += step;
    self->periods[from] = from_period;
    self->periods[to] = to_period;
    return true;
}

// A pipeline's period is about a constant (fill, drain, synchronisation) plus rows over its rate;
// with T for all, rows = (T - constant) x rate. Then single moves, in large and small steps.
static void share_rows(shares_t *self)
{
    const planner_conf_t *const conf = self->field->conf;
    double *const wants = hx_new(self->count, sizeof *wants);
    double *const fixed = hx_new(self->count, sizeof *fixed);
    double rates = 0;
    double offset = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        wants[at] = conf->microbatch / self->lanes[at].slowest;
        rates += wants[at];
    }
    share_out(conf->rows, wants, self->count, self->rows);
    for (uint32_t at = 0; at < self->count; at++) {
        const double period = period_of(self, at, self->rows[at]);
        fixed[at] = isfinite(period) ? period - self->rows[at] / wants[at] : 0;
        offset += fixed[at] * wants[at];
    }
    const double end = (conf->rows + offset) / rates;
    for (uint32_t at = 0; at < self->count; at++) {
        wants[at] *= fmax(end - fixed[at], 0);
    }
    share_out(conf->rows, wants, self->count, self->rows);
    for (uint32_t at = 0; at < self->count; at++) {
        self->periods[at] = period_of(self, at, self->rows[at]);
    }
    uint32_t step = HX_MAX(conf->microbatch, conf->rows / 64);
    for (uint32_t move = 0; move < MOVES_MAX && step > 0; move++) {
        if (!move_rows(self, step)) {
            step /= 2;
        }
    }
    free(wants);
    free(fixed);
}

// ---- The plan's arrays ----

static void add_node(plan_t *plan, const plan_node_t *node)
{
    plan->nodes[plan->nodes_count++] = *node;
}

static void add_nodes(const draft_t *self, const field_t *field, plan_t *plan)
{
    const planner_in_t *const in = field->in;
    plan->nodes = hx_new((size_t)field->shards_count + self->stages_count + 2, sizeof *plan->nodes);
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        if (in->nodes[at].id == in->lead) {
            plan->lead = plan->nodes_count;
            add_node(plan, &in->nodes[at]);
        } else if (in->nodes[at].id == in->keeper) {
            plan->keeper = plan->nodes_count;
            add_node(plan, &in->nodes[at]);
        }
    }
    plan->shards = hx_new(field->shards_count, sizeof *plan->shards);
    for (uint32_t shard = 0; shard < field->shards_count; shard++) {
        plan->shards[plan->shards_count++] = plan->nodes_count;
        add_node(plan, &in->nodes[field->shards[shard]]);
    }
}

static void add_stages(const draft_t *self, const field_t *field, const lane_t *lanes, plan_t *plan)
{
    plan->stages = hx_new(self->stages_count, sizeof *plan->stages);
    plan->members = hx_new(self->stages_count, sizeof *plan->members);
    for (uint32_t lane = 0; lane < self->pipelines_count; lane++) {
        for (uint32_t at = 0; at < lanes[lane].stages_count; at++) {
            const draft_stage_t *const stage = &lanes[lane].stages[at];
            plan->members[plan->members_count] =
                (plan_member_t){.node = plan->nodes_count, .share = 1};
            plan->stages[plan->stages_count++] = (plan_stage_t){
                .layer_first = stage->layer_first,
                .layer_end = stage->layer_end,
                .member_first = plan->members_count++,
                .members_count = 1,
                .depth = lanes[lane].depths[at],
                .forward_seconds = lanes[lane].forward[at],
                .backward_seconds = lanes[lane].backward[at],
            };
            add_node(plan, field_worker(field, stage->worker));
        }
    }
}

// With leases ahead pipelines do not wait for one another: rows per second add up. Without, all
// wait for the slowest.
static double step_of(const plan_t *plan, const planner_conf_t *conf)
{
    double slowest = 0;
    double rate = 0;
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        slowest = fmax(slowest, plan->pipelines[at].step_seconds);
        rate += plan->pipelines[at].rows / plan->pipelines[at].step_seconds;
    }
    return conf->overlap ? conf->rows / rate : slowest;
}

static void add_pipelines(const draft_t *self, const field_t *field, const shares_t *shares,
                          plan_t *plan)
{
    plan->pipelines = hx_new(self->pipelines_count, sizeof *plan->pipelines);
    for (uint32_t at = 0; at < self->pipelines_count; at++) {
        plan->pipelines[plan->pipelines_count++] = (plan_pipeline_t){
            .stage_first = self->pipelines[at],
            .stages_count = self->pipelines[at + 1] - self->pipelines[at],
            .rows = shares->rows[at],
            .microbatch = field->conf->microbatch,
            .schedule = field->conf->schedule,
            .step_seconds = shares->periods[at],
        };
    }
    plan->step_seconds = step_of(plan, field->conf);
}

static hx_err_t fill_plan(const draft_t *self, const field_t *field, shares_t *shares, plan_t *plan,
                          hx_fault_t *fault)
{
    const planner_conf_t *const conf = field->conf;
    plan->groups_count = model_groups_count(field->model);
    plan->group_shard = hx_new(plan->groups_count, sizeof *plan->group_shard);
    place_groups(field, shares->lanes, shares->count, plan->group_shard);
    uint32_t *const group_site = hx_new(plan->groups_count, sizeof *group_site);
    for (uint32_t group = 0; group < plan->groups_count; group++) {
        group_site[group] = field->site_of[field->shards[plan->group_shard[group]]];
    }
    lane_sync(shares->lanes, shares->count, field, group_site);
    free(group_site);
    if (self->equal_rows) {
        for (uint32_t at = 0; at < shares->count; at++) {
            shares->rows[at] =
                conf->rows / shares->count + (at < conf->rows % shares->count ? 1 : 0);
        }
    } else {
        share_rows(shares);
    }
    for (uint32_t at = 0; at < shares->count; at++) {
        HX_TRY(lane_fit(&shares->lanes[at], field, shares->rows[at], fault));
        shares->periods[at] = lane_price(&shares->lanes[at], field, shares->rows[at]).period;
    }
    add_nodes(self, field, plan);
    add_stages(self, field, shares->lanes, plan);
    add_pipelines(self, field, shares, plan);
    return HX_OK;
}

static uint32_t worker_of(const field_t *field, node_id_t id)
{
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        if (field_worker(field, worker)->id == id) {
            return worker;
        }
    }
    HX_ASSERT(false && "a plan with a worker that the planner does not know");
    return UINT32_MAX;
}

static void price_pipelines(const field_t *field, lane_t *lanes, plan_t *plan)
{
    uint32_t *const group_site = hx_new(plan->groups_count, sizeof *group_site);
    for (uint32_t group = 0; group < plan->groups_count; group++) {
        const plan_node_t *const shard = plan_shard_node(plan, plan->group_shard[group]);
        group_site[group] = field_site_find(field, shard->site);
    }
    lane_sync(lanes, plan->pipelines_count, field, group_site);
    free(group_site);
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        plan_pipeline_t *const pipeline = &plan->pipelines[at];
        for (uint32_t stage = 0; stage < pipeline->stages_count; stage++) {
            plan_stage_t *const own = &plan->stages[pipeline->stage_first + stage];
            lanes[at].depths[stage] = own->depth;
            own->forward_seconds = lanes[at].forward[stage];
            own->backward_seconds = lanes[at].backward[stage];
        }
        pipeline->step_seconds = lane_price(&lanes[at], field, pipeline->rows).period;
    }
    plan->step_seconds = step_of(plan, field->conf);
}

void draft_price(const field_t *field, plan_t *plan)
{
    draft_stage_t *const stages = hx_new(plan->stages_count, sizeof *stages);
    for (uint32_t at = 0; at < plan->stages_count; at++) {
        const uint32_t node = plan->members[plan->stages[at].member_first].node;
        stages[at] = (draft_stage_t){.worker = worker_of(field, plan->nodes[node].id),
                                     .layer_first = plan->stages[at].layer_first,
                                     .layer_end = plan->stages[at].layer_end};
    }
    lane_t *const lanes = hx_new(plan->pipelines_count, sizeof *lanes);
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        const plan_pipeline_t *const pipeline = &plan->pipelines[at];
        lane_new(&lanes[at], field, &stages[pipeline->stage_first], pipeline->stages_count);
    }
    price_pipelines(field, lanes, plan);
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        lane_clear(&lanes[at]);
    }
    free(lanes);
    free(stages);
}

hx_err_t draft_plan(const draft_t *self, const field_t *field, plan_t *out, hx_fault_t *fault)
{
    const uint32_t count = self->pipelines_count;
    HX_ASSERT(count > 0);
    if (count > field->conf->rows) {
        return hx_fault(fault, HX_E_ARG,
                        "plan: %" PRIu32 " pipelines, but a global batch has %" PRIu32
                        " rows: at least one each is needed (train.global_batch)",
                        count, field->conf->rows);
    }
    shares_t shares = {.field = field,
                       .count = count,
                       .lanes = hx_new(count, sizeof(lane_t)),
                       .rows = hx_new(count, sizeof(uint32_t)),
                       .periods = hx_new(count, sizeof(double))};
    for (uint32_t at = 0; at < count; at++) {
        const uint32_t first = self->pipelines[at];
        lane_new(&shares.lanes[at], field, &self->stages[first], self->pipelines[at + 1] - first);
    }
    plan_t plan = {.epoch = 1, .resume = PLAN_RESUME_NONE};
    const hx_err_t err = fill_plan(self, field, &shares, &plan, fault);
    for (uint32_t at = 0; at < count; at++) {
        lane_clear(&shares.lanes[at]);
    }
    free(shares.lanes);
    free(shares.rows);
    free(shares.periods);
    if (err != HX_OK) {
        plan_destroy(&plan);
        return err;
    }
    *out = plan;
    return HX_OK;
}
