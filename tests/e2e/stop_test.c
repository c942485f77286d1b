// Ctrl-C, a killed worker, a killed server: every end is clean, says why, and leaves nothing
// behind.

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/run.h"

#define ENDLESS "train.tokens=100000000"

static const char *const two_workers = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 2\n"
                                       "        worker\n"
                                       "            name = \"w1\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w2\"\n"
                                       "            threads = 1\n";

static void expect_gone(run_t *run)
{
    for (int tries = 0; tries < 100 && run_processes(run) > 0; tries++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    cr_expect_eq(run_processes(run), 0, "no process is left behind");
}

Test(stop, ctrl_c_saves_and_ends_cleanly_within_ten_seconds, .timeout = 120)
{
    run_t run;
    run_begin(&run, "ctrl-c", &(run_shape_t){.sites = two_workers});
    const pid_t pid =
        run_start(&run, "harmony-launch", "launch.log", (const char *[]){ENDLESS, NULL});
    cr_assert(run_reach(&run, 5, 60), "it trains");
    const time_t asked = time(NULL);
    kill(pid, SIGINT);
    cr_expect_eq(run_wait(pid, 15), 130);
    cr_expect_leq(time(NULL) - asked, 11);
    expect_gone(&run);
    json_t *const summary = run_summary(&run);
    cr_assert(summary);
    cr_expect_str_eq(json_string_value(json_object_get(summary, "status")), "interrupted");
    const json_int_t version = json_integer_value(json_object_get(summary, "version"));
    char path[512];
    snprintf(path, sizeof path, "%s/runs/test/checkpoint-%lld/manifest.json", run.dir,
             (long long)version);
    cr_expect_eq(access(path, R_OK), 0, "the checkpoint of the last commit is there: %s", path);
    json_decref(summary);
    run_end(&run);
}

Test(stop, a_killed_worker_does_not_end_the_run, .timeout = 180)
{
    run_t run;
    run_begin(&run, "kill-worker", &(run_shape_t){.sites = two_workers});
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){"plan.stages=here:2;here:2", "run.dead_after=4",
                                                 "train.tokens=200000", NULL});
    cr_assert(run_reach(&run, 5, 60), "it trains");
    const pid_t victim = run_find(&run, "harmony-worker");
    cr_assert_gt(victim, 0);
    kill(victim, SIGKILL);
    cr_expect_eq(run_wait(pid, 120), 0, "the rest finishes the run");
    json_t *const summary = run_summary(&run);
    cr_assert(summary);
    cr_expect_eq(json_integer_value(json_object_get(summary, "tokens")), 200000 / 32 * 32);
    cr_expect_geq(json_integer_value(json_object_get(summary, "failures")), 1);
    json_decref(summary);
    expect_gone(&run);
    run_end(&run);
}

Test(stop, a_killed_server_ends_the_run_with_its_name, .timeout = 120)
{
    run_t run;
    run_begin(&run, "kill-server", &(run_shape_t){.sites = two_workers});
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){ENDLESS, "run.dead_after=4", NULL});
    cr_assert(run_reach(&run, 5, 60), "it trains");
    const pid_t victim = run_find(&run, "harmony-ps");
    cr_assert_gt(victim, 0);
    kill(victim, SIGKILL);
    cr_expect_eq(run_wait(pid, 40), 1);
    expect_gone(&run);
    json_t *const summary = run_summary(&run);
    cr_assert(summary);
    cr_expect_str_eq(json_string_value(json_object_get(summary, "status")), "failed");
    cr_expect(strstr(json_string_value(json_object_get(summary, "reason")), "here/"),
              "the reason names the server: %s",
              json_string_value(json_object_get(summary, "reason")));
    json_decref(summary);
    run_end(&run);
}

Test(stop, a_killed_launcher_leaves_nothing_behind, .timeout = 120)
{
    run_t run;
    run_begin(&run, "kill-launch", &(run_shape_t){.sites = two_workers});
    const pid_t pid =
        run_start(&run, "harmony-launch", "launch.log", (const char *[]){ENDLESS, NULL});
    cr_assert(run_reach(&run, 3, 60), "it trains");
    kill(pid, SIGKILL);
    run_wait(pid, 5);
    expect_gone(&run);
    run_end(&run);
}
