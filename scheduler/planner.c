// planner - candidates of grouping, each cut, timed and compared.

#include "scheduler/planner.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/cuts.h"
#include "scheduler/planner_plain.h"

#define MANY_WORKERS 32u  // Above, fewer groupings are tried.
#define NUMBERS_ALL 16u   // Every number of pipelines up to this is tried, then powers of two.
#define GROUPINGS_MAX 6u  // Workers of which every grouping is tried: 877.
#define EVERY_MAX 8u      // Workers of an exhaustive search.
#define TRIES_FULL 64u    // Pairs of workers up to which all tries are made.
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
    case PLANNER_DATA_PARALLEL:
        return "data_parallel";
    case PLANNER_BALANCED:
        return "balanced";
    case PLANNER_HETPIPE:
        return "hetpipe";
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

// Workers of all sites dealt out to equal numbers, with equal rows.
static void try_dealt(search_t *self)
{
    const uint32_t workers = self->field.workers_count;
    groups_t groups = groups_new(&self->field);
    self->equal_rows = true;
    for (uint32_t pipelines = 1; pipelines <= HX_MIN(workers, (uint32_t)PLAN_PIPELINES_MAX);
         pipelines++) {
        if (workers % pipelines == 0) {
            group_deal(&self->field, GROUP_IDLE, 0, pipelines, &groups);
            groups.count = pipelines;
            search_groups(self, &groups, true);
        }
    }
    self->equal_rows = false;
    free(groups.of);
}

static void try_patchpipe(search_t *self, uint32_t pipelines)
{
    if (pipelines != PLANNER_AUTO) {
        try_number(self, pipelines, true);
        plain_uniform(self, pipelines);
        if (!self->field.conf->quick) {
            search_improve(self, true);
        }
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
    plain_single(self);
    plain_uniform(self, sites);
    try_dealt(self);
    plain_hetpipe(self);
    if (workers <= GROUPINGS_MAX && !self->field.conf->quick) {
        search_every(self, false);
    }
    if (!self->field.conf->quick) {
        search_improve(self, false);
    }
    self->why = together;
}

static hx_err_t try_cuts(search_t *self, const char *text, hx_fault_t *fault)
{
    draft_t draft;
    HX_TRY(cuts_draft(text, &self->field, &draft, fault));
    const uint32_t wanted = self->field.conf->pipelines;
    hx_err_t err = HX_OK;
    if (wanted != PLANNER_AUTO && wanted != draft.pipelines_count) {
        err = hx_fault(fault, HX_E_ARG,
                       "plan.stages has %" PRIu32 " pipelines, plan.pipelines says %" PRIu32,
                       draft.pipelines_count, wanted);
    } else {
        search_draft(self, &draft, true);
    }
    draft_clear(&draft);
    return err;
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

static hx_err_t try_exhaustive(search_t *self, hx_fault_t *fault)
{
    if (self->field.workers_count > EVERY_MAX) {
        return hx_fault(fault, HX_E_ARG,
                        "plan.method = exhaustive is for at most %u workers, and there are "
                        "%" PRIu32,
                        EVERY_MAX, self->field.workers_count);
    }
    search_every(self, true);
    return HX_OK;
}

static hx_err_t try_method(search_t *self, hx_fault_t *fault)
{
    const planner_conf_t *const conf = self->field.conf;
    switch (conf->method) {
    case PLANNER_SINGLE:
        if (conf->pipelines > 1) {
            return hx_fault(fault, HX_E_ARG,
                            "plan.pipelines = %" PRIu32 ", but plan.method = single has one",
                            conf->pipelines);
        }
        plain_single(self);
        break;
    case PLANNER_UNIFORM:
        plain_uniform(self, conf->pipelines != PLANNER_AUTO ? conf->pipelines
                                                            : group_sites(&self->field));
        break;
    case PLANNER_DATA_PARALLEL:
        plain_data_parallel(self);
        break;
    case PLANNER_BALANCED:
        plain_balanced(self);
        break;
    case PLANNER_HETPIPE:
        plain_hetpipe(self);
        break;
    case PLANNER_EXHAUSTIVE:
        return try_exhaustive(self, fault);
    case PLANNER_PATCHPIPE:
        try_patchpipe(self, conf->pipelines);
        break;
    }
    return HX_OK;
}

static hx_err_t solve(search_t *self, hx_fault_t *fault)
{
    const planner_conf_t *const conf = self->field.conf;
    if (conf->stages && conf->stages[0]) {
        HX_TRY(try_cuts(self, conf->stages, fault));
    } else {
        HX_TRY(try_method(self, fault));
    }
    if (self->best.epoch == 0) {
        return hx_fault(fault, HX_E_ARG, "%s", self->why.text);
    }
    return plan_check(&self->best, self->field.model, fault);
}

// A try costs about as the square of the workers.
static uint32_t tries_of(uint32_t workers)
{
    const uint32_t pairs = HX_MAX(1u, workers * workers / TRIES_FULL);
    return TRIES_MAX / pairs;
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
    search.tries_left = tries_of(search.field.workers_count);
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
