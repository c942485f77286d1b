// planner_lane - the numbers of one pipeline of a draft: times of stages and lines, depths, memory,
// its price. Inner header of the planner.

#ifndef PLANNER_LANE_H
#define PLANNER_LANE_H

#include "scheduler/planner_field.h"
#include "scheduler/price.h"

typedef struct {
    uint32_t worker;  // Number in the field.
    uint32_t layer_first;
    uint32_t layer_end;
} draft_stage_t;

typedef struct {
    const draft_stage_t *stages;  // Borrowed.
    uint32_t stages_count;
    double *forward;  // Of each stage, seconds of one microbatch.
    double *backward;
    double *line;  // To the next stage.
    double *line_back;
    double *latency;
    double *push;  // 0 until lane_sync.
    double *pull;
    uint32_t *caps;    // Most microbatches in flight, by memory.
    uint32_t *depths;  // By lane_fit.
    double slowest;    // Forward and backward of the slowest stage.
} lane_t;

void lane_new(lane_t *self, const field_t *field, const draft_stage_t *stages,
              uint32_t stages_count);
void lane_clear(lane_t *self);

// Sets the depths for a lease of `rows` rows. HX_E_ARG and a line if a stage does not fit into its
// worker's memory even so.
HX_MUST_USE hx_err_t lane_fit(lane_t *self, const field_t *field, uint32_t rows, hx_fault_t *fault);

// Sets the times of pushing and pulling of all lanes together: they share the line between two
// sites. `group_site` is the site of each parameter group's server.
void lane_sync(lane_t *lanes, uint32_t lanes_count, const field_t *field,
               const uint32_t *group_site);

// After lane_fit for at least as many rows.
price_t lane_price(const lane_t *self, const field_t *field, uint32_t rows);

#endif
