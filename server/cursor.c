// cursor - spans of the run's rows and their states: see the header.

#include "server/cursor.h"

#include <stdlib.h>
#include <string.h>

void cursor_init(cursor_t *self, uint64_t limit)
{
    *self = (cursor_t){
        .limit = HX_MIN(limit, CURSOR_ROWS_MAX),
        // Room for the whole of both lists, so that nothing is allocated later.
        .spans = hx_new(CURSOR_SPANS_MAX, sizeof *self->spans),
        .skipped = hx_new(PAYLOAD_RANGES_MAX, sizeof *self->skipped),
    };
}

void cursor_clear(cursor_t *self)
{
    free(self->spans);
    free(self->skipped);
    *self = (cursor_t){0};
}

static void insert_span(cursor_t *self, uint32_t at, cursor_span_t span)
{
    HX_ASSERT(self->spans_count < CURSOR_SPANS_MAX && at <= self->spans_count);
    memmove(&self->spans[at + 1], &self->spans[at], (self->spans_count - at) * sizeof *self->spans);
    self->spans[at] = span;
    self->spans_count++;
}

static void remove_spans(cursor_t *self, uint32_t at, uint32_t count)
{
    HX_ASSERT(at + count <= self->spans_count);
    memmove(&self->spans[at], &self->spans[at + count],
            (self->spans_count - at - count) * sizeof *self->spans);
    self->spans_count -= count;
}

// Two leases stay apart even where they touch; everything else of one kind is one span.
static bool alike(const cursor_span_t *a, const cursor_span_t *b)
{
    return a->state == b->state && a->state != CURSOR_OPEN && a->strikes == b->strikes;
}

// Joins span `at` to its neighbours, then moves the low-water mark up over what is settled.
static void settle(cursor_t *self, uint32_t at)
{
    if (at + 1 < self->spans_count && alike(&self->spans[at], &self->spans[at + 1])) {
        self->spans[at].end = self->spans[at + 1].end;
        remove_spans(self, at + 1, 1);
    }
    if (at > 0 && alike(&self->spans[at - 1], &self->spans[at])) {
        self->spans[at - 1].end = self->spans[at].end;
        remove_spans(self, at, 1);
    }
    uint32_t settled = 0;
    while (settled < self->spans_count && (self->spans[settled].state == CURSOR_COMMITTED ||
                                           self->spans[settled].state == CURSOR_SKIPPED)) {
        self->low = self->spans[settled++].end;
    }
    remove_spans(self, 0, settled);
}

static uint32_t find_open(const cursor_t *self, row_range_t range)
{
    for (uint32_t at = 0; at < self->spans_count; at++) {
        const cursor_span_t *const span = &self->spans[at];
        if (span->first == range.first && span->end == range.end && span->state == CURSOR_OPEN) {
            return at;
        }
    }
    HX_ASSERT(false && "a range that is leased");
    return 0;
}

static void change(cursor_t *self, uint32_t at, cursor_state_t state)
{
    cursor_span_t *const span = &self->spans[at];
    const uint64_t rows = span->end - span->first;
    self->rows[span->state] -= rows;
    self->rows[state] += rows;
    span->state = state;
}

uint64_t cursor_left(const cursor_t *self)
{
    const uint64_t fresh = self->limit > self->next ? self->limit - self->next : 0;
    return fresh + self->rows[CURSOR_RETURNED];
}

static bool lease_returned(cursor_t *self, uint64_t rows_max, row_range_t *out)
{
    for (uint32_t at = 0; at < self->spans_count; at++) {
        cursor_span_t *const span = &self->spans[at];
        if (span->state != CURSOR_RETURNED) {
            continue;
        }
        if (span->end - span->first > rows_max) {
            cursor_span_t rest = *span;
            rest.first = span->first + rows_max;
            span->end = rest.first;
            insert_span(self, at + 1, rest);
        }
        *out = (row_range_t){self->spans[at].first, self->spans[at].end};
        change(self, at, CURSOR_OPEN);
        return true;
    }
    return false;
}

bool cursor_lease(cursor_t *self, uint64_t rows_max, row_range_t *out)
{
    HX_ASSERT(rows_max > 0);
    // A returned span may be cut in two, and so may its neighbours at their return.
    if (self->spans_count + 2 > CURSOR_SPANS_MAX) {
        return false;
    }
    if (lease_returned(self, rows_max, out)) {
        return true;
    }
    if (self->next >= self->limit) {
        return false;
    }
    const uint64_t rows = HX_MIN(rows_max, self->limit - self->next);
    *out = (row_range_t){self->next, self->next + rows};
    insert_span(self, self->spans_count,
                (cursor_span_t){.first = out->first, .end = out->end, .state = CURSOR_OPEN});
    self->rows[CURSOR_OPEN] += rows;
    self->next = out->end;
    return true;
}

void cursor_commit(cursor_t *self, row_range_t range)
{
    const uint32_t at = find_open(self, range);
    change(self, at, CURSOR_COMMITTED);
    self->spans[at].strikes = 0;
    settle(self, at);
}

void cursor_return(cursor_t *self, row_range_t range, bool strike)
{
    const uint32_t at = find_open(self, range);
    change(self, at, CURSOR_RETURNED);
    self->spans[at].strikes += strike ? 1 : 0;
    settle(self, at);
}

uint32_t cursor_strikes(const cursor_t *self, row_range_t range)
{
    return self->spans[find_open(self, range)].strikes;
}

static void note_skipped(cursor_t *self, row_range_t range)
{
    HX_ASSERT(self->skipped_count < PAYLOAD_RANGES_MAX);
    uint32_t at = self->skipped_count;
    while (at > 0 && self->skipped[at - 1].first > range.first) {
        self->skipped[at] = self->skipped[at - 1];
        at--;
    }
    self->skipped[at] = range;
    self->skipped_count++;
}

void cursor_skip(cursor_t *self, row_range_t range)
{
    const uint32_t at = find_open(self, range);
    note_skipped(self, range);
    change(self, at, CURSOR_SKIPPED);
    self->spans[at].strikes = 0;
    settle(self, at);
}

uint32_t cursor_skips_left(const cursor_t *self)
{
    return PAYLOAD_RANGES_MAX - self->skipped_count;
}

static uint32_t committed_above(const cursor_t *self, row_range_t *out)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->spans_count; at++) {
        const cursor_span_t *const span = &self->spans[at];
        if (span->state == CURSOR_COMMITTED) {
            if (out) {
                out[count] = (row_range_t){span->first, span->end};
            }
            count++;
        }
    }
    return count;
}

void cursor_record(const cursor_t *self, record_t *record)
{
    record->low_water = self->low;
    record->committed_count = committed_above(self, NULL);
    record->committed = NULL;
    if (record->committed_count > 0) {
        record->committed = hx_new(record->committed_count, sizeof *record->committed);
        committed_above(self, record->committed);
    }
    record->skipped_count = self->skipped_count;
    record->skipped = NULL;
    if (self->skipped_count > 0) {
        record->skipped = hx_new(self->skipped_count, sizeof *record->skipped);
        memcpy(record->skipped, self->skipped, self->skipped_count * sizeof *self->skipped);
    }
}

// Ascending, not empty, within bounds.
static bool ranges_valid(const row_range_t *ranges, uint32_t count)
{
    uint64_t end = 0;
    for (uint32_t at = 0; at < count; at++) {
        if (ranges[at].first < end || ranges[at].end <= ranges[at].first ||
            ranges[at].end > CURSOR_ROWS_MAX) {
            return false;
        }
        end = ranges[at].end;
    }
    return true;
}

// Appends [first, end); merges with the span before where the two are alike.
static void append(cursor_t *self, uint64_t first, uint64_t end, cursor_state_t state)
{
    if (first < end) {
        insert_span(self, self->spans_count,
                    (cursor_span_t){.first = first, .end = end, .state = state});
        self->rows[state] += end - first;
        self->next = end;
    }
}

// Both lists above the mark, merged by first row; gaps are returned.
static hx_err_t load_spans(cursor_t *self, const record_t *record)
{
    uint32_t committed = 0;
    uint32_t skipped = 0;
    while (skipped < record->skipped_count && record->skipped[skipped].end <= self->low) {
        self->rows[CURSOR_SKIPPED] += record->skipped[skipped].end - record->skipped[skipped].first;
        skipped++;
    }
    self->rows[CURSOR_COMMITTED] = self->low - self->rows[CURSOR_SKIPPED];
    while (committed < record->committed_count || skipped < record->skipped_count) {
        const bool take_skipped =
            committed == record->committed_count ||
            (skipped < record->skipped_count &&
             record->skipped[skipped].first < record->committed[committed].first);
        const row_range_t range =
            take_skipped ? record->skipped[skipped++] : record->committed[committed++];
        if (range.first < self->next || self->spans_count + 2 > CURSOR_SPANS_MAX) {
            return HX_E_FORMAT;
        }
        append(self, self->next, range.first, CURSOR_RETURNED);
        append(self, range.first, range.end, take_skipped ? CURSOR_SKIPPED : CURSOR_COMMITTED);
        settle(self, self->spans_count - 1);
    }
    return HX_OK;
}

hx_err_t cursor_load(cursor_t *self, uint64_t limit, const record_t *record)
{
    cursor_init(self, limit);
    if (record->low_water > CURSOR_ROWS_MAX || record->skipped_count > PAYLOAD_RANGES_MAX ||
        !ranges_valid(record->committed, record->committed_count) ||
        !ranges_valid(record->skipped, record->skipped_count)) {
        return HX_E_FORMAT;
    }
    self->low = self->next = record->low_water;
    if (load_spans(self, record) != HX_OK) {
        cursor_clear(self);
        cursor_init(self, limit);
        return HX_E_FORMAT;
    }
    if (record->skipped_count > 0) {
        memcpy(self->skipped, record->skipped, record->skipped_count * sizeof *self->skipped);
        self->skipped_count = record->skipped_count;
    }
    return HX_OK;
}

bool cursor_check(const cursor_t *self)
{
    uint64_t rows[4] = {0};
    uint64_t end = self->low;
    uint64_t skipped_below = 0;
    for (uint32_t at = 0; at < self->skipped_count && self->skipped[at].end <= self->low; at++) {
        skipped_below += self->skipped[at].end - self->skipped[at].first;
    }
    rows[CURSOR_SKIPPED] = skipped_below;
    rows[CURSOR_COMMITTED] = self->low - skipped_below;
    for (uint32_t at = 0; at < self->spans_count; at++) {
        const cursor_span_t *const span = &self->spans[at];
        if (span->first != end || span->end <= span->first) {
            return false;
        }
        if (at > 0 && alike(span - 1, span)) {
            return false;
        }
        rows[span->state] += span->end - span->first;
        end = span->end;
    }
    if (self->spans_count > 0 &&
        (self->spans[0].state == CURSOR_COMMITTED || self->spans[0].state == CURSOR_SKIPPED)) {
        return false;
    }
    return end == self->next && memcmp(rows, self->rows, sizeof rows) == 0;
}
