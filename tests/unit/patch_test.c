// patch_test - laws of the division of a lease among members, and some known ones.

#include "model/patch.h"

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define MEMBERS 7u
#define MICROS 60u

typedef struct {
    double shares[MEMBERS];
    patch_conf_t conf;
} shape_t;

static void random_shape(hx_rng_t *rng, shape_t *shape)
{
    shape->conf = (patch_conf_t){
        .mode = (plan_mode_t)hx_rng_below(rng, PLAN_MODES_COUNT),
        .members = 1 + (uint32_t)hx_rng_below(rng, MEMBERS),
        .shares = shape->shares,
        .rows = 1 + (uint32_t)hx_rng_below(rng, MICROS),
        .microbatch = 1 + (uint32_t)hx_rng_below(rng, 12),
    };
    double sum = 0;
    for (uint32_t member = 0; member < shape->conf.members; member++) {
        shape->shares[member] = 1 + (double)hx_rng_below(rng, 8);
        sum += shape->shares[member];
    }
    for (uint32_t member = 0; member < shape->conf.members; member++) {
        shape->shares[member] /= sum;
    }
}

Test(patch, gives_each_row_to_one_member)
{
    hx_rng_t rng = hx_rng_seed(seed_of("patch rows"));
    for (uint32_t round = 0; round < 2000; round++) {
        shape_t shape;
        random_shape(&rng, &shape);
        patch_t patch;
        patch_make(&shape.conf, &patch);
        uint32_t all = 0;
        for (uint32_t micro = 0; micro < patch.micros; micro++) {
            uint32_t end = 0;
            for (uint32_t member = 0; member < shape.conf.members; member++) {
                const patch_piece_t piece = patch_piece(&patch, micro, member);
                if (piece.rows > 0) {
                    cr_assert_eq(piece.first, end, "intervals follow each other");
                    end += piece.rows;
                }
                cr_assert(shape.conf.mode == PLAN_SPLIT || piece.rows == 0 ||
                          piece.rows == patch_rows(&patch, micro));
            }
            cr_assert_eq(end, patch_rows(&patch, micro));
            all += end;
        }
        cr_assert_eq(all, shape.conf.rows);
        patch_clear(&patch);
        cr_assert_null(patch.owners);
    }
}

// Turns by "who is free first" are divisors rounded up (Adams): at most the exact share rounded up.
// Rows by "who is done first" are divisors rounded down (Jefferson): at least it rounded down.
Test(patch, division_is_in_proportion_to_shares)
{
    hx_rng_t rng = hx_rng_seed(seed_of("patch shares"));
    for (uint32_t round = 0; round < 2000; round++) {
        shape_t shape;
        random_shape(&rng, &shape);
        patch_t patch;
        patch_make(&shape.conf, &patch);
        double counts[MEMBERS] = {0};
        double total = 0;
        for (uint32_t member = 0; member < shape.conf.members; member++) {
            if (patch.owners) {
                for (uint32_t micro = 0; micro < patch.micros; micro++) {
                    counts[member] += patch.owners[micro] == member;
                }
            } else {
                counts[member] = patch_piece(&patch, 0, member).rows;
            }
            total += counts[member];
        }
        for (uint32_t member = 0; member < shape.conf.members; member++) {
            const double exact = total * shape.shares[member];
            const double slack = shape.conf.members;
            const bool turns = patch.owners != NULL;
            cr_assert_lt(counts[member], exact + (turns ? 1 : slack) + 1e-9);
            cr_assert_gt(counts[member], exact - (turns ? slack : 1) - 1e-9);
        }
        patch_clear(&patch);
    }
}

Test(patch, longer_leases_only_add)
{
    hx_rng_t rng = hx_rng_seed(seed_of("patch longer"));
    for (uint32_t round = 0; round < 500; round++) {
        shape_t shape;
        random_shape(&rng, &shape);
        patch_t patch;
        patch_t longer;
        patch_make(&shape.conf, &patch);
        shape.conf.rows += 1 + (uint32_t)hx_rng_below(&rng, 20);
        patch_make(&shape.conf, &longer);
        for (uint32_t member = 0; member < shape.conf.members; member++) {
            for (uint32_t micro = 0; micro < patch.micros; micro++) {
                cr_assert_leq(patch_piece(&patch, micro, member).rows,
                              patch_piece(&longer, micro, member).rows);
            }
            cr_assert_leq(patch_rows_max(&patch, member), patch_rows_max(&longer, member));
        }
        patch_clear(&patch);
        patch_clear(&longer);
    }
}

Test(patch, known_divisions)
{
    const double shares[] = {0.2, 0.8};
    patch_conf_t conf = {
        .mode = PLAN_ROTATE, .members = 2, .shares = shares, .rows = 9, .microbatch = 1};
    patch_t patch;
    patch_make(&conf, &patch);
    // The slow one begins early, so that it has ended when its next turn comes.
    cr_assert_arr_eq(patch.owners, ((uint32_t[]){1, 0, 1, 1, 1, 1, 0, 1, 1}), 9 * sizeof(uint32_t));
    patch_clear(&patch);
    conf = (patch_conf_t){
        .mode = PLAN_SPLIT, .members = 2, .shares = shares, .rows = 12, .microbatch = 10};
    patch_make(&conf, &patch);
    cr_assert_eq(patch_piece(&patch, 0, 0).rows, 2);
    cr_assert_eq(patch_piece(&patch, 0, 1).first, 2);
    cr_assert_eq(patch_piece(&patch, 0, 1).rows, 8);
    cr_assert_eq(patch_piece(&patch, 1, 0).rows, 0, "two rows are done earlier on the fast one");
    cr_assert_eq(patch_piece(&patch, 1, 1).rows, 2);
    cr_assert_eq(patch_rows_max(&patch, 0), 2);
    patch_clear(&patch);
}

Test(patch, common_rows_of_two_pieces)
{
    const patch_piece_t common = patch_common((patch_piece_t){2, 5}, (patch_piece_t){4, 9});
    cr_assert(common.first == 4 && common.rows == 3);
    cr_assert_eq(patch_common((patch_piece_t){0, 3}, (patch_piece_t){3, 2}).rows, 0);
    cr_assert_eq(patch_common((patch_piece_t){0, 0}, (patch_piece_t){0, 2}).rows, 0);
}
