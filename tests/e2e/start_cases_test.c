// Start: the scheduler's address as a name (apache/mxnet#12062 and its kind), a folder that another
// run has, and ends that nobody waits for.

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/rough.h"

#define SHORT "train.tokens=5120", "train.valid_tokens=256"  // 10 steps.
#define NAME_MAX_HERE 128

static void set_of(char *out, size_t size, const char *key, const char *host, int port)
{
    snprintf(out, size, "%s=tcp://%s:%d", key, host, port);
}

// A run whose scheduler is called `host` trains to its end; `bind`: where it really is, or NULL.
static void trains_at(const char *host, const char *bind)
{
    run_t run;
    run_begin(&run, "name", NULL);
    char endpoint[NAME_MAX_HERE], bound[NAME_MAX_HERE];
    set_of(endpoint, sizeof endpoint, "scheduler.endpoint", host, run.port);
    set_of(bound, sizeof bound, "scheduler.bind", bind ? bind : host, run.port);
    rough_launch(&run, (const char *[]){SHORT, endpoint, bind ? bound : NULL, NULL}, 60, 0);
    cr_expect_eq(rough_summary(&run, "version"), 10);
    run_end(&run);
}

Test(start_cases, the_scheduler_may_be_called_by_a_name, .timeout = 120)
{
    trains_at("localhost", NULL);
    trains_at("localhost", "127.0.0.1");
    trains_at("127.0.0.1", "127.0.0.1");
}

static char mark[64];

static void make_mark(void)
{
    snprintf(mark, sizeof mark, "hx-test-%d", (int)getpid());
}

static void clear_mark(void)
{
    if (geteuid() == 0) {
        rough_hosts_restore(mark);
    }
}

TestSuite(names, .init = make_mark, .fini = clear_mark, .timeout = 120);

static void need_hosts(const char *lines)
{
    if (geteuid() != 0 || !rough_hosts_add(lines)) {
        cr_skip_test("names need root, to write /etc/hosts");
    }
}

Test(names, of_two_addresses_the_living_one_is_found)
{
    char lines[512], first[96], second[96];
    snprintf(first, sizeof first, "%s-first", mark);
    snprintf(second, sizeof second, "%s-second", mark);
    snprintf(lines, sizeof lines, "127.0.0.9 %s\n127.0.0.1 %s\n127.0.0.1 %s\n127.0.0.9 %s\n", first,
             first, second, second);
    need_hosts(lines);
    trains_at(first, "127.0.0.1");
    trains_at(second, "127.0.0.1");
}

Test(names, a_name_of_this_machine_can_be_bound)
{
    char line[128];
    snprintf(line, sizeof line, "127.0.1.1 %s\n", mark);
    need_hosts(line);
    trains_at(mark, NULL);
}

Test(names, a_name_of_another_machine_is_not_bound_without_keys)
{
    char line[128], set[NAME_MAX_HERE];
    snprintf(line, sizeof line, "192.0.2.7 %s\n", mark);
    need_hosts(line);
    run_t run;
    run_begin(&run, "name", NULL);
    set_of(set, sizeof set, "scheduler.endpoint", mark, run.port);
    rough_refused(&run, "harmony-scheduler", (const char *[]){set, NULL}, 5,
                  (const char *[]){mark, "192.0.2.7", "security.curve", NULL});
    rough_refused(&run, "harmony-launch", (const char *[]){set, NULL}, 5,
                  (const char *[]){mark, "192.0.2.7", NULL});
    run_end(&run);
}

Test(start_cases, a_name_that_means_nothing_is_refused_at_once_by_every_program, .timeout = 120)
{
    run_t run;
    run_begin(&run, "nowhere", NULL);
    const char *const words[] = {"no-such-host.invalid", "cannot be resolved: ", NULL};
    char set[NAME_MAX_HERE];
    set_of(set, sizeof set, "scheduler.endpoint", "no-such-host.invalid", run.port);
    rough_refused(&run, "harmony-launch", (const char *[]){set, NULL}, 5, words);
    rough_refused(&run, "harmony-scheduler", (const char *[]){set, NULL}, 5, words);
    rough_refused(&run, "harmony-ps", (const char *[]){set, "--site=here", NULL}, 5, words);
    rough_refused(&run, "harmony-worker",
                  (const char *[]){set, "--site=here", "--name=one", "--threads=1", NULL}, 5,
                  words);
    run_end(&run);
}

Test(start_cases, without_keys_nothing_is_bound_beyond_this_machine, .timeout = 60)
{
    run_t run;
    run_begin(&run, "any", NULL);
    char set[NAME_MAX_HERE];
    set_of(set, sizeof set, "scheduler.bind", "*", run.port);
    const char *const words[] = {"tcp://*:", "certificates", NULL};
    rough_refused(&run, "harmony-scheduler", (const char *[]){set, NULL}, 2, words);
    rough_refused(&run, "harmony-launch", (const char *[]){set, NULL}, 2, words);
    rough_refused(&run, "harmony-ps",
                  (const char *[]){"--site=here", "server.bind=tcp://0.0.0.0:*", NULL}, 2,
                  (const char *[]){"0.0.0.0", "certificates", NULL});
    rough_refused(&run, "harmony-worker",
                  (const char *[]){"--site=here", "worker.bind=tcp://[::]:*", NULL}, 2,
                  (const char *[]){"[::]", "certificates", NULL});
    run_end(&run);
}

Test(start_cases, a_refused_second_run_leaves_the_first_ones_files_alone, .timeout = 120)
{
    run_t run;
    run_begin(&run, "folder", NULL);
    rough_launch(&run, (const char *[]){SHORT, NULL}, 60, 0);
    const double tokens = rough_summary(&run, "tokens");
    cr_assert_eq(tokens, 5120);
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){"train.tokens=100000000", NULL});
    cr_assert(run_reach(&run, 12, 60), "the run goes on");
    run_t other;
    run_begin(&other, "folder", NULL);
    char set[320];
    snprintf(set, sizeof set, "run.directory=%s/runs", run.dir);
#define OTHER run.dir, "another run writes to this folder (process "
    rough_refused(&other, "harmony-launch", (const char *[]){set, NULL}, 5,
                  (const char *[]){OTHER, "harmony-launch", NULL});
    rough_refused(&other, "harmony-scheduler", (const char *[]){set, NULL}, 5,
                  (const char *[]){OTHER, "harmony-scheduler", NULL});
    cr_expect_eq(rough_summary(&run, "tokens"), tokens, "the summary is that of the first run");
    kill(pid, SIGINT);
    cr_expect_eq(run_wait(pid, 20), 130);
    cr_expect(rough_status(&run, "interrupted"));
    cr_expect_gt(rough_summary(&run, "tokens"), tokens);
    run_end(&run);
    run_end(&other);
}

// The time of day of the first or last line with `word` in a log, in seconds; -1: none.
static double time_of(run_t *run, const char *log, const char *word)
{
    char *const text = run_text(run, log);
    char *const found = text ? strstr(text, word) : NULL;
    double time = -1;
    if (found) {
        char *line = found;
        while (line > text && line[-1] != '\n') {
            line--;
        }
        int hours = 0, minutes = 0;
        double seconds = 0;
        if (sscanf(line, "%*10sT%d:%d:%lfZ", &hours, &minutes, &seconds) == 3) {
            time = hours * 3600 + minutes * 60 + seconds;
        }
    }
    free(text);
    return time;
}

Test(start_cases, at_the_end_nobody_waits_for_who_has_ended, .timeout = 120)
{
    run_t run;
    run_begin(&run, "end", NULL);
    const double begun = rough_now();
    rough_launch(&run, (const char *[]){SHORT, NULL}, 60, 0);
    const double whole = rough_now() - begun;
    const double start = time_of(&run, "runs/test/log/scheduler.log", "waiting for");
    const double said = time_of(&run, "runs/test/log/scheduler.log", "ending all nodes");
    cr_assert(start >= 0 && said >= 0);
    // What is left is the end: an acknowledgement that nobody waits for takes two seconds more.
    cr_expect_leq(whole - (said - start), 1.9, "%.2f s, %.2f s of them before the end", whole,
                  said - start);
    run_end(&run);
}
