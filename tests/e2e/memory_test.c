// What servers take of memory, with a model of 50 million parameters, while somebody stands still.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/model.h"
#include "tests/support/rough.h"

#define LAYERS 16u
#define CHANNELS 512u
#define CONTEXT 32u
#define PIPELINES 2u
#define SERVERS 2u
#define COPIES 4u  // Parameters, two moments, one accumulator.
#define SLACK ((uint64_t)64 << 20)
#define PAUSE 8.0  // Below run.dead_after.

static const char *const two_sites = "    site\n"
                                     "        name = \"a\"\n"
                                     "        servers = 1\n"
                                     "        worker\n"
                                     "            name = \"w1\"\n"
                                     "            threads = 1\n"
                                     "    site\n"
                                     "        name = \"b\"\n"
                                     "        servers = 1\n"
                                     "        worker\n"
                                     "            name = \"w2\"\n"
                                     "            threads = 1\n";
static const run_shape_t shape = {.sites = two_sites};

static uint64_t model_bytes(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = LAYERS;
    conf.heads = 8;
    conf.channels = CHANNELS;
    conf.context = CONTEXT;
    conf.vocab = 256;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    const uint64_t bytes = model_params_count(model) * sizeof(float);
    model_destroy(&model);
    return bytes;
}

// VmHWM, in bytes.
static uint64_t peak_of(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *const file = fopen(path, "r");
    cr_assert(file, "%s", path);
    while (fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %lu kB", &kib) != 1) {
    }
    fclose(file);
    cr_assert_gt(kib, 0);
    return (uint64_t)kib << 10;
}

static uint64_t commits(run_t *run)
{
    static double losses[65536];
    return run_losses(run, losses, 65536);
}

// Stops a process for a while; the run then goes on.
static void pause_one(run_t *run, const char *word)
{
    const pid_t pid = run_find(run, word);
    cr_assert_gt(pid, 0, "%s", word);
    kill(pid, SIGSTOP);
    rough_nap(PAUSE);
    kill(pid, SIGCONT);
    cr_assert(run_reach(run, commits(run) + 4, 100), "no commits after a pause of %s", word);
}

Test(memory, servers_keep_within_their_bound_whoever_stands_still, .timeout = 400)
{
    const uint64_t part = model_bytes() / SERVERS * 17 / 16;  // Servers' parts are not quite equal.
    const uint64_t hold = 2 * PIPELINES * part;
    char hold_set[64];
    snprintf(hold_set, sizeof hold_set, "server.hold=%" PRIu64, hold);
    run_t run;
    run_begin(&run, "memory", &shape);
    const pid_t pid = run_start(
        &run, "harmony-launch", "launch.log",
        (const char *[]){"model.layers=16", "model.channels=512", "model.heads=8", "sync.mode=ssaw",
                         "train.global_batch=128", "train.tokens=100000000",
                         "train.valid_tokens=64", "train.lr=0.0001", "plan.microbatch=1",
                         "plan.pipelines=2", "server.block=4194304", "run.dead_after=30",
                         "run.lease_min=60", "server.checkpoint_every=0", hold_set, NULL});
    cr_assert(run_reach(&run, 6, 120), "it begins");
    pause_one(&run, "--name w2");
    const char *const words[] = {"--site b --name ps", "--site a --name ps"};
    for (uint32_t at = 0; at < HX_COUNT(words); at++) {
        pause_one(&run, words[at]);
    }
    for (uint32_t at = 0; at < SERVERS; at++) {
        const uint64_t peak = peak_of(run_find(&run, words[at]));
        const uint64_t bound = COPIES * part + hold + SLACK;
        fprintf(stderr, "%s: peak %" PRIu64 " MiB of %" PRIu64 "\n", words[at], peak >> 20,
                bound >> 20);
        cr_expect_leq(peak, bound, "%s", words[at]);
    }
    kill(pid, SIGINT);
    cr_expect_eq(run_wait(pid, 60), 130);
    run_end(&run);
}
