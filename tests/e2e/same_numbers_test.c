// Any plan, same numbers: under bsp the losses of 30 steps are those of one worker, whatever the
// cuts, pipelines and microbatches; and the same conf twice gives the same bits.

#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/run.h"

#define STEPS 30

static const char *const four_workers = "    site\n"
                                        "        name = \"here\"\n"
                                        "        servers = 2\n"
                                        "        worker\n"
                                        "            name = \"w1\"\n"
                                        "            threads = 1\n"
                                        "        worker\n"
                                        "            name = \"w2\"\n"
                                        "            threads = 1\n"
                                        "        worker\n"
                                        "            name = \"w3\"\n"
                                        "            threads = 1\n"
                                        "        worker\n"
                                        "            name = \"w4\"\n"
                                        "            threads = 1\n";
static const char *const three_workers = "    site\n"
                                         "        name = \"here\"\n"
                                         "        servers = 1\n"
                                         "        worker\n"
                                         "            name = \"w1\"\n"
                                         "            threads = 1\n"
                                         "        worker\n"
                                         "            name = \"w2\"\n"
                                         "            threads = 1\n"
                                         "        worker\n"
                                         "            name = \"w3\"\n"
                                         "            threads = 1\n";
static const char *const two_workers = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 2\n"
                                       "        worker\n"
                                       "            name = \"w1\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w2\"\n"
                                       "            threads = 1\n";

static void losses_of(const char *sites, const char *const *sets, double *losses)
{
    run_t run;
    run_begin(&run, "same", &(run_shape_t){.sites = sites});
    cr_assert_eq(run_launch(&run, sets, 120), 0);
    cr_assert_eq(run_losses(&run, losses, STEPS), STEPS);
    run_end(&run);
}

static void compare(const char *what, const double *expected, const double *losses)
{
    for (int step = 0; step < STEPS; step++) {
        const double error = fabs(losses[step] - expected[step]) / expected[step];
        cr_expect_leq(error, 1e-5, "%s, step %d: loss %.9f, one worker %.9f", what, step + 1,
                      losses[step], expected[step]);
    }
}

Test(same_numbers, losses_do_not_depend_on_the_plan, .timeout = 600)
{
    double one[STEPS], other[STEPS];
    losses_of(NULL, NULL, one);
    cr_assert_lt(one[STEPS - 1], one[0] - 0.5, "it learns");

    losses_of(two_workers, (const char *[]){"plan.stages=here:1,1", NULL}, other);
    compare("two stages", one, other);
    losses_of(four_workers, (const char *[]){"model.layers=4", "plan.stages=here:1,1,1,1", NULL},
              other);
    double deep[STEPS];
    losses_of(NULL, (const char *[]){"model.layers=4", NULL}, deep);
    compare("four stages", deep, other);
    losses_of(two_workers, (const char *[]){"plan.stages=here:2;here:2", NULL}, other);
    compare("two pipelines", one, other);
    losses_of(three_workers, (const char *[]){"plan.stages=here:1,1;here:2", NULL}, other);
    compare("two pipelines, one of two stages", one, other);
}

Test(same_numbers, losses_do_not_depend_on_the_microbatch, .timeout = 600)
{
    double one[STEPS], other[STEPS];
    losses_of(NULL, NULL, one);
    static const char *const sizes[] = {"plan.microbatch=1", "plan.microbatch=2",
                                        "plan.microbatch=8", NULL};
    for (const char *const *size = sizes; *size; size++) {
        losses_of(NULL, (const char *[]){*size, NULL}, other);
        compare(*size, one, other);
        losses_of(two_workers, (const char *[]){"plan.stages=here:1,1", *size, NULL}, other);
        compare(*size, one, other);
    }
}

Test(same_numbers, the_same_conf_twice_gives_the_same_bits, .timeout = 600)
{
    run_t a, b;
    const run_shape_t shape = {.sites = three_workers};
    const char *const sets[] = {"plan.stages=here:1,1;here:2", NULL};
    run_begin(&a, "twice", &shape);
    run_begin(&b, "twice", &shape);
    cr_assert_eq(run_launch(&a, sets, 120), 0);
    cr_assert_eq(run_launch(&b, sets, 120), 0);
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int at = 0; at < 2; at++) {
        char path[128];
        snprintf(path, sizeof path, "runs/test/checkpoint-%d/%s", STEPS, files[at]);
        cr_expect(run_same_file(&a, path, &b, path), "%s differs", files[at]);
    }
    run_end(&a);
    run_end(&b);
}
