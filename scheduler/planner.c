// planner - candidates of grouping, each cut, timed and compared.

#include "scheduler/planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/cuts.h"
#include "scheduler/planner_search.h"

#define MANY_WORKERS 32u  // Above, fewer groupings are tried.
#define NUMBERS_ALL 16u   // Every number of pipelines up to this is tried, then powers of two.
#define GROUPINGS_MAX 6u  // Workers of which every grouping is tried: 877.
#define EVERY_MAX 8u      // Workers of an exhaustive search.
#define TRIES_MAX 4000u   // Groupings that are tried to improve a plan.

const char *planner_method_name(planner_method_t method)
{
    switch (method) {
    case PLANNER_PATCHPIPE:
        return "patchpipe";
    case PLANNER_UNIFORM:
        return "uniform";
    case PLANNER_SINGLE:
        return "single";
    case PLANNER_EXHAUSTIVE:
        return "exhaustive";
    }
    return "?";
}

// ---- Methods ----

static void try_number(search_t *self, uint32_t pipelines, bool fixed)
{
    groups_t groups = groups_new(&self->field);
    group_by_site(&self->field, pipelines, &groups);
    search_groups(self, &groups, fixed);
    // Groups that do not keep to sites help where sites are very unequal and lines good.
    if (group_sites(&self->field) > 1 && pipelines > 1 &&
        self->field.workers_count <= MANY_WORKERS) {
        group_deal(&self->field, GROUP_IDLE, 0, pipelines, &groups);
        groups.count = pipelines;
        search_groups(self, &groups, fixed);
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
        search_draft(self, &draft, true);
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
    search_draft(self, &draft, true);
    draft_clear(&draft);
    free(stages);
    free(groups.of);
}

static void try_patchpipe(search_t *self, uint32_t pipelines)
{
    if (pipelines != PLANNER_AUTO) {
        try_number(self, pipelines, true);
        try_uniform(self, pipelines);
        search_improve(self, true);
        return;
    }
    const uint32_t workers = self->field.workers_count;
    const uint32_t numbers = workers <= MANY_WORKERS ? NUMBERS_ALL : 1;
    try_number(self, 1, false);
    const hx_fault_t together = self->why;  // If all workers together cannot, that is the reason.
    groups_t groups = groups_new(&self->field);
    group_by_worker(&self->field, &groups);
    search_groups(self, &groups, false);
    free(groups.of);
    const uint32_t sites = group_sites(&self->field);
    try_number(self, sites, false);
    for (uint32_t number = 2; number < HX_MIN(workers, PLAN_PIPELINES_MAX + 1u);
         number += number < numbers ? 1 : number) {
        if (number != sites) {
            try_number(self, number, false);
        }
    }
    try_single(self);
    try_uniform(self, sites);
    if (workers <= GROUPINGS_MAX) {
        search_every(self, false);
    }
    search_improve(self, false);
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
        search_draft(self, &draft, true);
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
    } else if (conf->method == PLANNER_EXHAUSTIVE) {
        if (self->field.workers_count > EVERY_MAX) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.method = exhaustive is for at most %u workers, and there are "
                            "%" PRIu32,
                            EVERY_MAX, self->field.workers_count);
        }
        search_every(self, true);
    } else if (conf->method == PLANNER_UNIFORM) {
        try_uniform(self,
                    conf->pipelines != PLANNER_AUTO ? conf->pipelines : group_sites(&self->field));
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
    search.tries_left = TRIES_MAX;
    search.cuts = hx_new(SEARCH_CUTS_MAX, sizeof *search.cuts);
    hx_err_t err = check_input(&search.field, fault);
    err = err == HX_OK ? solve(&search, fault) : err;
    if (err == HX_OK) {
        *out = search.best;
    } else {
        plan_destroy(&search.best);
    }
    search_forget(&search);
    free(search.cuts);
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
