// cursor: the books.

#include "server/cursor.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static row_range_t lease(cursor_t *cursor, uint64_t rows)
{
    row_range_t range = {0, 0};
    cr_assert(cursor_lease(cursor, rows, &range));
    cr_assert(cursor_check(cursor));
    return range;
}

static void is(row_range_t range, uint64_t first, uint64_t end)
{
    cr_assert_eq(range.first, first);
    cr_assert_eq(range.end, end);
}

Test(cursor, leases_rows_in_order_up_to_the_limit)
{
    cursor_t cursor;
    cursor_init(&cursor, 10);
    is(lease(&cursor, 4), 0, 4);
    is(lease(&cursor, 4), 4, 8);
    cr_assert_eq(cursor_left(&cursor), 2);
    is(lease(&cursor, 4), 8, 10);
    row_range_t range;
    cr_assert_not(cursor_lease(&cursor, 4, &range));
    cr_assert_eq(cursor.rows[CURSOR_OPEN], 10);
    cursor_clear(&cursor);
}

Test(cursor, low_water_mark_follows_commits)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    const row_range_t a = lease(&cursor, 4), b = lease(&cursor, 4), c = lease(&cursor, 4);
    cursor_commit(&cursor, b);
    cr_assert_eq(cursor.low, 0);
    cursor_commit(&cursor, c);
    cr_assert_eq(cursor.spans_count, 2, "an open span, and one of both commits");
    cursor_commit(&cursor, a);
    cr_assert_eq(cursor.low, 12);
    cr_assert_eq(cursor.spans_count, 0);
    cr_assert(cursor_check(&cursor));
    cursor_clear(&cursor);
}

Test(cursor, returned_rows_go_first_and_are_cut_to_fit)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    const row_range_t a = lease(&cursor, 8);
    lease(&cursor, 8);
    cursor_return(&cursor, a, false);
    cr_assert_eq(cursor_left(&cursor), 84 + 8);
    is(lease(&cursor, 3), 0, 3);
    is(lease(&cursor, 8), 3, 8);
    is(lease(&cursor, 8), 16, 24);
    cursor_clear(&cursor);
}

Test(cursor, returned_neighbours_are_joined)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    const row_range_t a = lease(&cursor, 4), b = lease(&cursor, 4);
    cursor_return(&cursor, a, false);
    cursor_return(&cursor, b, false);
    cr_assert_eq(cursor.spans_count, 1);
    is(lease(&cursor, 8), 0, 8);
    cursor_clear(&cursor);
}

Test(cursor, strikes_stay_with_their_rows)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    const row_range_t a = lease(&cursor, 4), b = lease(&cursor, 4);
    cr_assert_eq(cursor_strikes(&cursor, a), 0);
    cursor_return(&cursor, a, true);
    cursor_return(&cursor, b, false);
    cr_assert_eq(cursor.spans_count, 2, "bad rows are not mixed with good ones");
    const row_range_t again = lease(&cursor, 2);
    is(again, 0, 2);
    cr_assert_eq(cursor_strikes(&cursor, again), 1);
    cursor_return(&cursor, again, true);
    const row_range_t third = lease(&cursor, 4);
    is(third, 0, 2);
    cr_assert_eq(cursor_strikes(&cursor, third), 2);
    cursor_clear(&cursor);
}

Test(cursor, skipped_rows_are_settled_and_listed)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    const row_range_t a = lease(&cursor, 4), b = lease(&cursor, 4), c = lease(&cursor, 4);
    cr_assert_eq(cursor_skips_left(&cursor), PAYLOAD_RANGES_MAX);
    cursor_skip(&cursor, c);
    cursor_skip(&cursor, a);
    cr_assert_eq(cursor.low, 4);
    cr_assert_eq(cursor_skips_left(&cursor), PAYLOAD_RANGES_MAX - 2);
    cursor_commit(&cursor, b);
    cr_assert_eq(cursor.low, 12);
    cr_assert_eq(cursor.rows[CURSOR_SKIPPED], 8);
    cr_assert(cursor_check(&cursor));
    record_t record = {0};
    cursor_record(&cursor, &record);
    cr_assert_eq(record.skipped_count, 2);
    is(record.skipped[0], 0, 4);
    is(record.skipped[1], 8, 12);
    record_destroy(&record);
    cursor_clear(&cursor);
}

Test(cursor, record_restores_the_books)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    row_range_t leases[6];
    for (int at = 0; at < 6; at++) {
        leases[at] = lease(&cursor, 4);
    }
    cursor_commit(&cursor, leases[0]);
    cursor_commit(&cursor, leases[2]);
    cursor_skip(&cursor, leases[3]);
    cursor_commit(&cursor, leases[5]);
    record_t record = {0};
    cursor_record(&cursor, &record);
    cr_assert_eq(record.low_water, 4);
    cr_assert_eq(record.committed_count, 2);

    cursor_t again;
    cr_assert_eq(cursor_load(&again, 100, &record), HX_OK);
    cr_assert(cursor_check(&again));
    cr_assert_eq(again.next, 24);
    cr_assert_eq(again.rows[CURSOR_COMMITTED], 12);
    cr_assert_eq(again.rows[CURSOR_SKIPPED], 4);
    is(lease(&again, 8), 4, 8);
    is(lease(&again, 8), 16, 20);
    is(lease(&again, 8), 24, 32);
    cursor_clear(&again);
    record_destroy(&record);
    cursor_clear(&cursor);
}

Test(cursor, contradictory_records_are_refused)
{
    row_range_t overlap[] = {{4, 8}, {6, 10}};
    row_range_t empty[] = {{4, 4}};
    row_range_t fine[] = {{4, 8}};
    row_range_t huge[] = {{4, UINT64_MAX}};
    const record_t records[] = {
        {.committed = overlap, .committed_count = 2},
        {.committed = empty, .committed_count = 1},
        {.committed = huge, .committed_count = 1},
        {.committed = fine, .committed_count = 1, .skipped = fine, .skipped_count = 1},
        {.low_water = 6, .committed = fine, .committed_count = 1},
        {.low_water = 6, .skipped = fine, .skipped_count = 1},
        {.low_water = UINT64_MAX},
    };
    for (size_t at = 0; at < HX_COUNT(records); at++) {
        cursor_t cursor;
        cr_assert_eq(cursor_load(&cursor, 100, &records[at]), HX_E_FORMAT, "record %zu", at);
        cr_assert_eq(cursor.next, 0);
        cr_assert(cursor_check(&cursor));
        cursor_clear(&cursor);
    }
}

Test(cursor, commit_of_what_is_not_leased_is_a_bug, .signal = SIGABRT)
{
    cursor_t cursor;
    cursor_init(&cursor, 100);
    const row_range_t a = lease(&cursor, 4);
    cursor_commit(&cursor, a);
    cursor_commit(&cursor, a);
}

// ---- the law, against a plain list of rows

enum { LAW_ROWS = 400, LAW_OPEN = 12 };
typedef enum { FRESH, COMMITTED, SKIPPED, OPEN, RETURNED } row_state_t;

typedef struct {
    cursor_t cursor;
    row_state_t rows[LAW_ROWS];
    row_range_t open[LAW_OPEN];
    uint32_t open_count;
} law_t;

static void mark(law_t *law, row_range_t range, row_state_t from, row_state_t to)
{
    for (uint64_t row = range.first; row < range.end; row++) {
        cr_assert(law->rows[row] == from || (from == FRESH && law->rows[row] == RETURNED),
                  "row %" PRIu64 " was in state %d", row, law->rows[row]);
        law->rows[row] = to;
    }
}

static void same_books(const law_t *law)
{
    static const row_state_t states[] = {[CURSOR_COMMITTED] = COMMITTED,
                                         [CURSOR_SKIPPED] = SKIPPED,
                                         [CURSOR_OPEN] = OPEN,
                                         [CURSOR_RETURNED] = RETURNED};
    cr_assert(cursor_check(&law->cursor));
    uint64_t counts[RETURNED + 1] = {0};
    for (uint64_t row = 0; row < LAW_ROWS; row++) {
        counts[law->rows[row]]++;
        cr_assert_eq(law->rows[row] == FRESH, row >= law->cursor.next);
        if (row < law->cursor.low) {
            cr_assert(law->rows[row] == COMMITTED || law->rows[row] == SKIPPED);
        }
    }
    for (uint32_t at = 0; at < law->cursor.spans_count; at++) {
        const cursor_span_t *const span = &law->cursor.spans[at];
        for (uint64_t row = span->first; row < span->end; row++) {
            cr_assert_eq(law->rows[row], states[span->state]);
        }
    }
    for (int state = 0; state < 4; state++) {
        cr_assert_eq(law->cursor.rows[state], counts[states[state]]);
    }
}

static void reload(law_t *law)
{
    record_t record = {0};
    cursor_record(&law->cursor, &record);
    blob_t *blob = payload_record_encode(&record);
    record_destroy(&record);
    cr_assert_eq(payload_record_decode(blob, &record), HX_OK);
    blob_release(&blob);
    cursor_t again;
    cr_assert_eq(cursor_load(&again, LAW_ROWS, &record), HX_OK);
    cr_assert(cursor_check(&again));
    cr_assert_eq(again.rows[CURSOR_COMMITTED], law->cursor.rows[CURSOR_COMMITTED]);
    cr_assert_eq(again.rows[CURSOR_SKIPPED], law->cursor.rows[CURSOR_SKIPPED]);
    cr_assert_eq(again.low, law->cursor.low);
    cursor_clear(&again);
    record_destroy(&record);
}

static void law_step(law_t *law, hx_rng_t *rng)
{
    row_range_t range;
    if (law->open_count < LAW_OPEN && hx_rng_below(rng, 2) == 0) {
        if (cursor_lease(&law->cursor, 1 + hx_rng_below(rng, 9), &range)) {
            mark(law, range, FRESH, OPEN);
            law->open[law->open_count++] = range;
        }
        return;
    }
    if (law->open_count == 0) {
        return;
    }
    const uint32_t at = (uint32_t)hx_rng_below(rng, law->open_count);
    range = law->open[at];
    law->open[at] = law->open[--law->open_count];
    switch (hx_rng_below(rng, 8)) {
    case 0:
        cursor_skip(&law->cursor, range);
        mark(law, range, OPEN, SKIPPED);
        break;
    case 1:
    case 2:
    case 3:
        cursor_return(&law->cursor, range, hx_rng_below(rng, 3) == 0);
        mark(law, range, OPEN, RETURNED);
        break;
    default:
        cursor_commit(&law->cursor, range);
        mark(law, range, OPEN, COMMITTED);
        break;
    }
}

Test(cursor, books_partition_at_every_instant)
{
    const uint64_t seed = seed_of("cursor");
    for (uint64_t round = 0; round < 30; round++) {
        hx_rng_t rng = hx_rng_seed(seed + round);
        law_t law = {.open_count = 0};
        cursor_init(&law.cursor, LAW_ROWS);
        for (int step = 0; step < 600; step++) {
            law_step(&law, &rng);
            same_books(&law);
            if (step % 50 == 0) {
                reload(&law);
            }
        }
        cursor_clear(&law.cursor);
    }
}
