// Ends and pauses at any moment: a stop while the run is only beginning, a machine that sleeps, a
// scheduler that is killed, a line that breaks, two launches at once.

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/proxy.h"
#include "tests/support/rough.h"
#include "tests/support/seed.h"

#define ENDLESS "train.tokens=100000000"
#define WAITS "run.dead_after=4", "run.lease_min=8"

static const char *const two_workers = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 2\n"
                                       "        worker\n"
                                       "            name = \"w1\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w2\"\n"
                                       "            threads = 1\n";
static const run_shape_t shape = {.sites = two_workers};

static uint32_t commits(run_t *run)
{
    static double losses[65536];
    return run_losses(run, losses, 65536);
}

static void signal_each(run_t *run, int number)
{
    static const char *const words[] = {"harmony-scheduler", "--name ps0", "--name ps1",
                                        "--name w1", "--name w2"};
    for (int at = 0; at < 5; at++) {
        const pid_t pid = run_find(run, words[at]);
        cr_assert_gt(pid, 0, "%s", words[at]);
        kill(pid, number);
    }
}

Test(ends_cases, a_stop_at_any_moment_of_the_start_is_clean, .timeout = 200)
{
    uint64_t state = seed_of("a stop while it starts") | 1;
    for (int round = 0; round < 12; round++) {
        run_t run;
        run_begin(&run, "early-stop", &shape);
        const double delay = rough_between(&state, 0, 1500) * 1e-3;
        const pid_t pid =
            run_start(&run, "harmony-launch", "launch.log", (const char *[]){ENDLESS, NULL});
        rough_nap(delay);
        const double asked = rough_now();
        // Before the program has set up its signals it just dies of one.
        kill(pid, SIGINT);
        const int status = run_wait(pid, 20);
        cr_expect_eq(status, 130, "after %.2f s: status %d", delay, status);
        cr_expect_leq(rough_now() - asked, 11, "after %.2f s", delay);
        cr_expect(rough_gone(&run, 3), "after %.2f s: something is left behind", delay);
        rough_clear(&run);
        run_end(&run);
    }
}

Test(ends_cases, a_machine_that_slept_goes_on, .timeout = 120)
{
    run_t run;
    run_begin(&run, "sleep", &shape);
    const pid_t pid = run_start(
        &run, "harmony-launch", "launch.log",
        (const char *[]){WAITS, "sync.mode=ssaw", "train.seconds=14", "train.tokens=none", NULL});
    cr_assert(run_reach(&run, 5, 60));
    signal_each(&run, SIGSTOP);
    rough_nap(7);
    signal_each(&run, SIGCONT);
    const uint32_t before = commits(&run);
    cr_expect(run_reach(&run, before + 5, 20), "it goes on");
    cr_expect_eq(run_wait(pid, 60), 0);
    cr_expect_eq(rough_summary(&run, "failures"), 0, "nobody was taken for dead");
    rough_clear(&run);
    run_end(&run);
}

Test(ends_cases, a_worker_that_slept_too_long_is_done_without, .timeout = 120)
{
    run_t run;
    run_begin(&run, "worker-sleeps", &shape);
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){WAITS, "plan.stages=here:2;here:2",
                                                 "train.seconds=18", "train.tokens=none", NULL});
    cr_assert(run_reach(&run, 5, 60));
    const pid_t sleeper = run_find(&run, "--name w1");
    cr_assert_gt(sleeper, 0);
    kill(sleeper, SIGSTOP);
    rough_nap(9);
    const uint32_t before = commits(&run);
    cr_expect(run_reach(&run, before + 5, 10), "the other goes on");
    cr_expect(run_says(&run, "launch.log", "here/w1 (a worker) is gone"));
    kill(sleeper, SIGCONT);
    for (int tries = 0; tries < 300 && run_find(&run, "--name w1") > 0; tries++) {
        rough_nap(0.05);
    }
    cr_expect_eq(run_find(&run, "--name w1"), 0, "it sees that it is out, and ends");
    cr_expect_eq(run_wait(pid, 60), 0);
    rough_clear(&run);
    run_end(&run);
}

static uint64_t newest_checkpoint(run_t *run)
{
    char path[512], name[64] = {0};
    snprintf(path, sizeof path, "%s/runs/test/latest", run->dir);
    cr_assert_gt(readlink(path, name, sizeof name - 1), 11, "%s", path);
    return strtoull(name + strlen("checkpoint-"), NULL, 10);
}

Test(ends_cases, without_a_scheduler_all_end_and_the_next_run_resumes, .timeout = 120)
{
    run_t run;
    run_begin(&run, "no-scheduler", &shape);
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){WAITS, ENDLESS, "server.checkpoint_every=5",
                                                 "train.decay=none", "train.warmup=0", NULL});
    cr_assert(run_reach(&run, 12, 60));
    const pid_t scheduler = run_find(&run, "harmony-scheduler");
    cr_assert_gt(scheduler, 0);
    kill(scheduler, SIGKILL);
    cr_expect_eq(run_wait(pid, 20), 1);
    cr_expect(run_says(&run, "launch.log", "scheduler was killed by signal 9"));
    cr_expect(rough_gone(&run, 3));
    // The servers may have gone on for a while.
    const uint64_t had = newest_checkpoint(&run);
    char tokens[64];
    snprintf(tokens, sizeof tokens, "train.tokens=%llu", (unsigned long long)(had + 10) * 512);
    rough_launch(&run, (const char *[]){tokens, "train.decay=none", "train.warmup=0", NULL}, 60, 0);
    cr_expect(run_says(&run, "launch.log", "resuming from checkpoint"));
    cr_expect_eq(rough_summary(&run, "version"), (double)had + 10);
    run_end(&run);
}

// Every line of a file is JSON of its own.
static void expect_json_lines(run_t *run, const char *path)
{
    char *const text = run_text(run, path);
    char *rest = text;
    uint32_t broken = 0;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        json_t *const json = json_loads(line, 0, NULL);
        broken += *line && !json;
        json_decref(json);
    }
    cr_expect_leq(broken, 1, "%u lines of %s are broken", broken, path);
    free(text);
}

Test(ends_cases, a_torn_line_of_metrics_spoils_no_other, .timeout = 60)
{
    run_t run;
    run_begin(&run, "torn", NULL);
    const char *const half[] = {"train.tokens=2560", "train.decay=none", "train.warmup=0", NULL};
    const char *const whole[] = {"train.tokens=5120", "train.decay=none", "train.warmup=0", NULL};
    rough_launch(&run, half, 60, 0);
    rough_cut(&run, "runs/test/metrics.jsonl", 0.97);
    rough_launch(&run, whole, 60, 0);
    expect_json_lines(&run, "runs/test/metrics.jsonl");
    cr_expect_geq(commits(&run), 9, "the new lines are all there");
    run_end(&run);
}

Test(ends_cases, a_line_to_the_scheduler_that_breaks_is_mended, .timeout = 120)
{
    run_t run;
    run_begin(&run, "line", &shape);
    proxy_t *proxy = proxy_new((uint16_t)run.port);
    char endpoint[64], bound[64];
    snprintf(endpoint, sizeof endpoint, "scheduler.endpoint=tcp://127.0.0.1:%d", proxy_port(proxy));
    snprintf(bound, sizeof bound, "scheduler.bind=tcp://127.0.0.1:%d", run.port);
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){endpoint, bound, "run.dead_after=6",
                                                 "train.seconds=12", "train.tokens=none", NULL});
    for (int at = 0; at < 4; at++) {
        rough_nap(0.3);
        proxy_cut(proxy);  // While nodes join,
    }
    cr_assert(run_reach(&run, 5, 60));
    for (int at = 0; at < 8; at++) {
        rough_nap(0.4);
        proxy_cut(proxy);  // and while they work.
    }
    proxy_swallow(proxy, true);
    rough_nap(2);
    proxy_swallow(proxy, false);
    proxy_delay(proxy, HX_MS(200));
    const uint32_t before = commits(&run);
    cr_expect(run_reach(&run, before + 5, 20), "it goes on");
    cr_expect_eq(run_wait(pid, 60), 0);
    cr_expect_eq(rough_summary(&run, "failures"), 0);
    char *const text = run_text(&run, "runs/test/metrics.jsonl");
    cr_expect(text && strstr(text, "\"version\": 1,"));
    free(text);
    proxy_destroy(&proxy);
    rough_clear(&run);
    run_end(&run);
}

Test(ends_cases, a_dead_line_to_the_scheduler_ends_all_in_time, .timeout = 120)
{
    run_t run;
    run_begin(&run, "dead-line", &shape);
    proxy_t *proxy = proxy_new((uint16_t)run.port);
    char endpoint[64], bound[64];
    snprintf(endpoint, sizeof endpoint, "scheduler.endpoint=tcp://127.0.0.1:%d", proxy_port(proxy));
    snprintf(bound, sizeof bound, "scheduler.bind=tcp://127.0.0.1:%d", run.port);
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){endpoint, bound, WAITS, ENDLESS, NULL});
    cr_assert(run_reach(&run, 5, 60));
    proxy_swallow(proxy, true);
    const double since = rough_now();
    cr_expect_eq(run_wait(pid, 60), 1);
    cr_expect_leq(rough_now() - since, 30, "%.1f s", rough_now() - since);
    cr_expect(run_says(&run, "runs/test/log/here-w1.log", "scheduler"));
    cr_expect(rough_gone(&run, 3));
    proxy_destroy(&proxy);
    rough_clear(&run);
    run_end(&run);
}

Test(ends_cases, of_two_launches_at_once_one_trains_and_one_is_refused, .timeout = 120)
{
    for (int round = 0; round < 3; round++) {
        run_t run;
        run_begin(&run, "twice", &shape);
        const char *const sets[] = {"train.tokens=5120", NULL};
        const pid_t first = run_start(&run, "harmony-launch", "first.log", sets);
        rough_nap(0.05 * round);
        const pid_t second = run_start(&run, "harmony-launch", "second.log", sets);
        const int one = run_wait(first, 60);
        const int other = run_wait(second, 60);
        cr_expect(one + other == 2 && one * other == 0, "statuses %d and %d", one, other);
        cr_expect_eq(rough_summary(&run, "tokens"), 5120);
        cr_expect_eq(rough_summary(&run, "failures"), 0);
        rough_clear(&run);
        run_end(&run);
    }
}

Test(ends_cases, long_names_do_not_run_into_one_another, .timeout = 60)
{
    static const char *const sites = "    site\n"
                                     "        name = \"a-site-with-quite-a-long-name-1\"\n"
                                     "        servers = 1\n"
                                     "        worker\n"
                                     "            name = \"a-worker-with-quite-a-long-name\"\n"
                                     "            threads = 1\n"
                                     "    site\n"
                                     "        name = \"a-site-with-quite-a-long-name-2\"\n"
                                     "        servers = 1\n"
                                     "        worker\n"
                                     "            name = \"a-worker-with-quite-a-long-name\"\n"
                                     "            threads = 1\n";
    run_t run;
    run_begin(&run, "long", &(run_shape_t){.sites = sites});
    rough_launch(&run, (const char *[]){"train.tokens=5120", "run.join_timeout=15", NULL}, 50, 0);
    cr_expect_eq(rough_summary(&run, "version"), 10);
    run_end(&run);
}
