// worker_lease: the books of one lease.

#include "worker/worker_lease.h"

#include <criterion/criterion.h>

// The middle one of three stages, six layers of which it has [2, 5).
static seat_t seat_of(schedule_kind_t schedule)
{
    static uint32_t depths[3] = {3, 2, 1};
    static seat_block_t blocks[4];
    return (seat_t){.seated = true,
                    .stage = 1,
                    .stages = 3,
                    .layer_first = 2,
                    .layer_end = 5,
                    .microbatch = 4,
                    .schedule = schedule,
                    .depths = depths,
                    .sets = 2,
                    .blocks = blocks,
                    .blocks_count = 4};
}

static wire_msg_t grant_of(uint32_t rows, uint32_t flags)
{
    return (wire_msg_t){.kind = WIRE_GRANT,
                        .attempt = 9,
                        .row_first = 100,
                        .rows = rows,
                        .version = 3,
                        .flags = flags,
                        .tokens = 8 * (uint64_t)rows};
}

static lease_t *granted(const seat_t *seat, uint32_t rows, uint32_t flags)
{
    lease_t *const lease = lease_new(9);
    const wire_msg_t grant = grant_of(rows, flags);
    cr_assert(lease_grant(lease, &grant, seat, 0));
    return lease;
}

Test(worker_lease, last_microbatch_may_be_smaller)
{
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = granted(&seat, 10, 0);
    cr_assert_eq(lease->micros, 3);
    cr_assert_eq(lease_micro_rows(lease, &seat, 0), 4);
    cr_assert_eq(lease_micro_rows(lease, &seat, 2), 2);
    cr_assert_eq(lease_micro_first(lease, &seat, 2), 108);
    lease_destroy(&lease);
    cr_assert_null(lease);
}

Test(worker_lease, grants_that_cannot_run_change_nothing)
{
    const seat_t seat = seat_of(SCHEDULE_GPIPE);
    lease_t *lease = lease_new(9);
    wire_msg_t grant = grant_of(0, 0);
    cr_assert(!lease_grant(lease, &grant, &seat, 0));
    grant = grant_of(12, 0);  // Three microbatches alive at once, two sets.
    cr_assert(!lease_grant(lease, &grant, &seat, 0));
    grant = grant_of(UINT32_MAX, 1);
    cr_assert(!lease_grant(lease, &grant, &seat, 0));
    grant = grant_of(8, 0);
    grant.tokens = 0;
    cr_assert(!lease_grant(lease, &grant, &seat, 0));
    cr_assert_eq(lease->state, LEASE_EARLY);
    grant = grant_of(12, 1);  // An evaluation keeps none.
    cr_assert(lease_grant(lease, &grant, &seat, 0));
    lease_destroy(&lease);
}

Test(worker_lease, messages_come_once_and_fit)
{
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = granted(&seat, 10, 0);
    cr_assert(lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 1, 4));
    cr_assert(!lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 1, 4));
    cr_assert(lease_arrive(lease, &seat, WORKER_STASH_GRADIENT, 1, 4));
    cr_assert(!lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 3, 4));
    cr_assert(!lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 2, 4));
    cr_assert(lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 2, 2));
    cr_assert(!lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 0, 0));
    lease_destroy(&lease);
}

Test(worker_lease, early_messages_are_looked_at_with_the_grant)
{
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = lease_new(9);
    cr_assert(lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 0, 4));
    cr_assert(lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 1, 3));  // Will have 4 rows.
    cr_assert(lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 7, 4));  // Will not be.
    cr_assert(!lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, SCHEDULE_MICROS_MAX, 4));
    cr_assert(!lease_arrive(lease, &seat, WORKER_STASH_ACTIVATION, 2, 5));
    const wire_msg_t grant = grant_of(8, 0);
    cr_assert(lease_grant(lease, &grant, &seat, 0));
    lease->state = LEASE_RUNNING;
    lease_work_t work;
    cr_assert(lease_next(lease, &seat, &work));
    cr_assert_eq(work.micro, 0);
    lease_issued(lease, &seat);
    uint32_t stash = 0;
    uint32_t micro = 0;
    cr_assert(!lease_next(lease, &seat, &work));
    cr_assert(lease_waits(lease, &seat, &stash, &micro));
    cr_assert_eq(stash, WORKER_STASH_ACTIVATION);
    cr_assert_eq(micro, 1);
    lease_destroy(&lease);
}

// Gives out everything, feeding each message when it is waited for. Returns pieces of work.
static uint32_t walk(lease_t *lease, const seat_t *seat, uint32_t *slices)
{
    uint32_t count = 0;
    *slices = 0;
    lease->state = LEASE_RUNNING;
    while (!lease_all_issued(lease)) {
        uint32_t stash = 0;
        uint32_t micro = 0;
        lease_work_t work;
        if (lease_waits(lease, seat, &stash, &micro)) {
            cr_assert(!lease_next(lease, seat, &work));
            cr_assert(
                lease_arrive(lease, seat, stash, micro, lease_micro_rows(lease, seat, micro)));
        }
        cr_assert(lease_next(lease, seat, &work));
        cr_assert_eq(work.rows, lease_micro_rows(lease, seat, work.micro));
        if (work.slice < UINT32_MAX) {
            // The deepest first.
            cr_assert_eq(work.slice, 2 - *slices);
            cr_assert_eq(work.layer_first, 2 + work.slice);
            ++*slices;
        } else {
            cr_assert_eq(*slices, 0, "slices come last");
            cr_assert(work.layer_first == 2 && work.layer_end == 5);
        }
        lease_issued(lease, seat);
        count++;
    }
    lease_work_t work;
    cr_assert(!lease_next(lease, seat, &work));
    return count;
}

Test(worker_lease, walks_its_operations_and_slices_the_last)
{
    uint32_t slices = 0;
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = granted(&seat, 10, 0);
    cr_assert_eq(walk(lease, &seat, &slices), 3 + 2 + 3);
    cr_assert_eq(slices, 3);
    cr_assert_eq(lease->computing, 8);
    lease_destroy(&lease);

    seat_t bubble = seat_of(SCHEDULE_ZB);
    bubble.sets = 3;
    lease = granted(&bubble, 10, 0);
    cr_assert_eq(walk(lease, &bubble, &slices), 3 + 3 + 2 + 3);
    cr_assert_eq(slices, 3);
    lease_destroy(&lease);

    lease = granted(&seat, 10, 1);
    cr_assert_eq(walk(lease, &seat, &slices), 3);
    cr_assert_eq(slices, 0);
    lease_destroy(&lease);
}
