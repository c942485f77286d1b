// cuts - the text of plan.stages: who runs how many transformer blocks, written by hand. Inner
// header of the planner; planner.h describes the text.

#ifndef CUTS_H
#define CUTS_H

#include "scheduler/planner_draft.h"

// Turns the text into a draft, all workers chosen. HX_E_ARG and one line that names what is wrong,
// with both totals where sums differ.
HX_MUST_USE hx_err_t cuts_draft(const char *text, const field_t *field, draft_t *out,
                                hx_fault_t *fault);

#endif
