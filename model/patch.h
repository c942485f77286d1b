// patch - how the members of a stage divide the microbatches of one lease.
//
// A patch is the unequal devices that serve one stage together. They hold the same layers; each
// computes a piece of the rows. `rotate` gives whole microbatches to members in turn, `split` gives
// each microbatch's rows to all members, in intervals. The division follows from the plan's shares
// and the lease's rows alone, so that every sender and every receiver makes the same one without
// asking. Between two stages, each pair of members exchanges the rows that both have. Pure.

#ifndef PATCH_H
#define PATCH_H

#include "model/plan.h"

typedef struct {
    plan_mode_t mode;
    uint32_t members;      // From 1.
    const double *shares;  // Of the members, each above 0; borrowed for the call only.
    uint32_t rows;         // Of the lease, from 1.
    uint32_t microbatch;   // Rows of one microbatch, from 1; the last one may be smaller.
} patch_conf_t;

// Rows [first, first + rows) of a microbatch, counted from its first.
typedef struct {
    uint32_t first;
    uint32_t rows;  // 0: none.
} patch_piece_t;

typedef struct {
    uint32_t members;
    uint32_t micros;
    uint32_t rows;       // Of every microbatch but the last,
    uint32_t rows_last;  // and of that one.
    uint32_t *owners;    // Of each microbatch the member that has it; NULL in a split.
    uint32_t *ends;      // In a split of each member one past its last row: full, then last ones.
} patch_t;

// To be given back with patch_clear. Memory: one number a microbatch (rotate) or two a member.
//
// rotate: the next microbatch goes to the member that is free first if each takes 1 / share for
// one: argmin x_d / share_d, x_d those it has; ties go to the larger share, then to the lower
// number. split: the next row goes to the member that would be done with it first:
// argmin (x_d + 1) / share_d with the same ties. Either way a longer lease only adds to what a
// shorter one gives to each member.
void patch_make(const patch_conf_t *conf, patch_t *out);
void patch_clear(patch_t *self);

// Rows of a whole microbatch, and what a member has of it.
uint32_t patch_rows(const patch_t *self, uint32_t micro);
patch_piece_t patch_piece(const patch_t *self, uint32_t micro, uint32_t member);
// The most rows that the member has in one microbatch; 0: it has nothing to do in this lease.
uint32_t patch_rows_max(const patch_t *self, uint32_t member);

// The rows in both pieces.
patch_piece_t patch_common(patch_piece_t a, patch_piece_t b);

#endif
