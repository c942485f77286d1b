// planner_search - drafts of groups, timed and compared.

#include "scheduler/planner_search.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/planner_cut.h"

#define LEFT_OUT_MAX 16u  // Slow pipelines left out at most.
#define GAIN_MIN 1e-9     // Of a step, relative: less is rounding.

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
void search_draft(search_t *self, draft_t *draft, bool fixed)
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
    if (!draft->equal_rows && self->field.conf->overlap) {
        // Where nobody waits for the slowest, equal leases can be better than equal times.
        draft->equal_rows = true;
        if (draft_plan(draft, &self->field, &plan, &self->why) == HX_OK) {
            keep_better(self, &plan);
        }
        draft->equal_rows = false;
    }
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

// The cut of a group that was asked for before, or a new one.
static const search_cut_t *cut_of(search_t *self, const uint32_t *members, uint32_t count,
                                  uint32_t rows)
{
    for (uint32_t at = 0; at < self->cuts_count; at++) {
        const search_cut_t *const cut = &self->cuts[at];
        if (cut->members_count == count && cut->rows == rows &&
            memcmp(cut->members, members, count * sizeof *members) == 0) {
            return cut;
        }
    }
    if (self->cuts_count == SEARCH_CUTS_MAX) {
        search_forget(self);
    }
    search_cut_t *const cut = &self->cuts[self->cuts_count++];
    *cut = (search_cut_t){.members = hx_new(count, sizeof *cut->members),
                          .members_count = count,
                          .rows = rows,
                          .stages = hx_new(count, sizeof *cut->stages)};
    memcpy(cut->members, members, count * sizeof *members);
    cut->stages_count = self->every ? cut_every(&self->field, members, count, rows, cut->stages)
                                    : cut_group(&self->field, members, count, rows, cut->stages);
    return cut;
}

void search_forget(search_t *self)
{
    for (uint32_t at = 0; at < self->cuts_count; at++) {
        free(self->cuts[at].members);
        free(self->cuts[at].stages);
    }
    self->cuts_count = 0;
}

// Its members in ascending order; returns how many, and their speed.
static uint32_t members_of(const field_t *field, const groups_t *groups, uint32_t group,
                           uint32_t *members, double *speed)
{
    uint32_t count = 0;
    *speed = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        if (groups->of[worker] == group) {
            members[count++] = worker;
            *speed += field->speed[worker];
        }
    }
    return count;
}

// Cuts every group. With `fixed` all groups must become pipelines; else those that cannot hold the
// model stay idle.
static bool draft_groups(search_t *self, const groups_t *groups, bool fixed, draft_t *draft)
{
    const field_t *const field = &self->field;
    uint32_t *const members = hx_new(field->workers_count, sizeof *members);
    double total = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        total += field->speed[worker];
    }
    bool whole = true;
    for (uint32_t group = 0; group < groups->count && (whole || !fixed); group++) {
        double speed = 0;
        const uint32_t count = members_of(field, groups, group, members, &speed);
        if (count == 0) {
            whole = false;
            continue;
        }
        const double rows = fmax(1, round(field->conf->rows * speed / total));
        const search_cut_t *const cut = cut_of(self, members, count, (uint32_t)rows);
        if (cut->stages_count > 0) {
            draft_add(draft, cut->stages, cut->stages_count);
        } else {
            whole = false;
            no_fit(self, members, count);
        }
    }
    free(members);
    return draft->pipelines_count > 0 && (whole || !fixed);
}

void search_groups(search_t *self, const groups_t *groups, bool fixed)
{
    if (groups->count > PLAN_PIPELINES_MAX) {
        return;
    }
    draft_t draft;
    draft_new(&draft, &self->field);
    draft.equal_rows = self->equal_rows;
    if (draft_groups(self, groups, fixed, &draft)) {
        search_draft(self, &draft, fixed);
    }
    draft_clear(&draft);
}

// ---- Improving ----

// The groups of the best plan; who is in none is idle.
static groups_t groups_of_best(const search_t *self)
{
    const plan_t *const plan = &self->best;
    groups_t groups = groups_new(&self->field);
    groups.count = plan->pipelines_count;
    for (uint32_t worker = 0; worker < self->field.workers_count; worker++) {
        const node_id_t id = field_worker(&self->field, worker)->id;
        groups.of[worker] = GROUP_IDLE;
        for (uint32_t at = 0; at < plan->pipelines_count; at++) {
            const plan_pipeline_t *const pipeline = &plan->pipelines[at];
            for (uint32_t stage = 0; stage < pipeline->stages_count; stage++) {
                const plan_stage_t *const own = plan_stage(plan, at, stage);
                for (uint32_t member = 0; member < own->members_count; member++) {
                    if (plan->nodes[plan->members[own->member_first + member].node].id == id) {
                        groups.of[worker] = at;
                    }
                }
            }
        }
    }
    return groups;
}

// Tries groups that differ a little from the best; true if they are better.
static bool is_better(search_t *self, const groups_t *groups, bool fixed)
{
    const double before = self->best.step_seconds;
    self->tries_left--;
    search_groups(self, groups, fixed);
    return self->best.step_seconds < before * (1 - GAIN_MIN);
}

// `worker` into another group, a new one, or none.
static bool try_moves(search_t *self, groups_t *groups, uint32_t worker, bool fixed)
{
    const uint32_t from = groups->of[worker], count = groups->count;
    for (uint32_t to = 0; to <= count + 1 && self->tries_left > 0; to++) {
        const bool fresh = to == count;
        const uint32_t group = to > count ? GROUP_IDLE : to;
        if (group == from || (fixed && fresh)) {
            continue;
        }
        groups->of[worker] = group;
        groups->count = count + (fresh ? 1 : 0);
        if (is_better(self, groups, fixed)) {
            return true;
        }
        groups->of[worker] = from;
        groups->count = count;
    }
    return false;
}

static bool try_swaps(search_t *self, groups_t *groups, uint32_t worker, bool fixed)
{
    for (uint32_t other = worker + 1; other < self->field.workers_count && self->tries_left > 0;
         other++) {
        const uint32_t one = groups->of[worker], two = groups->of[other];
        if (one == two) {
            continue;
        }
        groups->of[worker] = two;
        groups->of[other] = one;
        if (is_better(self, groups, fixed)) {
            return true;
        }
        groups->of[worker] = one;
        groups->of[other] = two;
    }
    return false;
}

void search_improve(search_t *self, bool fixed)
{
    bool better = self->best.epoch != 0;
    while (better) {
        groups_t groups = groups_of_best(self);
        better = false;
        for (uint32_t worker = 0; worker < self->field.workers_count && !better; worker++) {
            better =
                try_moves(self, &groups, worker, fixed) || try_swaps(self, &groups, worker, fixed);
        }
        free(groups.of);
    }
}

// ---- Everything ----

// Workers from `worker` on into every group that is there, a new one, or none.
static void try_every(search_t *self, groups_t *groups, uint32_t worker)
{
    if (worker == self->field.workers_count) {
        if (groups->count > 0) {
            search_groups(self, groups, true);
        }
        return;
    }
    const uint32_t count = groups->count;
    for (uint32_t to = 0; to <= count + 1; to++) {
        groups->of[worker] = to > count ? GROUP_IDLE : to;
        groups->count = count + (to == count ? 1 : 0);
        try_every(self, groups, worker + 1);
    }
    groups->count = count;
}

void search_every(search_t *self, bool cuts)
{
    groups_t groups = groups_new(&self->field);
    search_forget(self);
    self->every = cuts;
    try_every(self, &groups, 0);
    self->every = false;
    search_forget(self);
    free(groups.of);
}
