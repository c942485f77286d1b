// planner_cut - the best cut of one group of workers into a pipeline. Inner header of the planner.

#ifndef PLANNER_CUT_H
#define PLANNER_CUT_H

#include "scheduler/planner_lane.h"

// Tries orders of the workers and numbers of stages; writes the stages of the fastest lease of
// `rows` rows to `out` (room for as many as workers), returns how many; 0 if the model does not
// fit. `members` are numbers in the field.
uint32_t cut_group(const field_t *field, const uint32_t *members, uint32_t members_count,
                   uint32_t rows, draft_stage_t *out);

// All workers in the order given, a stage each, the slowest stage as fast as can be. False: the
// model does not fit, or has too few layers.
bool cut_whole(const field_t *field, const uint32_t *members, uint32_t members_count,
               draft_stage_t *out);
// As cut_group, of every order of all of the workers with every cut. Takes factorially long: for
// few.
uint32_t cut_every(const field_t *field, const uint32_t *members, uint32_t members_count,
                   uint32_t rows, draft_stage_t *out);

#endif
