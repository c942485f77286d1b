// order: a permutation for every epoch, the same everywhere, and mixed.

#include "worker/order.h"

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>

static void check_permutation(uint64_t seed, uint64_t epoch, uint64_t count)
{
    bool *const seen = calloc(count, sizeof *seen);
    cr_assert_not_null(seen);
    for (uint64_t index = 0; index < count; index++) {
        const uint64_t row = order_at(seed, epoch, index, count);
        cr_assert_lt(row, count);
        cr_assert(!seen[row], "seed %llu epoch %llu count %llu: row %llu twice",
                  (unsigned long long)seed, (unsigned long long)epoch, (unsigned long long)count,
                  (unsigned long long)row);
        seen[row] = true;
    }
    free(seen);
}

Test(order, is_a_permutation_for_every_count)
{
    hx_rng_t rng = hx_rng_seed(seed_of("order"));
    for (uint64_t count = 1; count <= 70; count++) {
        check_permutation(hx_rng_next(&rng), hx_rng_below(&rng, 5), count);
    }
    for (uint32_t trial = 0; trial < 20; trial++) {
        check_permutation(hx_rng_next(&rng), hx_rng_next(&rng), 1 + hx_rng_below(&rng, 20000));
    }
}

Test(order, holds_at_the_largest_count)
{
    for (uint64_t index = 0; index < 1000; index++) {
        cr_assert_lt(order_at(3, 0, ORDER_ROWS_MAX - 1 - index, ORDER_ROWS_MAX), ORDER_ROWS_MAX);
    }
}

// Expected values are from a second implementation, written in another language.
Test(order, is_the_same_on_every_machine)
{
    const uint64_t expected[10] = {7, 0, 1, 8, 6, 2, 3, 9, 4, 5};
    for (uint64_t index = 0; index < 10; index++) {
        cr_assert_eq(order_at(1, 0, index, 10), expected[index], "index %llu: %llu",
                     (unsigned long long)index, (unsigned long long)order_at(1, 0, index, 10));
    }
}

Test(order, differs_by_seed_and_epoch)
{
    uint32_t same_seed = 0;
    uint32_t same_epoch = 0;
    for (uint64_t index = 0; index < 1000; index++) {
        same_seed += order_at(1, 0, index, 1000) == order_at(2, 0, index, 1000);
        same_epoch += order_at(1, 0, index, 1000) == order_at(1, 1, index, 1000);
    }
    // Two random permutations agree in one place on average.
    cr_assert_lt(same_seed, 10);
    cr_assert_lt(same_epoch, 10);
}

Test(order, leaves_no_trace_of_the_file)
{
    const uint64_t count = 100000;
    double sum = 0;
    for (uint64_t index = 0; index < count; index++) {
        const double place = (double)index / (double)count - 0.5;
        const double row = (double)order_at(7, 3, index, count) / (double)count - 0.5;
        sum += 12 * place * row / (double)count;
    }
    // The correlation of a random permutation has deviation 1 / sqrt(count) = 0.003.
    cr_assert_lt(fabs(sum), 0.02);
}

Test(order, rows_of_a_run_go_through_the_epochs)
{
    for (uint64_t row = 0; row < 40; row++) {
        cr_assert_eq(order_row(9, row, 13), order_at(9, row / 13, row % 13, 13));
    }
    cr_assert_eq(order_row(9, 12345, 1), 0);
}

Test(order, index_beyond_the_end_is_a_bug, .signal = SIGABRT)
{
    (void)order_at(1, 0, 10, 10);
}
