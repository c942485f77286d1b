// daemons - the story of a run with every kind of node, as a plain program: it starts where
// Criterion does not, under the thread sanitizer. A sanitizer's word on any process is a failure.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/hx.h"
#include "tests/support/run.h"

#define SECONDS_MAX 100  // Of one launch: sanitizers make a process five to fifteen times slower.
// A pipeline of two stages beside one of one.
#define PLAN "plan.stages=here/w1:1,here/w2:1;here/w3:2"
#define SAVES "server.checkpoint_every=8", "train.valid_every=5"
#define ENDLESS "train.tokens=100000000"

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

#define CHECK(run, what) check(run, what, #what)

// A failure shows all that is known, and keeps the folder.
static void check(run_t *run, bool holds, const char *what)
{
    if (!holds) {
        char *const log = run_text(run, "launch.log");
        fprintf(stderr, "%s\nthis does not hold: %s (in %s)\n", log ? log : "", what, run->dir);
        free(log);
        run_reports(run);
        exit(1);
    }
}

static void launch(run_t *run, const char *const *sets)
{
    CHECK(run, run_launch(run, sets, SECONDS_MAX) == 0);
}

static json_int_t summary_number(run_t *run, const char *key)
{
    json_t *const summary = run_summary(run);
    CHECK(run, summary);
    const json_int_t number = json_integer_value(json_object_get(summary, key));
    json_decref(summary);
    return number;
}

// Rounds that do not wait, with blocks large enough for the pool of blobs; then on from its
// checkpoint, with rounds that do.
static void trains_and_goes_on(void)
{
    run_t run;
    run_begin(&run, "daemons-train", &(run_shape_t){.sites = three_workers});
    launch(&run,
           (const char *[]){PLAN, SAVES, "sync.mode=ssaw", "server.shards=2", "server.block=65536",
                            "model.channels=64", "train.tokens=8192", NULL});
    CHECK(&run, summary_number(&run, "tokens") == 8192);
    launch(&run,
           (const char *[]){PLAN, SAVES, "sync.mode=bsp", "server.shards=2", "server.block=65536",
                            "model.channels=64", "train.tokens=16384", NULL});
    CHECK(&run, summary_number(&run, "tokens") == 16384);
    double losses[64];
    const uint32_t count = run_losses(&run, losses, HX_COUNT(losses));
    CHECK(&run, count >= 32 && losses[count - 1] < 0.9 * losses[0]);
    run_end(&run);
}

static void stops_at_ctrl_c(void)
{
    run_t run;
    run_begin(&run, "daemons-stop", &(run_shape_t){.sites = three_workers});
    const pid_t pid = run_start(&run, "harmony-launch", "launch.log",
                                (const char *[]){PLAN, SAVES, "sync.mode=ssaw", ENDLESS, NULL});
    CHECK(&run, run_reach(&run, 10, SECONDS_MAX));
    CHECK(&run, kill(pid, SIGINT) == 0);
    CHECK(&run, run_wait(pid, 30) == 130);
    CHECK(&run, summary_number(&run, "version") >= 10);
    run_end(&run);
}

static void wait_until_gone(run_t *run)
{
    for (int tries = 0;; tries++) {
        char *const text = run_text(run, "launch.log");
        const bool gone = text && strstr(text, "here/w1") && strstr(text, "is gone");
        free(text);
        if (gone) {
            return;
        }
        CHECK(run, tries < 60);
        sleep(1);
    }
}

static void goes_on_without_a_killed_worker(void)
{
    run_t run;
    run_begin(&run, "daemons-kill", &(run_shape_t){.sites = three_workers});
    const pid_t pid = run_start(
        &run, "harmony-launch", "launch.log",
        (const char *[]){PLAN, SAVES, "sync.mode=ssaw", "run.dead_after=8", ENDLESS, NULL});
    CHECK(&run, run_reach(&run, 5, SECONDS_MAX));
    const pid_t victim = run_find(&run, "--name w1");
    CHECK(&run, victim > 0 && kill(victim, SIGKILL) == 0);
    wait_until_gone(&run);
    CHECK(&run, kill(pid, SIGINT) == 0);
    CHECK(&run, run_wait(pid, 30) == 130);
    CHECK(&run, summary_number(&run, "failures") >= 1);
    run_end(&run);
}

int main(void)
{
    // OpenMP's barriers are invisible to the thread sanitizer: one thread a process.
    setenv("OMP_NUM_THREADS", "1", 1);
    trains_and_goes_on();
    stops_at_ctrl_c();
    goes_on_without_a_killed_worker();
    puts("every daemon ended as it should, and no sanitizer had a word to say");
    return 0;
}
