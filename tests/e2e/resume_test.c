// Resume: 30 steps at once are 15, stop, resume, 15, to the bit; and on other servers and stages to
// 1e-6.

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>

#include "tests/support/run.h"

static const char *const two_of_each = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 2\n"
                                       "        worker\n"
                                       "            name = \"w1\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w2\"\n"
                                       "            threads = 1\n";
#define KEEP_RATE "train.decay=none", "train.warmup=0"

static void same_files(run_t *a, run_t *b)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int at = 0; at < 2; at++) {
        char path[128];
        snprintf(path, sizeof path, "runs/test/checkpoint-30/%s", files[at]);
        cr_expect(run_same_file(a, path, b, path), "%s differs", files[at]);
    }
}

Test(resume, half_and_half_is_the_whole_to_the_bit, .timeout = 300)
{
    run_t whole, halves;
    run_begin(&whole, "whole", NULL);
    run_begin(&halves, "halves", NULL);
    cr_assert_eq(run_launch(&whole, (const char *[]){KEEP_RATE, NULL}, 120), 0);
    cr_assert_eq(run_launch(&halves, (const char *[]){KEEP_RATE, "train.tokens=7680", NULL}, 120),
                 0);
    cr_assert_eq(run_launch(&halves, (const char *[]){KEEP_RATE, NULL}, 120), 0);
    same_files(&whole, &halves);
    json_t *const summary = run_summary(&halves);
    cr_assert_eq(json_integer_value(json_object_get(summary, "version")), 30);
    cr_assert_eq(json_integer_value(json_object_get(summary, "tokens")), 15360);
    json_decref(summary);
    run_end(&whole);
    run_end(&halves);
}

// Whatever the moment of the Ctrl-C: a round is in the checkpoint whole or not at all.
Test(resume, after_ctrl_c_is_the_whole_to_the_bit, .timeout = 300)
{
    const run_shape_t shape = {.sites = two_of_each};
    const char *const sets[] = {"plan.stages=here:2;here:2", NULL};
    run_t whole, parts;
    run_begin(&whole, "whole", &shape);
    run_begin(&parts, "parts", &shape);
    cr_assert_eq(run_launch(&whole, sets, 120), 0);
    static const uint64_t moments[] = {4, 11, 19};
    for (size_t at = 0; at < sizeof moments / sizeof moments[0]; at++) {
        const pid_t pid = run_start(&parts, "harmony-launch", "launch.log", sets);
        cr_assert(run_reach(&parts, moments[at], 60), "it trains");
        kill(pid, SIGINT);
        const int status = run_wait(pid, 30);
        cr_assert(status == 130 || status == 0, "status %d", status);
    }
    cr_assert_eq(run_launch(&parts, sets, 120), 0);
    same_files(&whole, &parts);
    run_end(&whole);
    run_end(&parts);
}

Test(resume, on_another_number_of_servers_and_stages, .timeout = 300)
{
    run_t whole, other;
    run_begin(&whole, "whole", NULL);
    run_begin(&other, "other", &(run_shape_t){.sites = two_of_each});
    cr_assert_eq(run_launch(&whole, (const char *[]){KEEP_RATE, NULL}, 120), 0);
    cr_assert_eq(
        run_launch(&other,
                   (const char *[]){KEEP_RATE, "train.tokens=7680", "plan.stages=here:1,1", NULL},
                   120),
        0);
    cr_assert_eq(run_launch(&other,
                            (const char *[]){KEEP_RATE, "plan.stages=here:2;here:2",
                                             "launch.site.here.servers=1", NULL},
                            120),
                 0);
    double expected[64], losses[64];
    cr_assert_eq(run_losses(&whole, expected, 64), 30);
    cr_assert_geq(run_losses(&other, losses, 64), 30);
    cr_expect_lt(fabs(losses[15] - expected[15]) / expected[15], 1e-6, "%.9f, %.9f", losses[15],
                 expected[15]);
    run_end(&whole);
    run_end(&other);
}

Test(resume, a_run_that_is_done_says_so, .timeout = 200)
{
    run_t run;
    run_begin(&run, "done", NULL);
    cr_assert_eq(run_launch(&run, NULL, 120), 0);
    cr_assert_eq(run_launch(&run, NULL, 60), 0, "nothing is left to do");
    json_t *const summary = run_summary(&run);
    cr_assert_eq(json_integer_value(json_object_get(summary, "version")), 30);
    json_decref(summary);
    run_end(&run);
}
