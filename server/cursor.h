// cursor - the books: which rows of the run's order are committed, leased, returned or skipped.
//
// Rows are numbered from 0 without end (an epoch is a stretch of that line). At every instant the
// spans of this book partition [0, next): below the low-water mark everything is committed or
// skipped, above it lies one list of spans, each in one state. Pure.

#ifndef CURSOR_H
#define CURSOR_H

#include "net/payload.h"

#define CURSOR_ROWS_MAX (UINT64_MAX / 2)  // "No end": more rows than any run takes.
#define CURSOR_SPANS_MAX 4096

typedef enum { CURSOR_COMMITTED, CURSOR_SKIPPED, CURSOR_OPEN, CURSOR_RETURNED } cursor_state_t;

typedef struct {
    uint64_t first;
    uint64_t end;  // One past the last row.
    cursor_state_t state;
    uint32_t strikes;  // How often it was returned as not finite.
} cursor_span_t;

typedef struct {
    uint64_t limit;        // No row at or above it is leased.
    uint64_t low;          // The low-water mark.
    uint64_t next;         // The first row that was never leased.
    cursor_span_t *spans;  // Of [low, next), ascending.
    uint32_t spans_count;
    row_range_t *skipped;  // All skipped ranges, ascending, also those below the mark.
    uint32_t skipped_count;
    uint64_t rows[4];  // Rows in each state, by cursor_state_t; for the test of the law.
} cursor_t;

void cursor_init(cursor_t *self, uint64_t limit);
void cursor_clear(cursor_t *self);

// Books of a record, which came from a file: what lies between its committed ranges is returned.
// HX_E_FORMAT if the ranges contradict one another; `self` is then as after cursor_init.
HX_MUST_USE hx_err_t cursor_load(cursor_t *self, uint64_t limit, const record_t *record);

// Rows that can still be leased: the returned ones and those between `next` and the limit.
uint64_t cursor_left(const cursor_t *self);

// Leases at most `rows_max` rows: the lowest returned range if there is one (cut to fit), else
// fresh ones. False if nothing is left, or no further span can be kept.
bool cursor_lease(cursor_t *self, uint64_t rows_max, row_range_t *out);
// These take a range exactly as it was leased.
void cursor_commit(cursor_t *self, row_range_t range);
// Returned ranges go out again first. With `strike` it counts as not finite once more.
void cursor_return(cursor_t *self, row_range_t range, bool strike);
// How often this leased range was returned as not finite so far.
uint32_t cursor_strikes(const cursor_t *self, row_range_t range);
// Given up for good.
void cursor_skip(cursor_t *self, row_range_t range);

// How many more ranges can be skipped before the record is full.
uint32_t cursor_skips_left(const cursor_t *self);

// Writes low_water, committed and skipped of `record`; the arrays are copies, given back by
// record_destroy.
void cursor_record(const cursor_t *self, record_t *record);

// Whether spans and counts agree: contiguous from low to next, nothing committed or skipped at the
// low end, equal neighbours joined, counts right.
bool cursor_check(const cursor_t *self);

#endif
