// planner_search - groupings of workers, cut, timed and compared; the best one is kept. Inner
// header of the planner.

#ifndef PLANNER_SEARCH_H
#define PLANNER_SEARCH_H

#include "scheduler/planner_draft.h"
#include "scheduler/planner_groups.h"

#define SEARCH_CUTS_MAX 4096u

// The cut of one group.
typedef struct {
    uint32_t *members;  // Ascending.
    uint32_t members_count;
    uint32_t rows;
    draft_stage_t *stages;
    uint32_t stages_count;  // 0: the model does not fit.
} search_cut_t;

typedef struct {
    field_t field;
    plan_t best;          // epoch 0: none yet.
    hx_fault_t why;       // Of the last candidate that could not be.
    bool every;           // Groups are cut in every way.
    bool equal_rows;      // Pipelines get equal rows.
    uint32_t tries_left;  // Groupings that search_improve may still try.
    search_cut_t *cuts;   // SEARCH_CUTS_MAX.
    uint32_t cuts_count;
} search_t;

// Times a draft; then, unless the number of pipelines is fixed, without its slowest pipelines as
// long as that is faster. Keeps it if it is the best.
void search_draft(search_t *self, draft_t *draft, bool fixed);
// Cuts the groups and times them. With `fixed` all groups must become pipelines.
void search_groups(search_t *self, const groups_t *groups, bool fixed);
// Moves single workers, and exchanges two, as long as that makes the best plan faster.
void search_improve(search_t *self, bool fixed);
// Every grouping, idle workers included; with `cuts` every order and cut of each group, else those
// that cut_group likes. For few workers.
void search_every(search_t *self, bool cuts);
// Gives the remembered cuts back.
void search_forget(search_t *self);

#endif
