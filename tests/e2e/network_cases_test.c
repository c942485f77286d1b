// Network: workers that die and come back while a server is busy (zeromq/libzmq#2019 and its kind),
// members that died before the start (meta-pytorch/torchft#63), a server that wakes too late.

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/rough.h"
#include "tests/support/seed.h"

#define ENDLESS "train.tokens=100000000"
#define WAITS "run.dead_after=8", "run.lease_min=10"
#define CONTEXT 32
#define ROWS_OF_A_RUN 6000u
#define TOKENS "train.tokens=192000"

static const char *const six_workers = "    site\n"
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
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w5\"\n"
                                       "            threads = 1\n"
                                       "        worker\n"
                                       "            name = \"w6\"\n"
                                       "            threads = 1\n";

static uint32_t commits(run_t *run)
{
    static double losses[65536];
    return run_losses(run, losses, 65536);
}

// Every row of the run is in exactly one commit.
static void expect_all_rows(run_t *run, uint64_t rows)
{
    char path[512];
    snprintf(path, sizeof path, "%s/runs/test/latest/manifest.json", run->dir);
    json_t *const manifest = json_load_file(path, 0, NULL);
    const json_t *const summary = json_object_get(manifest, "summary");
    cr_assert(summary);
    cr_expect_eq(json_integer_value(json_object_get(summary, "low_water")), (json_int_t)rows);
    cr_expect_eq(json_array_size(json_object_get(summary, "committed")), 0);
    cr_expect_eq(json_integer_value(json_object_get(summary, "tokens")),
                 (json_int_t)(rows * CONTEXT));
    json_decref(manifest);
}

// ---- C12

// Stops `busy`, kills a worker meanwhile, starts it again under its name, lets `busy` go on.
static void kill_and_return(run_t *run, const char *busy, int worker, uint64_t *state)
{
    char name[32], log[32], set[32];
    snprintf(name, sizeof name, "--name w%d", worker);
    snprintf(log, sizeof log, "again-%d.log", worker);
    snprintf(set, sizeof set, "--name=w%d", worker);
    const pid_t server = run_find(run, busy);
    const pid_t victim = run_find(run, name);
    cr_assert_gt(server, 0);
    cr_assert_gt(victim, 0);
    const double pause = rough_between(state, 0, 3000) * 1e-3;
    kill(server, SIGSTOP);
    rough_nap(pause / 2);
    kill(victim, SIGKILL);
    const pid_t again = run_start(
        run, "harmony-worker", log,
        (const char *[]){"--site=here", set, "--threads=1", WAITS, TOKENS, "sync.mode=ssaw",
                         "plan.stages=here:2;here:2;here:2;here:2;here:2;here:2", NULL});
    rough_nap(pause / 2);
    kill(server, SIGCONT);
    rough_nap(0.5);  // So that two pauses on end do not look like one long one.
    const int status = run_wait(again, 20);
    cr_expect_eq(status, 1, "w%d is refused: %d", worker, status);
    cr_expect(run_says(run, log, "has begun without"));
}

static void rounds_of(const char *busy, int number)
{
    run_t run;
    uint64_t state = (seed_of("killed while a server is busy") + (uint64_t)number) | 1;
    run_begin(&run, "returns", &(run_shape_t){.sites = six_workers});
    const pid_t pid =
        run_start(&run, "harmony-launch", "launch.log",
                  (const char *[]){WAITS, TOKENS, "sync.mode=ssaw",
                                   "plan.stages=here:2;here:2;here:2;here:2;here:2;here:2", NULL});
    cr_assert(run_reach(&run, 3, 60));
    for (int worker = 1; worker <= 5; worker++) {
        kill_and_return(&run, busy, worker, &state);
    }
    // One pipeline is left: it goes on, and to the end.
    const int status = run_wait(pid, 120);
    cr_expect_eq(status, 0, "ended with %d", status);
    if (status != 0) {
        run_says(&run, "launch.log", "(the whole log)");
    }
    rough_clear(&run);
    expect_all_rows(&run, ROWS_OF_A_RUN);
    cr_expect_eq(rough_summary(&run, "failures"), 5);
    run_end(&run);
}

Test(network_cases, workers_that_die_while_a_server_is_busy_leave_nothing_behind, .timeout = 300)
{
    rounds_of("--name ps0", 0);
    rounds_of("--name ps1", 1);
}

Test(network_cases, workers_that_die_while_the_scheduler_is_busy_leave_nothing_behind,
     .timeout = 300)
{
    rounds_of("harmony-scheduler", 2);
    rounds_of("--name ps0", 3);
}

// ---- C04: who dies before the start

static pid_t start_by_hand(run_t *run, const char *program, const char *name, const char *log)
{
    char set[32];
    snprintf(set, sizeof set, "--name=%s", name ? name : "");
    const char *sets[] = {"run.dead_after=4",
                          "plan.workers=2",
                          "plan.servers=1",
                          "train.tokens=5120",
                          "run.join_timeout=60",
                          name ? "--site=here" : NULL,
                          set,
                          NULL};
    return run_start(run, program, log, sets);
}

static const char *const one_server = "    site\n"
                                      "        name = \"here\"\n"
                                      "        servers = 1\n"
                                      "        worker\n"
                                      "            name = \"w1\"\n"
                                      "        worker\n"
                                      "            name = \"w2\"\n";

Test(network_cases, a_worker_that_died_before_the_start_is_not_counted, .timeout = 200)
{
    run_t run;
    run_begin(&run, "early", &(run_shape_t){.sites = one_server});
    const pid_t scheduler = start_by_hand(&run, "harmony-scheduler", NULL, "scheduler.log");
    const pid_t server = start_by_hand(&run, "harmony-ps", "ps0", "ps0.log");
    for (int round = 0; round < 5; round++) {
        char log[32];
        snprintf(log, sizeof log, "early-%d.log", round);
        const pid_t early = start_by_hand(&run, "harmony-worker", "w1", log);
        for (int tries = 0; tries < 100; tries++) {
            char *const text = run_text(&run, log);
            const bool joined = text && strstr(text, "joined the run");
            free(text);
            if (joined) {
                break;
            }
            rough_nap(0.1);
        }
        cr_expect(run_says(&run, log, "joined the run"), "round %d: it may join again", round);
        kill(early, SIGKILL);
        run_wait(early, 5);
    }
    const pid_t first = start_by_hand(&run, "harmony-worker", "w1", "w1.log");
    const pid_t second = start_by_hand(&run, "harmony-worker", "w2", "w2.log");
    cr_expect_eq(run_wait(scheduler, 60), 0);
    cr_expect_eq(run_wait(first, 5), 0);
    cr_expect_eq(run_wait(second, 5), 0);
    cr_expect_eq(run_wait(server, 5), 0);
    cr_expect_eq(rough_summary(&run, "failures"), 0);
    expect_all_rows(&run, 160);
    rough_clear(&run);
    run_end(&run);
}

// ---- C03: a server that was given up wakes

Test(network_cases, a_server_that_wakes_after_it_was_given_up_changes_nothing, .timeout = 120)
{
    run_t run;
    run_begin(&run, "wakes", &(run_shape_t){.sites = six_workers});
    const char *const ends[] = {"--site=here",    WAITS,        ENDLESS,
                                "plan.workers=1", "--name=ps0", NULL};
    const char *const sleeps[] = {"--site=here",    WAITS,        ENDLESS,
                                  "plan.workers=1", "--name=ps1", NULL};
    const char *const works[] = {"--site=here", WAITS,       ENDLESS, "plan.workers=1",
                                 "--threads=1", "--name=w1", NULL};
    const pid_t scheduler = run_start(&run, "harmony-scheduler", "scheduler.log",
                                      (const char *[]){WAITS, ENDLESS, "plan.workers=1", NULL});
    const pid_t first = run_start(&run, "harmony-ps", "ps0.log", ends);
    const pid_t second = run_start(&run, "harmony-ps", "ps1.log", sleeps);
    const pid_t worker = run_start(&run, "harmony-worker", "w1.log", works);
    cr_assert(run_reach(&run, 5, 60));
    kill(second, SIGSTOP);
    cr_expect_eq(run_wait(scheduler, 30), 1, "the run ends");
    cr_expect(run_says(&run, "scheduler.log", "here/ps1.shard0 (shard) is gone"));
    cr_expect_eq(run_wait(first, 15), 1);
    cr_expect_eq(run_wait(worker, 15), 1);
    cr_expect(run_says(&run, "w1.log", "here/ps1"), "workers, too, name the server");
    const uint32_t before = commits(&run);
    kill(second, SIGCONT);
    cr_expect_eq(run_wait(second, 20), 1, "it sees that it is alone, and ends");
    cr_expect_eq(commits(&run), before);
    rough_clear(&run);
    run_end(&run);
}
