// modes: every synchronisation mode trains in real processes, and keeps what defines it.

#include <criterion/criterion.h>

#include "tests/support/rough.h"

#define ROWS 480.0  // 15360 tokens of context 32.

static const char *const unequal = "    site\n"
                                   "        name = \"here\"\n"
                                   "        servers = 2\n"
                                   "        worker\n"
                                   "            name = \"fast\"\n"
                                   "            threads = 1\n"
                                   "        worker\n"
                                   "            name = \"slow\"\n"
                                   "            threads = 1\n"
                                   "            slowdown = 4\n";

// Trains to the end: every row once, the loss falls, lags within what the mode allows.
static void trains(const char *mode, const char *also, double lag_most)
{
    run_t run;
    char set[64];
    double losses[512];
    run_begin(&run, mode, &(run_shape_t){.sites = unequal});
    snprintf(set, sizeof set, "sync.mode=%s", mode);
    cr_assert_eq(
        run_launch(&run, (const char *[]){set, "plan.stages=here/fast:2;here/slow:2", also, NULL},
                   120),
        0, "%s", mode);
    const uint32_t commits = run_losses(&run, losses, 512);
    cr_assert_gt(commits, 10, "%s", mode);
    cr_expect_lt(losses[commits - 1], losses[0] - 0.5, "%s learns: %.3f, then %.3f", mode,
                 losses[0], losses[commits - 1]);
    cr_expect_eq(rough_summary(&run, "tokens"), ROWS * 32, "%s", mode);
    const double lag = rough_summary(&run, "lag_max");
    cr_expect_leq(lag, lag_most, "%s: lag %.0f", mode, lag);
    run_end(&run);
}

Test(modes, without_staleness_no_lag, .timeout = 300)
{
    trains("bsp", NULL, 0);
    trains("ksync", "sync.quorum=0.5", 0);
}

Test(modes, with_a_gate_the_slowest_is_followed, .timeout = 300)
{
    // While a lease of one is out the other goes from s + 1 behind to s + 1 ahead at most, and up
    // to s earlier leases of its own are committed.
    trains("ssp", "sync.staleness=1", 5);
    trains("wsp", "sync.staleness=2", 8);
}

Test(modes, with_a_bound_no_lag_is_above_it, .timeout = 300)
{
    trains("ssaw", "sync.staleness=2", 2);
}

// Whatever moves by itself, or is weighed twice, trains on every row once.
Test(modes, automatic_values_and_agreement_train, .timeout = 300)
{
    run_t run;
    double losses[512];
    run_begin(&run, "auto", &(run_shape_t){.sites = unequal});
    cr_assert_eq(
        run_launch(&run,
                   (const char *[]){"sync.mode=ssaw", "plan.stages=here/fast:2;here/slow:2",
                                    "sync.quorum=auto", "sync.staleness=auto", "sync.frequency=1",
                                    "sync.agreement=0.2", NULL},
                   120),
        0);
    const uint32_t commits = run_losses(&run, losses, 512);
    cr_assert_gt(commits, 10);
    cr_expect_lt(losses[commits - 1], losses[0] - 0.5, "it learns: %.3f, then %.3f", losses[0],
                 losses[commits - 1]);
    cr_expect_eq(rough_summary(&run, "tokens"), ROWS * 32);
    cr_expect_leq(rough_summary(&run, "lag_max"), 16);
    run_end(&run);
}

Test(modes, without_a_bound_all_is_used, .timeout = 300)
{
    trains("asp", NULL, 480);
    trains("softsync", NULL, 480);
    trains("eager", NULL, 480);
}

// One local step of plain outer rate without momentum is what bsp does with one worker.
Test(modes, one_local_step_is_bsp, .timeout = 300)
{
    run_t bsp, local;
    double expected[64], losses[64];
    run_begin(&bsp, "bsp-one", NULL);
    run_begin(&local, "local-one", NULL);
    cr_assert_eq(run_launch(&bsp, (const char *[]){"sync.mode=bsp", NULL}, 120), 0);
    cr_assert_eq(run_launch(&local,
                            (const char *[]){"sync.mode=local", "sync.local_steps=1",
                                             "sync.outer_lr=1", "sync.outer_momentum=0", NULL},
                            120),
                 0);
    const uint32_t count = run_losses(&bsp, expected, 64);
    cr_assert_eq(run_losses(&local, losses, 64), count);
    for (uint32_t at = 0; at < count; at++) {
        cr_expect_float_eq(losses[at], expected[at], 2e-3, "commit %u: %.6f, %.6f", at, losses[at],
                           expected[at]);
    }
    run_end(&bsp);
    run_end(&local);
}

// H steps of two workers apart: a commit for every H batches, every row once, and it learns.
Test(modes, local_steps_make_fewer_commits, .timeout = 300)
{
    for (int by_speed = 0; by_speed < 2; by_speed++) {
        run_t run;
        double losses[64];
        run_begin(&run, "local", &(run_shape_t){.sites = unequal});
        cr_assert_eq(run_launch(&run,
                                (const char *[]){"sync.mode=local", "sync.local_steps=3",
                                                 by_speed ? "sync.local_speed=1" : NULL, NULL},
                                120),
                     0);
        const uint32_t commits = run_losses(&run, losses, 64);
        cr_expect_eq(commits, 10, "30 batches are %u commits", commits);
        cr_expect_lt(losses[commits - 1], losses[0] - 0.5, "it learns: %.3f, then %.3f", losses[0],
                     losses[commits - 1]);
        cr_expect_eq(rough_summary(&run, "tokens"), ROWS * 32);
        cr_expect_eq(rough_summary(&run, "lag_max"), 0);
        run_end(&run);
    }
}

// The strict values of ssaw are bsp, to the bit.
Test(modes, ssaw_with_strict_values_is_bsp, .timeout = 300)
{
    run_t bsp, ssaw;
    const run_shape_t shape = {.sites = unequal};
    run_begin(&bsp, "bsp", &shape);
    run_begin(&ssaw, "ssaw", &shape);
    cr_assert_eq(run_launch(&bsp, (const char *[]){"sync.mode=bsp", NULL}, 120), 0);
    cr_assert_eq(run_launch(&ssaw,
                            (const char *[]){"sync.mode=ssaw", "sync.quorum=1", "sync.run_ahead=0",
                                             "sync.staleness=0", "sync.grace=0",
                                             "sync.weighting=const", "plan.speeds=declared", NULL},
                            120),
                 0);
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int at = 0; at < 2; at++) {
        char path[128];
        snprintf(path, sizeof path, "runs/test/checkpoint-30/%s", files[at]);
        cr_expect(run_same_file(&bsp, path, &ssaw, path), "%s differs", files[at]);
    }
    run_end(&bsp);
    run_end(&ssaw);
}
