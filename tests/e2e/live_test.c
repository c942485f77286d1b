// live: what users ask of a run that is on: other values, how it does, a checkpoint, a node that
// leaves. In real processes.

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/rough.h"

#define ENDLESS "train.tokens=100000000"
#define PATIENCE 60.0  // Seconds until something has to be seen.

static const char *const three = "    site\n"
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
                                 "            threads = 1\n"
                                 "            slowdown = 3\n";
#define APART "plan.stages=here/w1:2;here/w2:2;here/w3:2"

// harmony-ctl CONF words...; what it said is given to `said`, to be freed, if that is not NULL.
static int ctl(run_t *run, const char *const *words, char **said)
{
    char path[512];
    snprintf(path, sizeof path, "%s/ctl.log", run->dir);
    unlink(path);
    const int status = run_wait(run_start(run, "harmony-ctl", "ctl.log", words), 120);
    char *const text = run_text(run, "ctl.log");
    if (status != 0) {
        fprintf(stderr, "harmony-ctl %s: %d\n%s", words[0], status, text ? text : "");
    }
    if (said) {
        *said = text;
    } else {
        free(text);
    }
    return status;
}

static int set(run_t *run, const char *key, const char *value)
{
    char first[128];
    char second[128];
    snprintf(first, sizeof first, "+%s", key);
    snprintf(second, sizeof second, "+%s", value);
    return ctl(run, (const char *const[]){"+set", first, second, NULL}, NULL);
}

static json_t *status_of(run_t *run)
{
    char *text = NULL;
    const int status = ctl(run, (const char *const[]){"+status", "--json", NULL}, &text);
    json_t *const json = status == 0 && text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return json;
}

// Waits until the lead says so of its rounds; `more`: or a larger number.
static bool stands(run_t *run, const char *key, double value, bool more)
{
    const double until = rough_now() + PATIENCE;
    while (rough_now() < until) {
        json_t *const status = status_of(run);
        const json_t *const found = json_object_get(json_object_get(status, "sync"), key);
        const double apart = json_is_number(found) ? json_number_value(found) - value : NAN;
        const bool same = fabs(apart) < 1e-9 || (more && apart > 0);
        json_decref(status);
        if (same) {
            return true;
        }
        rough_nap(0.2);
    }
    return false;
}

static bool stands_at(run_t *run, const char *key, double value)
{
    return stands(run, key, value, false);
}

static pid_t start(run_t *run)
{
    const pid_t pid = run_start(
        run, "harmony-launch", "launch.log",
        (const char *const[]){ENDLESS, APART, "sync.mode=ssaw", "server.checkpoint_every=0", NULL});
    return pid;
}

static uint64_t version_of(run_t *run)
{
    json_t *const status = status_of(run);
    const json_int_t version = json_integer_value(json_object_get(status, "version"));
    json_decref(status);
    return (uint64_t)version;
}

Test(live, what_is_set_holds_at_once_and_after_a_resume, .timeout = 600)
{
    run_t run;
    run_begin(&run, "live-set", &(run_shape_t){.sites = three});
    pid_t pid = start(&run);
    cr_assert(run_reach(&run, 3, PATIENCE), "it trains");
    cr_expect_eq(set(&run, "sync.staleness", "6"), 0);
    cr_expect_eq(set(&run, "lr", "0.001"), 0);
    cr_expect_eq(set(&run, "sync.grace", "0.2"), 0);
    cr_expect(stands_at(&run, "staleness", 6));
    cr_expect(stands_at(&run, "lr", 0.001));
    cr_expect(stands_at(&run, "grace", 0.2));
    cr_expect(run_reach(&run, version_of(&run) + 2, PATIENCE), "it goes on");
    cr_expect_eq(ctl(&run, (const char *const[]){"+stop", NULL}, NULL), 0);
    cr_assert_eq(run_wait(pid, 30), 130);

    pid = start(&run);
    cr_expect(stands_at(&run, "staleness", 6), "a resume keeps it");
    cr_expect(stands_at(&run, "lr", 0.001));
    cr_expect_eq(set(&run, "sync.alpha", "0.75"), 0);
    kill(pid, SIGKILL);
    run_wait(pid, 5);
    rough_clear(&run);  // No commit and no checkpoint may have followed.
    cr_assert(rough_gone(&run, 20));

    pid = start(&run);
    cr_expect(stands_at(&run, "alpha", 0.75), "the journal kept it");
    cr_expect(stands_at(&run, "staleness", 6));
    cr_expect_eq(ctl(&run, (const char *const[]){"+stop", NULL}, NULL), 0);
    cr_assert_eq(run_wait(pid, 30), 130);
    run_end(&run);
}

static void refused(run_t *run, const char *key, const char *value, const char *says)
{
    char first[128];
    char second[128];
    char *text = NULL;
    snprintf(first, sizeof first, "+%s", key);
    snprintf(second, sizeof second, "+%s", value);
    cr_expect_eq(ctl(run, (const char *const[]){"+set", first, second, NULL}, &text), 2, "%s %s",
                 key, value);
    cr_assert(text);
    cr_expect(strstr(text, says), "\"%s\" does not say \"%s\"", text, says);
    const char *const end = strchr(text, '\n');
    cr_expect(end && end[1] == '\0', "one line: %s", text);
    free(text);
}

Test(live, what_cannot_be_set_is_refused_in_one_line, .timeout = 300)
{
    run_t run;
    run_begin(&run, "live-refused", &(run_shape_t){.sites = three});
    // Without a run: what the line says does not need one.
    refused(&run, "sync.stalenes", "8", "sync.staleness");
    refused(&run, "sync.quorum", "7", "out of range");
    refused(&run, "model.layers", "3", "cannot be changed");
    const pid_t pid = start(&run);
    cr_assert(run_reach(&run, 3, PATIENCE), "it trains");
    refused(&run, "sync.staleness", "many", "expected a whole number");
    // Only the lead knows the number of pipelines, and the workers.
    cr_expect_eq(set(&run, "sync.staleness", "2"), 0);
    refused(&run, "sync.quorum", "one", "pipelines");
    refused(&run, "worker.w9.slowdown", "2", "here/w");
    refused(&run, "worker.w1.slowdown", "0.5", "out of range");
    cr_expect(stands_at(&run, "quorum", 0.5), "nothing was changed");
    cr_expect_eq(ctl(&run, (const char *const[]){"+stop", NULL}, NULL), 0);
    cr_assert_eq(run_wait(pid, 30), 130);
    run_end(&run);
}

Test(live, status_tells_of_pipelines_and_lags, .timeout = 300)
{
    run_t run;
    char *text = NULL;
    run_begin(&run, "live-status", &(run_shape_t){.sites = three});
    const pid_t pid = start(&run);
    cr_assert(run_reach(&run, 10, PATIENCE), "it trains");
    cr_expect_eq(set(&run, "worker.w3.slowdown", "2"), 0);
    cr_expect(stands(&run, "version", 10, true));
    json_t *const status = status_of(&run);
    const json_t *const sync = json_object_get(status, "sync");
    const json_t *const pipelines = json_object_get(sync, "pipelines");
    cr_assert_eq(json_array_size(pipelines), 3);
    for (size_t at = 0; at < 3; at++) {
        static const char *const keys[] = {"base",         "lag",           "held",
                                           "step_seconds", "step_spread",   "forced_waits",
                                           "in_flight",    "forced_seconds"};
        for (size_t key = 0; key < 8; key++) {
            cr_expect(json_is_number(json_object_get(json_array_get(pipelines, at), keys[key])),
                      "pipeline %zu: %s", at, keys[key]);
        }
    }
    double lags = 0;
    for (size_t at = 0; at < json_array_size(json_object_get(sync, "lags")); at++) {
        lags += json_number_value(json_array_get(json_object_get(sync, "lags"), at));
    }
    cr_expect_geq(lags, 10, "a lag for each contribution");
    json_decref(status);
    cr_expect_eq(ctl(&run, (const char *const[]){"+status", NULL}, &text), 0);
    cr_assert(text);
    static const char *const parts[] = {"forced waits", "staleness 8", "lag  0", "###",
                                        "worker.here/w3.slowdown = 2"};
    for (size_t at = 0; at < 5; at++) {
        cr_expect(strstr(text, parts[at]), "no \"%s\" in\n%s", parts[at], text);
    }
    free(text);
    text = run_text(&run, "runs/test/log/here-w3.log");
    cr_expect(text && strstr(text, "slowdown is 2 from here on"), "%s", text ? text : "no log");
    free(text);
    cr_expect_eq(ctl(&run, (const char *const[]){"+stop", NULL}, NULL), 0);
    cr_assert_eq(run_wait(pid, 30), 130);
    run_end(&run);
}

#ifdef HX_MICROHTTPD
// What a visitor of the page gets, to be freed; NULL: nobody is there.
static char *visit(uint16_t port, const char *path)
{
    char request[128];
    char *const text = calloc(1, 1 << 16);
    const int fd = rough_connect(port);
    cr_assert(text);
    const int length = snprintf(request, sizeof request,
                                "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    if (fd < 0 || write(fd, request, (size_t)length) != length) {
        free(text);
        return NULL;
    }
    size_t used = 0;
    for (ssize_t got; (got = read(fd, text + used, (1 << 16) - 1 - used)) > 0;) {
        used += (size_t)got;
    }
    close(fd);
    return text;
}

Test(live, the_page_shows_the_run, .timeout = 300)
{
    run_t run;
    run_begin(&run, "live-page", &(run_shape_t){.sites = three});
    const pid_t pid =
        run_start(&run, "harmony-launch", "launch.log",
                  (const char *const[]){ENDLESS, APART, "scheduler.dashboard=127.0.0.1:*", NULL});
    cr_assert(run_reach(&run, 3, PATIENCE), "it trains");
    char *const log = run_text(&run, "runs/test/log/scheduler.log");
    const char *const at = log ? strstr(log, "watched at http://127.0.0.1:") : NULL;
    cr_assert(at, "%s", log ? log : "no log");
    const uint16_t port = (uint16_t)strtoul(at + strlen("watched at http://127.0.0.1:"), NULL, 10);
    free(log);
    bool seen = false;
    for (const double until = rough_now() + PATIENCE; !seen && rough_now() < until;) {
        char *const text = visit(port, "/metrics");
        seen = text && strstr(text, "harmony_pipeline_step_seconds{pipeline=\"3\"}") &&
               strstr(text, "harmony_lag_commits_count");
        free(text);
        rough_nap(0.1);
    }
    cr_expect(seen, "metrics of every pipeline");
    char *const page = visit(port, "/");
    cr_expect(page && strstr(page, "here/w3"), "%s", page ? page : "no page");
    free(page);
    cr_expect_eq(ctl(&run, (const char *const[]){"+stop", NULL}, NULL), 0);
    cr_assert_eq(run_wait(pid, 30), 130);
    cr_expect_eq(rough_connect(port), -1, "nobody listens any more");
    run_end(&run);
}
#endif

Test(live, a_checkpoint_on_demand_is_whole_when_its_path_is_printed, .timeout = 300)
{
    run_t run;
    char *text = NULL;
    char manifest[1024];
    run_begin(&run, "live-checkpoint", &(run_shape_t){.sites = three});
    const pid_t pid = start(&run);
    cr_assert(run_reach(&run, 3, PATIENCE), "it trains");
    cr_expect_eq(ctl(&run, (const char *const[]){"+checkpoint", NULL}, &text), 0);
    cr_assert(text && strchr(text, '\n'));
    *strchr(text, '\n') = '\0';
    cr_expect(strstr(text, "runs/test/checkpoint-"), "%s", text);
    const char *const relative = strstr(text, "runs/");
    snprintf(manifest, sizeof manifest, "%s/%s/manifest.json", run.dir, relative ? relative : text);
    cr_expect_eq(access(manifest, R_OK), 0, "%s", manifest);
    free(text);
    cr_expect(run_reach(&run, version_of(&run) + 2, PATIENCE), "it goes on");
    cr_expect_eq(ctl(&run, (const char *const[]){"+stop", NULL}, NULL), 0);
    cr_assert_eq(run_wait(pid, 30), 130);
    run_end(&run);
}

Test(live, a_drained_worker_leaves_and_every_row_is_trained_on_once, .timeout = 300)
{
    run_t run;
    run_begin(&run, "live-drain", &(run_shape_t){.sites = three});
    const pid_t pid =
        run_start(&run, "harmony-launch", "launch.log",
                  (const char *const[]){"train.tokens=640000", APART, "sync.mode=ssaw", NULL});
    cr_assert(run_reach(&run, 5, PATIENCE), "it trains");
    cr_expect_eq(ctl(&run, (const char *const[]){"+drain", "+here/nobody", NULL}, NULL), 2);
    const pid_t worker = run_find(&run, "--name w3");
    cr_assert_gt(worker, 0);
    cr_expect_eq(ctl(&run, (const char *const[]){"+drain", "+here/w3", NULL}, NULL), 0);
    const double until = rough_now() + PATIENCE;
    while (run_find(&run, "--name w3") > 0 && rough_now() < until) {
        rough_nap(0.05);
    }
    cr_expect_eq(run_find(&run, "--name w3"), 0, "its process ends");
    cr_expect_eq(ctl(&run, (const char *const[]){"+drain", "+w2", NULL}, NULL), 0);
    cr_expect_eq(ctl(&run, (const char *const[]){"+drain", "+w1", NULL}, NULL), 2,
                 "the last one has to stay");
    cr_expect_eq(run_wait(pid, 120), 0, "the rest finishes the run");
    cr_expect_eq(rough_summary(&run, "tokens"), 640000);
    cr_expect_eq(rough_summary(&run, "failures"), 0);
    run_end(&run);
}
