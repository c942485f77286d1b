// Bad input: one clear line that says what, where and how to mend it; the right exit code; nothing
// lost.

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/run.h"

typedef struct {
    const char *what;
    const char *set;  // --set of a fresh conf.
    int status;
    const char *says[3];  // Words that the line must have.
} bad_t;

static const bad_t bads[] = {
    {"unknown key", "sync.stalenes=4", 2, {"stalenes", "sync.staleness"}},
    {"missing value", "train.lr=", 2, {"train.lr"}},
    {"bad unit", "run.dead_after=15parsecs", 2, {"run.dead_after"}},
    {"missing data", "train.data=/nowhere/text.txt", 2, {"/nowhere/text.txt"}},
    {"heads", "model.heads=5", 2, {"heads", "channels", "32"}},
    {"more stages than layers", "plan.stages=here:1,1,1", 2, {"3", "2"}},
    {"not whole rows", "train.global_batch=500", 2, {"global_batch", "32"}},
    {"no layer may be left out", "plan.stages=here:1", 2, {"1", "2"}},
    {"staleness below depth", "sync.mode=nonsense", 2, {"nonsense"}},
    {"negative", "plan.microbatch=0", 2, {"microbatch"}},
    {"beyond loopback", "scheduler.endpoint=tcp://0.0.0.0:7700", 2, {"0.0.0.0"}},
    {"directory", "run.directory=/proc/nowhere", 2, {"/proc/nowhere"}},
};

Test(bad_input, one_clear_line_and_status_2, .timeout = 300)
{
    for (size_t at = 0; at < sizeof bads / sizeof bads[0]; at++) {
        const bad_t *const bad = &bads[at];
        run_t run;
        run_begin(&run, "bad", NULL);
        const time_t start = time(NULL);
        const int status = run_wait(
            run_start(&run, "harmony-launch", "launch.log", (const char *[]){bad->set, NULL}), 30);
        cr_expect_eq(status, bad->status, "%s: status %d", bad->what, status);
        cr_expect_leq(time(NULL) - start, 5, "%s: refused at once", bad->what);
        char *const text = run_text(&run, "launch.log");
        for (int word = 0; word < 3 && bad->says[word]; word++) {
            cr_expect(text && strstr(text, bad->says[word]), "%s: no \"%s\" in: %s", bad->what,
                      bad->says[word], text ? text : "");
        }
        cr_expect(text && !strstr(text, "assertion"), "%s: %s", bad->what, text);
        free(text);
        cr_expect_eq(run_processes(&run), 0, "%s: something is left behind", bad->what);
        run_end(&run);
    }
}

static int try_file(const char *name, const void *bytes, size_t size, const char *key,
                    const char *const *more, char **text)
{
    run_t run;
    run_begin(&run, "file", NULL);
    char path[512], set[640];
    snprintf(path, sizeof path, "%s/%s", run.dir, name);
    FILE *const file = fopen(path, "w");
    cr_assert(file);
    fwrite(bytes, 1, size, file);
    fclose(file);
    snprintf(set, sizeof set, "%s=%s", key, path);
    const char *sets[8] = {set};
    for (int at = 1; more && *more; more++) {
        sets[at++] = *more;
    }
    const int status = run_wait(run_start(&run, "harmony-launch", "launch.log", sets), 30);
    *text = run_text(&run, "launch.log");
    run_end(&run);
    return status;
}

Test(bad_input, files_that_cannot_be_used, .timeout = 200)
{
    char *text = NULL;
    cr_expect_eq(try_file("short.txt", "too short", 9, "train.data", NULL, &text), 2);
    cr_expect(text && strstr(text, "short.txt"), "%s", text);
    free(text);

    int32_t header[256] = {20240520, 1, 4000};
    unsigned char bin[1024 + 8000] = {0};
    memcpy(bin, header, sizeof header);
    bin[1024 + 4000] = 0x2c;  // Token 300 + ...
    bin[1024 + 4001] = 0x01;
    cr_expect_eq(try_file("big.bin", bin, sizeof bin, "train.data", NULL, &text), 2);
    cr_expect(text && strstr(text, "300") && strstr(text, "256"), "%s", text);
    free(text);

    cr_expect_eq(try_file("cut.bin", bin, sizeof bin - 1, "train.data", NULL, &text), 2);
    cr_expect(text && strstr(text, "4000"), "%s", text);
    free(text);

    header[0] = 1234567;
    memcpy(bin, header, sizeof header);
    cr_expect_eq(try_file("magic.bin", bin, sizeof bin, "train.data", NULL, &text), 2);
    cr_expect(text && strstr(text, "magic"), "%s", text);
    free(text);

    const unsigned char cut[16] = {0xff, 0xff, 0, 0, 0, 0, 0, 0, '{', '}'};
    cr_expect_neq(try_file("cut.safetensors", cut, sizeof cut, "model.init", NULL, &text), 0);
    cr_expect(text && strstr(text, "cut.safetensors"), "%s", text);
    free(text);
}

Test(bad_input, a_port_in_use_is_named, .timeout = 120)
{
    run_t first, second;
    run_begin(&first, "port", NULL);
    run_begin(&second, "port", NULL);
    const pid_t pid = run_start(&first, "harmony-scheduler", "scheduler.log", NULL);
    char set[128], port[16];
    snprintf(set, sizeof set, "scheduler.endpoint=tcp://127.0.0.1:%d", first.port);
    snprintf(port, sizeof port, ":%d", first.port);
    sleep(1);
    const int status = run_wait(
        run_start(&second, "harmony-scheduler", "scheduler.log", (const char *[]){set, NULL}), 20);
    cr_expect_neq(status, 0);
    cr_expect(status > 0);
    cr_expect(run_says(&second, "scheduler.log", port));
    cr_expect(run_says(&second, "scheduler.log", "taken"));
    kill(pid, SIGTERM);
    cr_expect_eq(run_wait(pid, 15), 130);
    run_end(&first);
    run_end(&second);
}

Test(bad_input, an_absent_scheduler_is_waited_for_and_named, .timeout = 120)
{
    run_t run;
    run_begin(&run, "absent", NULL);
    const int status = run_wait(
        run_start(&run, "harmony-worker", "worker.log",
                  (const char *[]){"--site=here", "--name=one", "run.join_timeout=6", NULL}),
        30);
    cr_expect_eq(status, 1);
    char port[16];
    snprintf(port, sizeof port, ":%d", run.port);
    cr_expect(run_says(&run, "worker.log", port));
    cr_expect(run_says(&run, "worker.log", "waiting for the scheduler"));
    run_end(&run);
}

Test(bad_input, absent_nodes_are_waited_for_and_named, .timeout = 120)
{
    run_t run;
    run_begin(&run, "absent", NULL);
    const int status = run_wait(run_start(&run, "harmony-scheduler", "scheduler.log",
                                          (const char *[]){"run.join_timeout=8", NULL}),
                                30);
    cr_expect_eq(status, 1);
    cr_expect(run_says(&run, "scheduler.log", "0 of 1"));
    run_end(&run);
}

Test(bad_input, two_runs_never_share_a_folder, .timeout = 120)
{
    run_t run;
    run_begin(&run, "shared", NULL);
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){"train.tokens=100000000", NULL});
    cr_assert(run_reach(&run, 3, 60));
    run_t other;
    run_begin(&other, "shared", NULL);
    char set[320];
    snprintf(set, sizeof set, "run.directory=%s/runs", run.dir);
    const int status = run_wait(
        run_start(&other, "harmony-launch", "launch.log", (const char *[]){set, NULL}), 60);
    cr_expect_neq(status, 0);
    cr_expect(status > 0, "no hang");
    cr_expect(run_says(&other, "launch.log", run.dir));
    kill(pid, SIGINT);
    cr_expect_eq(run_wait(pid, 20), 130);
    run_end(&run);
    run_end(&other);
}

Test(bad_input, a_full_disk_at_a_checkpoint_is_an_error_line_and_training_goes_on, .timeout = 180)
{
    if (geteuid() != 0) {
        cr_skip_test("needs root for a small file system");
    }
    run_t run;
    run_begin(&run, "full", NULL);
    char command[1024];
    snprintf(command, sizeof command,
             "mkdir -p %s/runs && mount -t tmpfs -o size=420k tmpfs %s/runs", run.dir, run.dir);
    if (system(command) != 0) {
        run_end(&run);
        cr_skip_test("no tmpfs can be mounted here");
    }
    const int status = run_wait(run_start(&run, "harmony-launch", "launch.log",
                                          (const char *[]){"server.checkpoint_every=10", NULL}),
                                120);
    char *const text = run_text(&run, "launch.log");
    double losses[64];
    const uint32_t count = run_losses(&run, losses, 64);
    snprintf(command, sizeof command, "umount %s/runs", run.dir);
    cr_expect_eq(system(command), 0);
    cr_expect(status == 1 || status == 0, "status %d", status);
    cr_expect(text && strstr(text, "space"), "%s", text);
    cr_expect_eq(count, 30, "training went on: %u commits", count);
    free(text);
    run_end(&run);
}
