// hx_rng_test - known answers, and the shape of the distributions.

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

// The vectors published with the paper's own implementation.
Test(hx_rng, philox_gives_the_published_numbers)
{
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t wanted[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t at = 0; at < HX_COUNT(known); at++) {
        uint32_t out[4];
        hx_rng_philox(known[at].counter, known[at].key, out);
        cr_assert_arr_eq(out, known[at].wanted, sizeof out, "vector %zu", at);
    }
}

Test(hx_rng, the_generator_gives_the_published_numbers)
{
    hx_rng_t rng = {{1, 2, 3, 4}};
    cr_assert_eq(hx_rng_next(&rng), 11520);
    cr_assert_eq(hx_rng_next(&rng), 0);
    cr_assert_eq(hx_rng_next(&rng), UINT64_C(1509978240));
    cr_assert_eq(hx_rng_next(&rng), UINT64_C(1215971899390074240));
    // The first number of splitmix64 from seed 0.
    cr_assert_eq(hx_rng_seed(0).state[0], UINT64_C(0xe220a8397b1dcdaf));
}

Test(hx_rng, hash_gives_the_published_numbers)
{
    cr_assert_eq(hx_rng_hash(""), UINT64_C(0xcbf29ce484222325));
    cr_assert_eq(hx_rng_hash("a"), UINT64_C(0xaf63dc4c8601ec8c));
    cr_assert_eq(hx_rng_hash("foobar"), UINT64_C(0x85944171f73967e8));
}

Test(hx_rng, below_stays_below_and_reaches_all)
{
    hx_rng_t rng = hx_rng_seed(seed_of("below"));
    int counts[7] = {0};
    for (int draw = 0; draw < 70000; draw++) {
        const uint64_t number = hx_rng_below(&rng, HX_COUNT(counts));
        cr_assert_lt(number, HX_COUNT(counts));
        counts[number]++;
    }
    for (size_t at = 0; at < HX_COUNT(counts); at++) {
        cr_assert(counts[at] > 9500 && counts[at] < 10500, "%zu came %d times", at, counts[at]);
    }
    cr_assert_eq(hx_rng_below(&rng, 1), 0);
    cr_assert_lt(hx_rng_below(&rng, UINT64_MAX), UINT64_MAX);
}

// Mean and deviation of numbers that should have mean 0 and deviation 1.
static void check_normal(const double *x, size_t count)
{
    double sum = 0;
    double squares = 0;
    size_t beyond_two = 0;
    for (size_t at = 0; at < count; at++) {
        sum += x[at];
        squares += x[at] * x[at];
        beyond_two += fabs(x[at]) > 2 ? 1 : 0;
        cr_assert(isfinite(x[at]));
    }
    cr_assert_float_eq(sum / (double)count, 0, 0.02);
    cr_assert_float_eq(squares / (double)count, 1, 0.03);
    cr_assert_float_eq((double)beyond_two / (double)count, 0.0455, 0.004);
}

Test(hx_rng, normals_have_mean_zero_and_deviation_one)
{
    enum { COUNT = 40000 };
    static double x[COUNT];
    hx_rng_t rng = hx_rng_seed(seed_of("normals"));
    for (size_t at = 0; at < COUNT; at++) {
        x[at] = hx_rng_normal(&rng);
    }
    check_normal(x, COUNT);
    for (size_t at = 0; at < COUNT; at++) {
        x[at] = (double)hx_rng_normal_at(5, hx_rng_hash("wte"), at);
    }
    check_normal(x, COUNT);
}

Test(hx_rng, units_lie_in_zero_to_one)
{
    hx_rng_t rng = hx_rng_seed(seed_of("units"));
    double sum = 0;
    for (uint64_t at = 0; at < 20000; at++) {
        const double unit = hx_rng_unit(&rng);
        const float by_counter = hx_rng_unit_at(1, 2, at);
        cr_assert(unit >= 0 && unit < 1);
        cr_assert(by_counter >= 0 && by_counter < 1);
        sum += unit + (double)by_counter;
    }
    cr_assert_float_eq(sum / 40000, 0.5, 0.01);
}

Test(hx_rng, numbers_by_counter_depend_on_key_stream_and_element)
{
    const uint32_t here = hx_rng_bits_at(1, 2, 3);
    cr_assert_eq(hx_rng_bits_at(1, 2, 3), here);
    cr_assert_neq(hx_rng_bits_at(1 + (UINT64_C(1) << 32), 2, 3), here);
    cr_assert_neq(hx_rng_bits_at(2, 2, 3), here);
    cr_assert_neq(hx_rng_bits_at(1, 3, 3), here);
    cr_assert_neq(hx_rng_bits_at(1, 2 + (UINT64_C(1) << 32), 3), here);
    cr_assert_neq(hx_rng_bits_at(1, 2, 4), here);
    cr_assert_neq(hx_rng_bits_at(1, 2, 3 + (UINT64_C(1) << 32)), here);
}

Test(hx_rng, fill_is_the_numbers_one_by_one_from_anywhere)
{
    float whole[10];
    float part[4];
    hx_rng_normal_fill(7, 8, 0, 0.02f, whole, HX_COUNT(whole));
    hx_rng_normal_fill(7, 8, 3, 0.02f, part, HX_COUNT(part));
    cr_assert_arr_eq(whole + 3, part, sizeof part);
    cr_assert_eq(whole[9], 0.02f * hx_rng_normal_at(7, 8, 9));
}
