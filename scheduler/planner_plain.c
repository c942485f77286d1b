// planner_plain - the plans that others make.

#include "scheduler/planner_plain.h"

#include <stdlib.h>

#include "scheduler/planner_cut.h"

void plain_single(search_t *self)
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
void plain_uniform(search_t *self, uint32_t pipelines)
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

static void try_each_alone(search_t *self, bool equal_rows)
{
    const field_t *const field = &self->field;
    if (field->workers_count > PLAN_PIPELINES_MAX) {
        (void)hx_fault(
            &self->why, HX_E_ARG,
            "plan: data parallel makes a pipeline of each of %u workers, at most %d can be",
            field->workers_count, PLAN_PIPELINES_MAX);
        return;
    }
    draft_t draft;
    draft_new(&draft, field);
    draft.equal_rows = equal_rows;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        draft_add(&draft,
                  &(draft_stage_t){.worker = worker, .layer_end = model_layers_count(field->model)},
                  1);
    }
    search_draft(self, &draft, true);
    draft_clear(&draft);
}

void plain_data_parallel(search_t *self)
{
    try_each_alone(self, true);
}

void plain_balanced(search_t *self)
{
    try_each_alone(self, false);
}

// One group, all of its devices, cut by their speeds.
static bool add_whole(search_t *self, const groups_t *groups, uint32_t group, draft_t *draft)
{
    const field_t *const field = &self->field;
    uint32_t *const members = hx_new(field->workers_count, sizeof *members);
    draft_stage_t *const stages = hx_new(field->workers_count, sizeof *stages);
    uint32_t count = 0;
    for (uint32_t worker = 0; worker < field->workers_count; worker++) {
        if (groups->of[worker] == group) {
            members[count++] = worker;
        }
    }
    const bool cut = cut_whole(field, members, count, stages);
    if (cut) {
        draft_add(draft, stages, count);
    } else {
        (void)hx_fault(&self->why, HX_E_ARG,
                       "plan: hetpipe: the model cannot be cut into %u stages that fit", count);
    }
    free(members);
    free(stages);
    return cut;
}

void plain_hetpipe(search_t *self)
{
    const uint32_t workers = self->field.workers_count;
    groups_t groups = groups_new(&self->field);
    for (uint32_t pipelines = 1; pipelines <= HX_MIN(workers, (uint32_t)PLAN_PIPELINES_MAX);
         pipelines++) {
        if (workers % pipelines != 0) {
            continue;
        }
        group_deal(&self->field, GROUP_IDLE, 0, pipelines, &groups);
        draft_t draft;
        draft_new(&draft, &self->field);
        draft.equal_rows = true;
        bool whole = true;
        for (uint32_t group = 0; group < pipelines && whole; group++) {
            whole = add_whole(self, &groups, group, &draft);
        }
        if (whole) {
            search_draft(self, &draft, true);
        }
        draft_clear(&draft);
    }
    free(groups.of);
}
