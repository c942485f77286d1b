// worker_lease: the books of one lease.

#include "worker/worker_lease.h"

#include <criterion/criterion.h>

// The middle one of three stages, six layers of which it has [2, 5).
static seat_t seat_of(schedule_kind_t schedule)
{
    static uint32_t depths[3] = {3, 2, 1};
    static seat_block_t blocks[4];
    static node_id_t nodes[3] = {1, 2, 3};
    static double whole = 1;
    return (seat_t){.patches = {{.members = 1, .nodes = nodes, .shares = &whole},
                                {.members = 1, .nodes = nodes + 1, .shares = &whole},
                                {.members = 1, .nodes = nodes + 2, .shares = &whole}},
                    .rows = 4,
                    .seated = true,
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

// A message of the only member of a neighbouring stage.
static bool arrive(lease_t *lease, const seat_t *seat, uint32_t stash, uint32_t micro,
                   uint32_t rows)
{
    const lease_message_t message = {
        .stash = stash, .micro = micro, .row_first = 100 + 4 * micro, .rows = rows};
    return lease_arrive(lease, seat, &message);
}

Test(worker_lease, last_microbatch_may_be_smaller)
{
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = granted(&seat, 10, 0);
    cr_assert_eq(lease->micros, 3);
    cr_assert_eq(lease_piece(lease, &seat, 0).rows, 4);
    cr_assert_eq(lease_piece(lease, &seat, 2).rows, 2);
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
    cr_assert(arrive(lease, &seat, WORKER_STASH_ACTIVATION, 1, 4));
    cr_assert(!arrive(lease, &seat, WORKER_STASH_ACTIVATION, 1, 4));
    cr_assert(arrive(lease, &seat, WORKER_STASH_GRADIENT, 1, 4));
    cr_assert(!arrive(lease, &seat, WORKER_STASH_ACTIVATION, 3, 4));
    cr_assert(!arrive(lease, &seat, WORKER_STASH_ACTIVATION, 2, 4));
    cr_assert(arrive(lease, &seat, WORKER_STASH_ACTIVATION, 2, 2));
    cr_assert(!arrive(lease, &seat, WORKER_STASH_ACTIVATION, 0, 0));
    lease_destroy(&lease);
}

Test(worker_lease, early_messages_are_looked_at_with_the_grant)
{
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = lease_new(9);
    cr_assert(arrive(lease, &seat, WORKER_STASH_ACTIVATION, 0, 4));
    cr_assert(arrive(lease, &seat, WORKER_STASH_ACTIVATION, 1, 3));  // Will have 4 rows.
    cr_assert(arrive(lease, &seat, WORKER_STASH_ACTIVATION, 7, 4));  // Will not be.
    cr_assert(!arrive(lease, &seat, WORKER_STASH_ACTIVATION, SCHEDULE_MICROS_MAX, 4));
    cr_assert(!arrive(lease, &seat, WORKER_STASH_ACTIVATION, 2, 5));
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
        while (lease_waits(lease, seat, &stash, &micro)) {
            cr_assert(!lease_next(lease, seat, &work));
            cr_assert(arrive(lease, seat, stash, micro, lease_piece(lease, seat, micro).rows));
        }
        cr_assert(lease_next(lease, seat, &work));
        cr_assert_eq(work.rows, lease_piece(lease, seat, work.micro).rows);
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

// The second of two members that split, between a stage that rotates and one that splits otherwise.
static seat_t patched_seat(void)
{
    static double shares[2][2] = {{0.5, 0.5}, {0.25, 0.75}};
    seat_t seat = seat_of(SCHEDULE_1F1B);
    static node_id_t nodes[2] = {7, 8};
    seat.member = 1;
    seat.rows = 2;
    seat.patches[SEAT_BEFORE] = (seat_patch_t){PLAN_ROTATE, 2, nodes, shares[0]};
    seat.patches[SEAT_OWN] = (seat_patch_t){PLAN_SPLIT, 2, nodes, shares[0]};
    seat.patches[SEAT_AFTER] = (seat_patch_t){PLAN_SPLIT, 2, nodes, shares[1]};
    return seat;
}

static bool arrive_from(lease_t *lease, const seat_t *seat, lease_message_t message)
{
    return lease_arrive(lease, seat, &message);
}

Test(worker_lease, messages_are_the_rows_that_two_members_share)
{
    const seat_t seat = patched_seat();
    lease_t *lease = granted(&seat, 8, 0);
    uint32_t stash = 0;
    uint32_t micro = 0;
    lease->state = LEASE_RUNNING;
    // Rows 2 and 3 of microbatch 0, all from the member whose turn it is.
    cr_assert(!arrive_from(lease, &seat, (lease_message_t){WORKER_STASH_ACTIVATION, 1, 0, 102, 2}));
    cr_assert(!arrive_from(lease, &seat, (lease_message_t){WORKER_STASH_ACTIVATION, 0, 0, 101, 2}));
    cr_assert(lease_waits(lease, &seat, &stash, &micro));
    cr_assert(arrive_from(lease, &seat, (lease_message_t){WORKER_STASH_ACTIVATION, 0, 0, 102, 2}));
    cr_assert(!lease_waits(lease, &seat, &stash, &micro));
    lease_work_t work;
    cr_assert(lease_next(lease, &seat, &work));
    cr_assert(work.row_first == 102 && work.rows == 2);
    lease_issued(lease, &seat);
    cr_assert(arrive_from(lease, &seat, (lease_message_t){WORKER_STASH_ACTIVATION, 1, 1, 106, 2}));
    cr_assert(lease_next(lease, &seat, &work));
    lease_issued(lease, &seat);
    // Behind, the first member has row 0 only, so both rows come from the second.
    cr_assert(lease_waits(lease, &seat, &stash, &micro));
    cr_assert(stash == WORKER_STASH_GRADIENT && micro == 0);
    cr_assert(!arrive_from(lease, &seat, (lease_message_t){WORKER_STASH_GRADIENT, 0, 0, 102, 1}));
    cr_assert(arrive_from(lease, &seat, (lease_message_t){WORKER_STASH_GRADIENT, 1, 0, 102, 2}));
    cr_assert(!lease_waits(lease, &seat, &stash, &micro));
    lease_destroy(&lease);
}

Test(worker_lease, member_without_rows_is_idle_but_the_first_passes_on)
{
    seat_t seat = patched_seat();
    seat.patches[SEAT_OWN].shares = (double[]){0.9, 0.1};
    lease_t *lease = granted(&seat, 4, 0);
    cr_assert_eq(lease->ops_count, 0);
    cr_assert_eq(lease->state, LEASE_PUSHING);
    cr_assert_eq(lease->oldest, lease->base);
    cr_assert(lease_is_idle(lease, &seat) && !lease_has_part(lease, 1));
    lease_destroy(&lease);
    seat.member = 0;
    seat.patches[SEAT_OWN].shares = (double[]){0.1, 0.9};
    lease = granted(&seat, 4, 0);
    cr_assert_eq(lease->ops_count, 0);
    cr_assert_eq(lease->state, LEASE_QUEUED);
    cr_assert(!lease_parts_whole(lease, &seat, 2));
    cr_assert(lease_part_came(lease, &seat, 2, 1));
    cr_assert(!lease_part_came(lease, &seat, 2, 1));
    cr_assert(lease_parts_whole(lease, &seat, 2));
    lease_destroy(&lease);
}

// The middle stage's depth is two: it is never more than two microbatches ahead of the last one.
Test(worker_lease, evaluation_waits_for_the_stage_behind)
{
    const seat_t seat = seat_of(SCHEDULE_1F1B);
    lease_t *lease = granted(&seat, 16, 1);
    for (uint32_t micro = 0; micro < 4; micro++) {
        cr_assert(arrive(lease, &seat, WORKER_STASH_ACTIVATION, micro, 4));
    }
    lease->state = LEASE_RUNNING;
    lease_work_t work;
    for (uint32_t micro = 0; micro < 2; micro++) {
        cr_assert(lease_next(lease, &seat, &work));
        lease_issued(lease, &seat);
    }
    uint32_t stash = 0;
    uint32_t micro = 9;
    cr_assert(lease_waits(lease, &seat, &stash, &micro));
    cr_assert(stash == WORKER_STASH_GRADIENT && micro == 0);
    cr_assert(arrive(lease, &seat, WORKER_STASH_GRADIENT, 0, 4));
    cr_assert(lease_next(lease, &seat, &work));
    cr_assert_eq(work.micro, 2);
    lease_issued(lease, &seat);
    cr_assert(!lease_next(lease, &seat, &work));
    lease_destroy(&lease);
}
