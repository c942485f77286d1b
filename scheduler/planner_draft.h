// planner_draft - a plan before its numbers: who runs which layers; and how it becomes a plan.
// Inner header of the planner.

#ifndef PLANNER_DRAFT_H
#define PLANNER_DRAFT_H

#include "scheduler/planner_lane.h"

typedef struct {
    draft_stage_t *stages;  // Of all pipelines, one after the other.
    uint32_t stages_count;
    uint32_t *pipelines;  // For each its first stage; pipelines_count + 1 entries.
    uint32_t pipelines_count;
    bool equal_rows;  // Rows are shared out evenly, not by speed.
} draft_t;

// Begins an empty one with room for as many stages as there are workers.
void draft_new(draft_t *self, const field_t *field);
void draft_clear(draft_t *self);
// Adds a pipeline.
void draft_add(draft_t *self, const draft_stage_t *stages, uint32_t stages_count);
// Takes one out.
void draft_remove(draft_t *self, uint32_t pipeline);

// Makes the plan: rows so that pipelines end together, depths, shard map, times. HX_E_ARG and a
// line if a stage does not fit into its worker's memory or there are more pipelines than rows;
// `*out` is then untouched.
HX_MUST_USE hx_err_t draft_plan(const draft_t *self, const field_t *field, plan_t *out,
                                hx_fault_t *fault);

// Times of a plan that stands already; all its nodes are in the field.
void draft_price(const field_t *field, plan_t *plan);

#endif
