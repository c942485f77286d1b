// ps_holds_test - parts, duplicates, closing, the floor; and a random walk against a plain model.

#include "server/ps_holds.h"

#include <criterion/criterion.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

static void hold(ps_holds_t *holds, uint64_t attempt, uint32_t block, uint32_t part, uint32_t parts)
{
    cr_assert_eq(ps_holds_push(holds, attempt, block, part, parts, 100), PS_HOLD_NEW);
    cr_assert(ps_holds_done(holds, attempt, block, part, 100, true, true));
}

Test(ps_holds, is_complete_when_all_parts_of_all_blocks_are_held)
{
    ps_holds_t *holds = ps_holds_new(2);
    hold(holds, 7, 0, 0, 1);
    cr_assert_not(ps_holds_complete(holds, 7));
    hold(holds, 7, 1, 1, 2);
    cr_assert_not(ps_holds_complete(holds, 7));
    cr_assert_eq(ps_holds_push(holds, 7, 1, 0, 2, 100), PS_HOLD_NEW);
    cr_assert_not(ps_holds_complete(holds, 7), "pending is not held");
    cr_assert(ps_holds_done(holds, 7, 1, 0, 100, true, true));
    cr_assert(ps_holds_complete(holds, 7));
    cr_assert_eq(ps_holds_bytes(holds), 300);
    cr_assert_not(ps_holds_complete(holds, 8));
    ps_holds_destroy(&holds);
    cr_assert_null(holds);
}

Test(ps_holds, tells_what_a_second_arrival_is)
{
    ps_holds_t *holds = ps_holds_new(1);
    cr_assert_eq(ps_holds_push(holds, 7, 0, 0, 2, 100), PS_HOLD_NEW);
    cr_assert_eq(ps_holds_push(holds, 7, 0, 0, 2, 100), PS_HOLD_PENDING);
    cr_assert(ps_holds_done(holds, 7, 0, 0, 100, true, true));
    cr_assert_eq(ps_holds_push(holds, 7, 0, 0, 2, 100), PS_HOLD_HELD);
    cr_assert_eq(ps_holds_push(holds, 7, 0, 0, 1, 100), PS_HOLD_WRONG);
    cr_assert_eq(ps_holds_bytes(holds), 100);
    ps_holds_destroy(&holds);
}

Test(ps_holds, a_part_that_was_not_kept_may_come_again)
{
    ps_holds_t *holds = ps_holds_new(1);
    cr_assert_eq(ps_holds_push(holds, 7, 0, 0, 2, 100), PS_HOLD_NEW);
    cr_assert(ps_holds_done(holds, 7, 0, 0, 100, false, true));
    cr_assert_eq(ps_holds_bytes(holds), 0);
    hold(holds, 7, 0, 0, 1);
    cr_assert(ps_holds_complete(holds, 7));
    ps_holds_destroy(&holds);
}

Test(ps_holds, what_is_closed_is_never_held_again)
{
    ps_holds_t *holds = ps_holds_new(1);
    hold(holds, 7, 0, 0, 1);
    cr_assert_eq(ps_holds_push(holds, 9, 0, 0, 1, 100), PS_HOLD_NEW);
    cr_assert(ps_holds_close(holds, 7));
    cr_assert(ps_holds_close(holds, 9));
    cr_assert_not(ps_holds_close(holds, 8), "there was nothing of it");
    cr_assert_not(ps_holds_done(holds, 9, 0, 0, 100, true, true), "closed while it was pending");
    for (uint64_t attempt = 7; attempt <= 9; attempt++) {
        cr_assert(ps_holds_over(holds, attempt));
        cr_assert_eq(ps_holds_push(holds, attempt, 0, 0, 1, 100), PS_HOLD_CLOSED);
    }
    cr_assert_eq(ps_holds_bytes(holds), 0);
    cr_assert_eq(ps_holds_count(holds), 0);
    ps_holds_destroy(&holds);
}

Test(ps_holds, the_floor_forgets_what_is_below_it)
{
    ps_holds_t *holds = ps_holds_new(1);
    hold(holds, 9, 0, 0, 1);
    hold(holds, 3, 0, 0, 1);
    hold(holds, 5, 0, 0, 1);
    uint32_t count = 0;
    const uint64_t *const dropped = ps_holds_raise(holds, 6, &count);
    cr_assert_eq(count, 2);
    cr_assert_eq(dropped[0], 3);
    cr_assert_eq(dropped[1], 5);
    cr_assert(ps_holds_over(holds, 1));
    cr_assert(ps_holds_complete(holds, 9));
    ps_holds_raise(holds, 2, &count);
    cr_assert_eq(count, 0);
    cr_assert_eq(ps_holds_floor(holds), 6, "it never sinks");
    ps_holds_destroy(&holds);
}

Test(ps_holds, remembers_that_something_was_not_finite)
{
    ps_holds_t *holds = ps_holds_new(2);
    hold(holds, 7, 0, 0, 1);
    cr_assert_eq(ps_holds_push(holds, 7, 1, 0, 1, 100), PS_HOLD_NEW);
    cr_assert(ps_holds_done(holds, 7, 1, 0, 100, true, false));
    cr_assert(ps_holds_complete(holds, 7));
    cr_assert_not(ps_holds_finite(holds, 7));
    ps_holds_destroy(&holds);
}

Test(ps_holds, has_room_for_a_named_number_of_attempts)
{
    ps_holds_t *holds = ps_holds_new(1);
    for (uint64_t attempt = 0; attempt < PS_ATTEMPTS_MAX; attempt++) {
        cr_assert_eq(ps_holds_push(holds, attempt, 0, 0, 1, 1), PS_HOLD_NEW);
    }
    cr_assert_eq(ps_holds_push(holds, PS_ATTEMPTS_MAX, 0, 0, 1, 1), PS_HOLD_FULL);
    cr_assert_eq(ps_holds_push(holds, 0, 0, 0, 1, 1), PS_HOLD_PENDING);
    for (uint64_t attempt = 0; attempt < PS_CLOSED_MAX + 10; attempt++) {
        ps_holds_close(holds, attempt);
    }
    cr_assert_eq(ps_holds_count(holds), 0);
    cr_assert_not(ps_holds_over(holds, 9), "the lowest are forgotten");
    cr_assert(ps_holds_over(holds, 10));
    ps_holds_destroy(&holds);
}

Test(ps_holds, a_shard_without_blocks_holds_everything)
{
    ps_holds_t *holds = ps_holds_new(0);
    cr_assert(ps_holds_complete(holds, 1));
    cr_assert(ps_holds_finite(holds, 1));
    ps_holds_destroy(&holds);
}

// A plain model: sets as arrays of flags.
#define ATTEMPTS 40u
#define BLOCKS 3u

typedef struct {
    bool closed[ATTEMPTS];
    bool held[ATTEMPTS][BLOCKS][2];
    uint64_t floor;
} plain_t;

static void compare(const ps_holds_t *holds, const plain_t *plain)
{
    uint64_t bytes = 0;
    uint32_t count = 0;
    for (uint64_t attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint32_t parts = 0;
        for (uint32_t block = 0; block < BLOCKS; block++) {
            parts += plain->held[attempt][block][0] + plain->held[attempt][block][1];
        }
        bytes += 100 * parts;
        count += parts > 0;
        cr_assert_eq(ps_holds_complete(holds, attempt), parts == 2 * BLOCKS);
        cr_assert_eq(ps_holds_over(holds, attempt),
                     plain->closed[attempt] || attempt < plain->floor);
    }
    cr_assert_eq(ps_holds_bytes(holds), bytes);
    cr_assert_eq(ps_holds_count(holds), count);
}

Test(ps_holds, agrees_with_a_plain_model_on_a_random_walk)
{
    hx_rng_t rng = hx_rng_seed(seed_of("ps_holds random walk"));
    static plain_t plain;
    ps_holds_t *holds = ps_holds_new(BLOCKS);
    for (uint32_t turn = 0; turn < 20000; turn++) {
        const uint64_t window = HX_MIN(plain.floor + 12, (uint64_t)ATTEMPTS);
        const uint64_t attempt = hx_rng_below(&rng, window);
        const uint32_t block = (uint32_t)hx_rng_below(&rng, BLOCKS);
        const uint32_t part = (uint32_t)hx_rng_below(&rng, 2);
        const uint64_t choice = hx_rng_below(&rng, 1000);
        const bool over = plain.closed[attempt] || attempt < plain.floor;
        bool *const held = &plain.held[attempt][block][part];
        if (choice < 960) {
            const ps_hold_t wanted = over ? PS_HOLD_CLOSED : *held ? PS_HOLD_HELD : PS_HOLD_NEW;
            cr_assert_eq(ps_holds_push(holds, attempt, block, part, 2, 100), wanted);
            if (wanted == PS_HOLD_NEW) {
                cr_assert(ps_holds_done(holds, attempt, block, part, 100, true, true));
                *held = true;
            }
        } else if (choice < 990) {
            ps_holds_close(holds, attempt);
            plain.closed[attempt] = true;
            for (uint32_t at = 0; at < BLOCKS; at++) {
                plain.held[attempt][at][0] = plain.held[attempt][at][1] = false;
            }
        } else {
            plain.floor = HX_MIN(plain.floor + hx_rng_below(&rng, 2), (uint64_t)ATTEMPTS - 12);
            uint32_t count = 0;
            ps_holds_raise(holds, plain.floor, &count);
            for (uint64_t low = 0; low < plain.floor; low++) {
                for (uint32_t at = 0; at < BLOCKS; at++) {
                    plain.held[low][at][0] = plain.held[low][at][1] = false;
                }
            }
        }
        compare(holds, &plain);
    }
    ps_holds_destroy(&holds);
}
