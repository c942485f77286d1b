// Checkpoints: a kill during a save, damage, a folder that takes no file
// (Lightning-AI/pytorch-lightning#688 and its kind), and the optimizer's state through a resume
// (apache/mxnet#15923).

#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/rough.h"
#include "tests/support/seed.h"

#define KEEP_RATE "train.decay=none", "train.warmup=0", "train.valid_tokens=256"
#define ENDLESS "train.tokens=100000000"
#define TOKENS_OF(steps) "train.tokens=" #steps
#define CHECKPOINT_OF(version) "runs/test/checkpoint-" #version
#define PS_LOG "runs/test/log/here-ps0.log"

static const char *const two_servers = "    site\n"
                                       "        name = \"here\"\n"
                                       "        servers = 2\n"
                                       "        worker\n"
                                       "            name = \"one\"\n"
                                       "            threads = 1\n";

// ---- C09: the optimizer's state

static void expect_same(run_t *a, run_t *b, const char *file, bool same)
{
    char path[128];
    snprintf(path, sizeof path, CHECKPOINT_OF(20) "/%s", file);
    cr_expect_eq(run_same_file(a, path, b, path), same, "%s %s", file,
                 same ? "differs" : "is the same");
}

Test(checkpoint_cases, a_resumed_run_has_its_moments_and_one_from_weights_has_not, .timeout = 200)
{
    run_t x, y, z;
    const run_shape_t shape = {.sites = two_servers};
    run_begin(&x, "x", &shape);
    run_begin(&y, "y", &shape);
    run_begin(&z, "z", &shape);
    rough_launch(&x, (const char *[]){KEEP_RATE, TOKENS_OF(10240), NULL}, 60, 0);
    rough_launch(&y, (const char *[]){KEEP_RATE, TOKENS_OF(5120), NULL}, 60, 0);
    rough_launch(&y, (const char *[]){KEEP_RATE, TOKENS_OF(10240), NULL}, 60, 0);
    expect_same(&x, &y, "model.safetensors", true);
    expect_same(&x, &y, "optimizer.safetensors", true);
    double losses[64];
    cr_expect_eq(run_losses(&y, losses, 64), 20, "metrics go on where they were");
    char init[320];
    snprintf(init, sizeof init, "model.init=%s/" CHECKPOINT_OF(10), y.dir);
    rough_launch(&z, (const char *[]){KEEP_RATE, TOKENS_OF(10240), init, NULL}, 60, 0);
    expect_same(&x, &z, "model.safetensors", false);
    expect_same(&x, &z, "optimizer.safetensors", false);
    run_end(&x);
    run_end(&y);
    run_end(&z);
}

// Two checkpoints, of versions 5 and 10.
static void make_two(run_t *run)
{
    run_begin(run, "damage", NULL);
    rough_launch(run,
                 (const char *[]){KEEP_RATE, TOKENS_OF(5120), "server.checkpoint_every=5", NULL},
                 60, 0);
    cr_assert_eq(rough_count(run, "runs/test", "checkpoint-", ""), 2);
}

static void unlink_in(run_t *run, const char *path)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", run->dir, path);
    cr_assert_eq(unlink(full), 0, "%s", full);
}

Test(checkpoint_cases, a_resume_without_the_optimizers_state_is_refused_with_its_name,
     .timeout = 120)
{
    run_t run;
    make_two(&run);
    unlink_in(&run, CHECKPOINT_OF(10) "/optimizer.safetensors");
    char set[320], file[320];
    snprintf(set, sizeof set, "run.resume=%s/" CHECKPOINT_OF(10), run.dir);
    snprintf(file, sizeof file, "%s/" CHECKPOINT_OF(10) "/optimizer.safetensors", run.dir);
    rough_launch(&run, (const char *[]){KEEP_RATE, TOKENS_OF(10240), set, NULL}, 60, 1);
    cr_expect(run_says(&run, "launch.log", file));
    // Left to itself, the run takes the one before, and says why.
    rough_launch(&run, (const char *[]){KEEP_RATE, TOKENS_OF(10240), NULL}, 60, 0);
    cr_expect(run_says(&run, "launch.log", "resuming from checkpoint 5"));
    cr_expect(run_says(&run, PS_LOG, file));
    run_end(&run);
}

// ---- C08: damage

// Resumes after `spoil` has done its work on the newest checkpoint.
static void falls_back(const char *file, void (*spoil)(run_t *, const char *, double), double where)
{
    run_t run;
    char path[128];
    make_two(&run);
    snprintf(path, sizeof path, CHECKPOINT_OF(10) "/%s", file);
    spoil(&run, path, where);
    rough_launch(&run, (const char *[]){KEEP_RATE, TOKENS_OF(6144), NULL}, 60, 0);
    cr_expect(run_says(&run, "launch.log", "resuming from checkpoint 5"));
    cr_expect(run_says(&run, PS_LOG, path), "the damage is named");
    cr_expect_eq(rough_summary(&run, "version"), 12);
    run_end(&run);
}

Test(checkpoint_cases, one_flipped_byte_is_named_and_the_one_before_is_taken, .timeout = 200)
{
    falls_back("model.safetensors", rough_flip, 0.7);
    falls_back("optimizer.safetensors", rough_flip, 0.001);
    falls_back("manifest.json", rough_flip, 0.5);
    falls_back("config.json", rough_flip, 0.5);
}

Test(checkpoint_cases, a_file_cut_short_is_named_and_the_one_before_is_taken, .timeout = 200)
{
    falls_back("model.safetensors", rough_cut, 0.9);
    falls_back("optimizer.safetensors", rough_cut, 0.0);
    falls_back("manifest.json", rough_cut, 0.5);
}

Test(checkpoint_cases, when_all_are_damaged_nothing_starts, .timeout = 120)
{
    run_t run;
    make_two(&run);
    rough_flip(&run, CHECKPOINT_OF(10) "/model.safetensors", 0.5);
    rough_cut(&run, CHECKPOINT_OF(5) "/manifest.json", 0.5);
    rough_launch(&run, (const char *[]){KEEP_RATE, TOKENS_OF(10240), NULL}, 60, 1);
    cr_expect(run_says(&run, "launch.log", "no checkpoint in it can be used"));
    cr_expect(run_says(&run, "launch.log", "run.resume = never"));
    cr_expect_eq(rough_count(&run, "runs/test", "checkpoint-", ""), 2, "nothing was thrown away");
    rough_launch(&run, (const char *[]){KEEP_RATE, TOKENS_OF(512), "run.resume=never", NULL}, 60,
                 0);
    run_end(&run);
}

// ---- C08: a folder that takes no file

// From here on an ordinary user: rights mean nothing to root.
static void be_ordinary(void)
{
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) {
        cr_skip_test("needs an ordinary user");
    }
    if (access(run_program("harmony-launch"), X_OK) != 0) {
        cr_skip_test("an ordinary user cannot run the programs where they are");
    }
}

Test(checkpoint_cases, a_folder_that_takes_no_file_is_refused_at_the_start, .timeout = 60)
{
    be_ordinary();
    run_t run;
    char path[320];
    run_begin(&run, "rights", NULL);
    snprintf(path, sizeof path, "%s/runs", run.dir);
    cr_assert(mkdir(path, 0555) == 0);
    const char *const words[] = {path, "Permission denied", "run.directory", NULL};
    rough_refused(&run, "harmony-launch", NULL, 3, words);
    rough_refused(&run, "harmony-scheduler", NULL, 3, words);
    run_end(&run);
}

Test(checkpoint_cases, a_save_that_fails_is_an_error_line_and_training_goes_on, .timeout = 120)
{
    be_ordinary();
    run_t run;
    char path[320];
    run_begin(&run, "rights", NULL);
    snprintf(path, sizeof path, "%s/runs/test", run.dir);
    const pid_t pid =
        run_start(&run, "harmony-launch", "launch.log",
                  (const char *[]){KEEP_RATE, ENDLESS, "server.checkpoint_every=3", NULL});
    cr_assert(run_reach(&run, 4, 60));
    // One that is whole: a folder alone may still be in the making.
    for (int tries = 0; tries < 200 && !rough_count(&run, "runs/test", "latest", ""); tries++) {
        rough_nap(0.05);
    }
    cr_assert_eq(chmod(path, 0555), 0);
    double losses[4096];
    const uint32_t before = run_losses(&run, losses, 4096);
    cr_expect(run_reach(&run, before + 30, 60), "training goes on");
    cr_expect(run_says(&run, PS_LOG, "Permission denied"));
    const uint32_t kept = rough_count(&run, "runs/test", "checkpoint-", "");
    cr_expect_geq(kept, 1, "what was there before stays");
    kill(pid, SIGINT);
    cr_expect_eq(run_wait(pid, 25), 1, "the last save failed, and that is no success");
    cr_assert_eq(chmod(path, 0755), 0);
    rough_launch(&run, (const char *[]){KEEP_RATE, TOKENS_OF(512), NULL}, 60, 0);
    cr_expect(run_says(&run, "launch.log", "resuming from checkpoint"), "the old one is whole");
    run_end(&run);
}

// ---- C08: a kill in the middle of a save

// The newest version that has its name, and how many there are; what is named has a manifest.
static uint64_t newest(run_t *run, uint32_t *count)
{
    char path[512];
    uint64_t found = 0;
    *count = 0;
    snprintf(path, sizeof path, "%s/runs/test", run->dir);
    DIR *const folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *end = NULL;
        if (strncmp(entry->d_name, "checkpoint-", 11) != 0) {
            continue;
        }
        const uint64_t version = strtoull(entry->d_name + 11, &end, 10);
        if (*end == '\0') {
            char manifest[1024];
            snprintf(manifest, sizeof manifest, "%s/%s/manifest.json", path, entry->d_name);
            cr_expect_eq(access(manifest, R_OK), 0, "%s is no checkpoint", entry->d_name);
            found = version > found ? version : found;
            ++*count;
        }
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

// Kills a server, then everything, at a random moment of a run that saves all the time.
static void one_round(run_t *run, uint64_t *state, int number)
{
    uint32_t count = 0;
    const uint64_t start = newest(run, &count);
    char log[32], line[64];
    snprintf(log, sizeof log, "round-%d.log", number);
    const pid_t pid =
        run_start(run, "harmony-launch", log,
                  (const char *[]){KEEP_RATE, ENDLESS, "server.checkpoint_every=2",
                                   "server.checkpoint_keep=2", "model.layers=4", NULL});
    const double limit = rough_now() + 60;
    while (newest(run, &count) == start && rough_now() < limit) {
        rough_nap(0.02);
    }
    if (start > 0) {
        snprintf(line, sizeof line, "resuming from checkpoint %llu\n", (unsigned long long)start);
        cr_expect(run_says(run, log, line), "round %d", number);
    }
    cr_assert_gt(newest(run, &count), start, "round %d saves", number);
    rough_nap(rough_between(state, 0, 300) * 1e-3);
    const pid_t victim = run_find(run, "ps0");
    cr_assert_gt(victim, 0);
    kill(victim, SIGKILL);
    kill(-pid, SIGKILL);
    run_wait(pid, 5);
    rough_clear(run);
    cr_expect_leq(rough_count(run, "runs/test", "", ".tmp"), 3, "round %d", number);
    newest(run, &count);
    cr_expect_leq(count, 3, "round %d: %u checkpoints are kept", number, count);
}

Test(checkpoint_cases, a_server_killed_during_a_save_loses_nothing_that_was_whole, .timeout = 300)
{
    run_t run;
    run_begin(&run, "kill-save", &(run_shape_t){.sites = two_servers});
    uint64_t state = seed_of("kill during a save") | 1;
    for (int number = 0; number < 8; number++) {
        one_round(&run, &state, number);
    }
    uint32_t count = 0;
    const uint64_t last = newest(&run, &count);
    char line[64], tokens[64];
    snprintf(line, sizeof line, "resuming from checkpoint %llu\n", (unsigned long long)last);
    snprintf(tokens, sizeof tokens, "train.tokens=%llu", (unsigned long long)(last + 2) * 512);
    rough_launch(
        &run,
        (const char *[]){KEEP_RATE, tokens, "model.layers=4", "server.checkpoint_keep=2", NULL}, 60,
        0);
    cr_expect(run_says(&run, "launch.log", line));
    cr_expect_eq(rough_summary(&run, "version"), (double)last + 2);
    cr_expect_eq(rough_count(&run, "runs/test", "checkpoint-", ".tmp"), 0, "nothing half done");
    cr_expect_leq(rough_count(&run, "runs/test", "checkpoint-", ""), 3);
    run_end(&run);
}
