// planner - candidates of grouping, each cut, timed and compared.

#include "scheduler/planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/cuts.h"
#include "scheduler/planner_cut.h"
#include "scheduler/planner_draft.h"

#define MANY_WORKERS 32u  // Above, fewer groupings are tried.
#define NUMBERS_ALL 16u   // Every number of pipelines up to this is tried, then powers of two.
#define LEFT_OUT_MAX 16u  // Slow pipelines left out at most.
#define IDLE UINT32_MAX

// Who is in which pipeline: for each worker its group's number.
typedef struct {
    uint32_t *of;
    uint32_t count;
} groups_t;

typedef struct {
    field_t field;
    plan_t best;     // epoch 0: none yet.
    hx_fault_t why;  // Of the last candidate that could not be.
} search_t;

const char *planner_method_name(planner_method_t method)
{
    switch (method) {
    case PLANNER_PATCHPIPE:
        return "patchpipe";
    case PLANNER_UNIFORM:
        return "uniform";
    case PLANNER_SINGLE:
        return "single";
    }
    return "?";
}

// ---- Grouping ----

static groups_t groups_new(const field_t *field)
{
    return (groups_t){.of = hx_new((size_t)field->workers_count + 1, sizeof(uint32_t))};
}

static void group_by_worker(const field_t *field, groups_t *out)
{
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        out->of[worker] = worker;
    }
    out->count = field->workers_count;
}

static uint32_t site_workers(const field_t *field, uint32_t site)
{
    uint32_t count = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        count += field_site(field, worker) == site ? 1 : 0;
    }
    return count;
}

static double site_speed(const field_t *field, uint32_t site)
{
    double speed = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        speed += field_site(field, worker) == site ? field->speed[worker] : 0;
    }
    return speed;
}

static uint32_t least(const double *loads, uint32_t count)
{
    uint32_t at = 0;
    for (uint32_t other = 1; other < count; other++) {
        at = loads[other] < loads[at] ? other : at;
    }
    return at;
}

// Gives the workers of a site (IDLE: of all sites) to `count` groups from `first` on, fastest
// first, each to the group that is slowest so far.
static void deal(const field_t *field, uint32_t site, uint32_t first, uint32_t count, groups_t *out)
{
    double *const loads = hx_new(count, sizeof *loads);
    bool *const dealt = hx_new(field->workers_count, sizeof *dealt);
    while (true) {
        uint32_t next = IDLE;
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            const bool here = site == IDLE || field_site(field, worker) == site;
            if (here && !dealt[worker] &&
                (next == IDLE || field->speed[worker] > field->speed[next])) {
                next = worker;
            }
        }
        if (next == IDLE) {
            break;
        }
        dealt[next] = true;
        const uint32_t to = least(loads, count);
        out->of[next] = first + to;
        loads[to] += field->speed[next];
    }
    free(loads);
    free(dealt);
}

// Several pipelines a site: numbers in proportion to the sites' speed, at least one each.
static void split_sites(const field_t *field, uint32_t pipelines, uint32_t *numbers)
{
    uint32_t given = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        numbers[site] = site_workers(field, site) > 0 ? 1 : 0;
        given += numbers[site];
    }
    while (given < pipelines) {
        uint32_t best = IDLE;
        double best_speed = 0;
        for (uint32_t site = 0; site < field->sites_count; site++) {
            const double speed = numbers[site] > 0 ? site_speed(field, site) / numbers[site] : 0;
            if (numbers[site] < site_workers(field, site) && speed > best_speed) {
                best = site;
                best_speed = speed;
            }
        }
        HX_ASSERT(best != IDLE);
        numbers[best]++;
        given++;
    }
}

// Fewer pipelines than sites: whole sites, fastest first, each to the slowest pipeline so far.
static void join_sites(const field_t *field, uint32_t pipelines, groups_t *out)
{
    double *const loads = hx_new(pipelines, sizeof *loads);
    bool *const dealt = hx_new(field->sites_count, sizeof *dealt);
    for (uint32_t turn = 0; turn < field->sites_count; turn++) {
        uint32_t next = IDLE;
        for (uint32_t site = 0; site < field->sites_count; site++) {
            if (!dealt[site] &&
                (next == IDLE || site_speed(field, site) > site_speed(field, next))) {
                next = site;
            }
        }
        dealt[next] = true;
        const uint32_t to = least(loads, pipelines);
        loads[to] += site_speed(field, next);
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            out->of[worker] = field_site(field, worker) == next ? to : out->of[worker];
        }
    }
    free(loads);
    free(dealt);
}

static uint32_t sites_with_workers(const field_t *field)
{
    uint32_t count = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        count += site_workers(field, site) > 0 ? 1 : 0;
    }
    return count;
}

// Exactly `pipelines` groups, none empty, that keep to sites where that is possible.
static void group_by_site(const field_t *field, uint32_t pipelines, groups_t *out)
{
    HX_ASSERT(pipelines >= 1 && pipelines <= field->workers_count);
    out->count = pipelines;
    if (pipelines < sites_with_workers(field)) {
        join_sites(field, pipelines, out);
        return;
    }
    uint32_t *const numbers = hx_new(field->sites_count, sizeof *numbers);
    split_sites(field, pipelines, numbers);
    uint32_t first = 0;
    for (uint32_t site = 0; site < field->sites_count; site++) {
        if (numbers[site] > 0) {
            deal(field, site, first, numbers[site], out);
            first += numbers[site];
        }
    }
    free(numbers);
}

// ---- Candidates ----

static void keep_better(search_t *self, plan_t *plan)
{
    if (self->best.epoch == 0 || plan->step_seconds < self->best.step_seconds) {
        plan_destroy(&self->best);
        self->best = *plan;
    } else {
        plan_destroy(plan);
    }
}

static uint32_t slowest_pipeline(const plan_t *plan)
{
    uint32_t at = 0;
    for (uint32_t other = 1; other < plan->pipelines_count; other++) {
        const double rate = plan->pipelines[other].rows / plan->pipelines[other].step_seconds;
        const double least_rate = plan->pipelines[at].rows / plan->pipelines[at].step_seconds;
        at = rate < least_rate ? other : at;
    }
    return at;
}

// Times a draft; then, unless the number of pipelines is fixed, without its slowest pipelines as
// long as that is faster.
static void try_draft(search_t *self, draft_t *draft, bool fixed)
{
    plan_t plan;
    if (draft_plan(draft, &self->field, &plan, &self->why) != HX_OK) {
        return;
    }
    for (uint32_t turn = 0; turn < LEFT_OUT_MAX && !fixed && draft->pipelines_count > 1; turn++) {
        draft_remove(draft, slowest_pipeline(&plan));
        plan_t less;
        hx_fault_t ignored;
        if (draft_plan(draft, &self->field, &less, &ignored) != HX_OK) {
            break;
        }
        if (less.step_seconds >= plan.step_seconds) {
            plan_destroy(&less);
            break;
        }
        plan_destroy(&plan);
        plan = less;
    }
    keep_better(self, &plan);
}

static void no_fit(search_t *self, const uint32_t *members, uint32_t count)
{
    uint64_t memory = 0;
    for (uint32_t at = 0; at < count; at++) {
        memory += field_profile(&self->field, members[at])->memory;
    }
    (void)hx_fault(&self->why, HX_E_ARG,
                   "plan: no cut of the model fits into the memory of the pipeline of \"%s\" and "
                   "%" PRIu32 " more (%" PRIu64
                   " bytes in all, the parameters with gradients alone take %" PRIu64
                   "): fewer pipelines, a smaller plan.microbatch, or more memory",
                   field_worker(&self->field, members[0])->name, count - 1, memory,
                   model_params_count(self->field.model) * 4 * sizeof(float));
}

// Cuts every group. With `fixed` all groups must become pipelines; else those that cannot hold the
// model stay idle.
static bool draft_groups(search_t *self, const groups_t *groups, bool fixed, draft_t *draft)
{
    const field_t *const field = &self->field;
    uint32_t *const members = hx_new(field->workers_count, sizeof *members);
    draft_stage_t *const stages = hx_new(field->workers_count, sizeof *stages);
    double total = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        total += field->speed[worker];
    }
    bool whole = true;
    for (uint32_t group = 0; group < groups->count && (whole || !fixed); group++) {
        uint32_t count = 0;
        double speed = 0;
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            if (groups->of[worker] == group) {
                members[count++] = worker;
                speed += field->speed[worker];
            }
        }
        const double rows = fmax(1, round(field->conf->rows * speed / total));
        const uint32_t cut = cut_group(field, members, count, (uint32_t)rows, stages);
        if (cut > 0) {
            draft_add(draft, stages, cut);
        } else {
            whole = false;
            no_fit(self, members, count);
        }
    }
    free(members);
    free(stages);
    return draft->pipelines_count > 0 && (whole || !fixed);
}

static void try_groups(search_t *self, const groups_t *groups, bool fixed)
{
    if (groups->count > PLAN_PIPELINES_MAX) {
        return;
    }
    draft_t draft;
    draft_new(&draft, &self->field);
    if (draft_groups(self, groups, fixed, &draft)) {
        try_draft(self, &draft, fixed);
    }
    draft_clear(&draft);
}

static void try_number(search_t *self, uint32_t pipelines, bool fixed)
{
    groups_t groups = groups_new(&self->field);
    group_by_site(&self->field, pipelines, &groups);
    try_groups(self, &groups, fixed);
    // Groups that do not keep to sites help where sites are very unequal and lines good.
    if (sites_with_workers(&self->field) > 1 && pipelines > 1 &&
        self->field.workers_count <= MANY_WORKERS) {
        deal(&self->field, IDLE, 0, pipelines, &groups);
        groups.count = pipelines;
        try_groups(self, &groups, fixed);
    }
    free(groups.of);
}

static void try_single(search_t *self)
{
    for (uint32_t worker = 0; worker < self->field.workers_count; worker++) {
        draft_t draft;
        draft_new(&draft, &self->field);
        draft_add(
            &draft,
            &(draft_stage_t){.worker = worker, .layer_end = model_layers_count(self->field.model)},
            1);
        try_draft(self, &draft, true);
        draft_clear(&draft);
    }
}

// Equal numbers of transformer blocks for the workers of each group, in the order of names; equal
// rows.
static void try_uniform(search_t *self, uint32_t pipelines)
{
    const field_t *const field = &self->field;
    const uint32_t blocks = model_conf(field->model)->layers;
    groups_t groups = groups_new(field);
    group_by_site(field, pipelines, &groups);
    draft_t draft;
    draft_new(&draft, field);
    draft.equal_rows = true;
    draft_stage_t *const stages = hx_new(field->workers_count, sizeof *stages);
    for (uint32_t group = 0; group < groups.count; group++) {
        uint32_t count = 0;
        for (uint32_t worker = 0; worker < field->workers_count; worker++) {
            if (groups.of[worker] == group && count < blocks) {
                stages[count++] = (draft_stage_t){.worker = worker};
            }
        }
        for (uint32_t at = 0; at < count; at++) {
            stages[at].layer_first = at == 0 ? 0 : stages[at - 1].layer_end;
            const uint32_t own = blocks / count + (at < blocks % count ? 1 : 0);
            const uint32_t ends = (at == 0 ? 1u : 0u) + (at + 1 == count ? 1u : 0u);
            stages[at].layer_end = stages[at].layer_first + own + ends;
        }
        draft_add(&draft, stages, count);
    }
    try_draft(self, &draft, true);
    draft_clear(&draft);
    free(stages);
    free(groups.of);
}

static void try_patchpipe(search_t *self, uint32_t pipelines)
{
    if (pipelines != PLANNER_AUTO) {
        try_number(self, pipelines, true);
        try_uniform(self, pipelines);
        return;
    }
    const uint32_t workers = self->field.workers_count;
    const uint32_t numbers = workers <= MANY_WORKERS ? NUMBERS_ALL : 1;
    try_number(self, 1, false);
    const hx_fault_t together = self->why;  // If all workers together cannot, that is the reason.
    groups_t groups = groups_new(&self->field);
    group_by_worker(&self->field, &groups);
    try_groups(self, &groups, false);
    free(groups.of);
    const uint32_t sites = sites_with_workers(&self->field);
    try_number(self, sites, false);
    for (uint32_t number = 2; number < HX_MIN(workers, PLAN_PIPELINES_MAX + 1u);
         number += number < numbers ? 1 : number) {
        if (number != sites) {
            try_number(self, number, false);
        }
    }
    try_single(self);
    try_uniform(self, sites);
    self->why = together;
}

static void try_cuts(search_t *self, const char *text, hx_err_t *err)
{
    draft_t draft;
    *err = cuts_draft(text, &self->field, &draft, &self->why);
    if (*err != HX_OK) {
        return;
    }
    const uint32_t wanted = self->field.conf->pipelines;
    if (wanted != PLANNER_AUTO && wanted != draft.pipelines_count) {
        *err = hx_fault(&self->why, HX_E_ARG,
                        "plan.stages has %" PRIu32 " pipelines, plan.pipelines says %" PRIu32,
                        draft.pipelines_count, wanted);
    } else {
        try_draft(self, &draft, true);
    }
    draft_clear(&draft);
}

// ---- The whole ----

static hx_err_t check_input(const field_t *field, hx_fault_t *fault)
{
    const planner_conf_t *const conf = field->conf;
    HX_ASSERT(conf->rows > 0 && conf->microbatch > 0);
    if (field->workers_count == 0 || field->shards_count == 0) {
        return hx_fault(fault, HX_E_ARG, "plan: there is no %s",
                        field->workers_count == 0 ? "worker" : "server");
    }
    if (field->shards_count > PLAN_SHARDS_MAX) {
        return hx_fault(fault, HX_E_ARG, "plan: %" PRIu32 " shards, at most %d can be used",
                        field->shards_count, PLAN_SHARDS_MAX);
    }
    if (conf->pipelines > field->workers_count) {
        return hx_fault(fault, HX_E_ARG,
                        "plan.pipelines = %" PRIu32 ", but there are %" PRIu32 " workers",
                        conf->pipelines, field->workers_count);
    }
    return HX_OK;
}

static hx_err_t solve(search_t *self, hx_fault_t *fault)
{
    const planner_conf_t *const conf = self->field.conf;
    hx_err_t err = HX_OK;
    if (conf->stages && conf->stages[0]) {
        try_cuts(self, conf->stages, &err);
    } else if (conf->method == PLANNER_SINGLE) {
        if (conf->pipelines > 1) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.pipelines = %" PRIu32 ", but plan.method = single has one",
                            conf->pipelines);
        }
        try_single(self);
    } else if (conf->method == PLANNER_UNIFORM) {
        try_uniform(self, conf->pipelines != PLANNER_AUTO ? conf->pipelines
                                                          : sites_with_workers(&self->field));
    } else {
        try_patchpipe(self, conf->pipelines);
    }
    if (err != HX_OK || self->best.epoch == 0) {
        return hx_fault(fault, HX_E_ARG, "%s", self->why.text);
    }
    return plan_check(&self->best, self->field.model, fault);
}

hx_err_t planner_solve(const planner_in_t *in, plan_t *out, hx_fault_t *fault)
{
    *out = (plan_t){0};
    search_t search = {0};
    // Speeds need valid profiles, so those are looked at by themselves first.
    for (uint32_t at = 0; at < in->nodes_count; at++) {
        if (in->nodes[at].role == PLAN_WORKER && !profile_valid(&in->profiles[at])) {
            return hx_fault(fault, HX_E_ARG, "plan: worker \"%s\" has no usable profile",
                            in->nodes[at].name);
        }
    }
    field_new(&search.field, in);
    hx_err_t err = check_input(&search.field, fault);
    err = err == HX_OK ? solve(&search, fault) : err;
    if (err == HX_OK) {
        *out = search.best;
    } else {
        plan_destroy(&search.best);
    }
    field_clear(&search.field);
    return err;
}

void planner_price(const planner_in_t *in, plan_t *plan)
{
    field_t field;
    field_new(&field, in);
    draft_price(&field, plan);
    field_clear(&field);
}
