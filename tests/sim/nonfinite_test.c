// Gradients that are not finite, in real numbers and virtual time: what one of them, or all, do to
// parameters and moments (nothing), and to the run.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "bench/sim_cluster.h"
#include "bench/sim_learn.h"
#include "server/shard_jobs.h"
#include "tensor/hx_rng.h"
#include "worker/worker_job.h"

#define CONTEXT 16u
#define ROWS 12u
#define WORKERS 3u
#define STEPS 12u
#define SEED 5u
#define LIMIT HX_SEC(100000)
#define SHARDS 2u
#define NODES_MAX 16u

typedef struct world world_t;

// What stands between a node and its real jobs.
typedef struct {
    world_t *world;
    sim_real_fn *run;
    void *jobs;
    uint64_t digest;  // Shards: of all their arrays, as they may be.
} between_t;

// Which gradients are spoiled: from the `first` up to before the `end` that workers give, each
// counted as a contribution's first block.
struct world {
    char path[64];
    data_t *data;
    sim_learn_t *learn;
    sim_real_t real;
    between_t shards[NODES_MAX];
    uint32_t shards_count;
    between_t workers[NODES_MAX];
    uint32_t workers_count;
    uint64_t first;
    uint64_t end;
    uint64_t contributions;
    uint64_t spoiled;
    uint64_t attempt;  // The newest that was counted.
    uint64_t looks;    // Times that a shard was found as it was.
    uint64_t changes;
    char trace[1 << 16];
};

// All arrays of all blocks of a shard.
static uint64_t digest_of(const between_t *shard, uint32_t blocks)
{
    uint64_t digest = 0;
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint32_t array = PS_WEIGHTS; array < PS_ARRAYS_COUNT; array++) {
            step_job_t read = {.kind = SHARD_JOB_READ, .index = block, .part = array};
            blob_t *value = NULL;
            if (shard->run(shard->jobs, &read, &value) == HX_OK && value) {
                digest = XXH3_64bits_withSeed(blob_data(value), blob_size(value), digest + 1);
            }
            blob_release(&value);
        }
    }
    return digest;
}

static hx_err_t run_shard(void *between, step_job_t *job, blob_t **result)
{
    between_t *const self = between;
    world_t *const world = self->world;
    const uint32_t kind = job->kind;
    const hx_err_t err = self->run(self->jobs, job, result);
    const uint64_t digest = digest_of(self, 64);
    if (kind == SHARD_JOB_INIT || kind == SHARD_JOB_LOAD || kind == SHARD_JOB_STEP ||
        kind == SHARD_JOB_APPLY) {
        world->changes += digest != self->digest;
        self->digest = digest;
    } else if (kind != SHARD_JOB_READ) {
        cr_assert_eq(digest, self->digest, "job %" PRIu32 " changed parameters or moments", kind);
        world->looks++;
    }
    return err;
}

static bool is_spoiled(world_t *world, uint64_t attempt)
{
    if (attempt != world->attempt) {
        world->attempt = attempt;
        world->contributions++;
    }
    return world->contributions > world->first && world->contributions <= world->end;
}

static hx_err_t run_worker(void *between, step_job_t *job, blob_t **result)
{
    between_t *const self = between;
    world_t *const world = self->world;
    const hx_err_t err = self->run(self->jobs, job, result);
    if (err == HX_OK && job->kind == WORKER_JOB_GRAD && is_spoiled(world, job->attempt)) {
        blob_t *bad = blob_copy(blob_data(*result), blob_size(*result));
        float *const values = blob_edit(bad);
        values[blob_size(bad) / sizeof(float) / 2] = world->spoiled % 2 == 0 ? NAN : -INFINITY;
        world->spoiled++;
        job->tokens = XXH3_64bits(blob_data(bad), blob_size(bad));
        blob_release(result);
        *result = bad;
    }
    return err;
}

static void stand_between(world_t *world, between_t *between, sim_work_t *work, sim_real_fn *run)
{
    *between = (between_t){.world = world, .run = work->run, .jobs = work->jobs};
    work->run = run;
    work->jobs = between;
}

static void give_shard(void *self, sim_work_t *work)
{
    world_t *const world = self;
    const sim_real_t *const real = sim_learn_real(world->learn);
    real->shard(real->self, work);
    cr_assert_lt(world->shards_count, NODES_MAX);
    stand_between(world, &world->shards[world->shards_count++], work, run_shard);
}

static void give_worker(void *self, sim_work_t *work)
{
    world_t *const world = self;
    const sim_real_t *const real = sim_learn_real(world->learn);
    real->worker(real->self, work);
    cr_assert_lt(world->workers_count, NODES_MAX);
    stand_between(world, &world->workers[world->workers_count++], work, run_worker);
}

static void note_version(void *self, double seconds, uint64_t tokens, uint64_t commits, bool last)
{
    const sim_real_t *const real = sim_learn_real(((world_t *)self)->learn);
    real->version(real->self, seconds, tokens, commits, last);
}

static model_conf_t small_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 1;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = CONTEXT;
    conf.vocab = 256;
    return conf;
}

static void open_data(world_t *world)
{
    snprintf(world->path, sizeof world->path, "/tmp/hx-nonfinite-test-XXXXXX");
    const int descriptor = mkstemp(world->path);
    cr_assert_geq(descriptor, 0);
    FILE *const file = fdopen(descriptor, "w");
    hx_rng_t rng = hx_rng_seed(3);
    for (uint32_t at = 0; at < 5000; at++) {
        fputs(hx_rng_below(&rng, 2) > 0 ? "abc " : "dce ", file);
    }
    cr_assert_eq(fclose(file), 0);
    hx_fault_t fault = {{0}};
    const data_conf_t conf = {.path = world->path, .valid = 0.1, .context = CONTEXT, .vocab = 256};
    cr_assert_eq(data_open(&conf, &world->data, &fault), HX_OK, "%s", fault.text);
}

static world_t *world_new(uint64_t first, uint64_t end)
{
    world_t *const self = hx_new(1, sizeof *self);
    self->first = first;
    self->end = end;
    open_data(self);
    self->learn = sim_learn_new(&(sim_learn_conf_t){.model = small_model(),
                                                    .block_size = SIM_BLOCK_SIZE,
                                                    .data = self->data,
                                                    .optim = optim_conf_default(OPTIM_ADAMW),
                                                    .seed = SEED,
                                                    .valid_rows = 16,
                                                    .valid_tokens = ROWS * CONTEXT});
    self->real = *sim_learn_real(self->learn);
    self->real.self = self;
    self->real.shard = give_shard;
    self->real.worker = give_worker;
    self->real.version = note_version;
    return self;
}

static void world_destroy(world_t **self_p)
{
    world_t *const self = *self_p;
    sim_learn_destroy(&self->learn);
    data_destroy(&self->data);
    unlink(self->path);
    free(self);
    *self_p = NULL;
}

static sim_report_t run(world_t *world, conf_mode_t mode)
{
    const sim_cluster_conf_t conf = {
        .net = {.seed = SEED,
                .latency_min = HX_MS(5),
                .latency_max = HX_MS(30),
                .bandwidth = 1e7,
                .dead_after = HX_SEC(60),
                .keep_trace = true,
                .trace_level = STEP_WARN},
        .model = small_model(),
        .ssaw = ssaw_preset(mode, ROWS, CONTEXT, 3),
        .servers = 1,
        .shards = SHARDS,
        .workers = WORKERS,
        .speeds = {1, 2, 3},
        .pipelines = WORKERS,
        .flops = 2e7,
        .hiccup_factor = 1,
        .phase_factor = 1,
        .sites = 1,
        .microbatch = 1,
        .tokens = (uint64_t)STEPS * ROWS * CONTEXT,
        .clip = 1,
        .real = &world->real,
        .schedule = {.lr = 0.003, .lr_final_ratio = 1},
    };
    sim_report_t report;
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    sim_cluster_run(cluster, LIMIT, &report);
    snprintf(world->trace, sizeof world->trace, "%s", sim_trace(sim_cluster_sim(cluster)));
    sim_cluster_destroy(&cluster);
    cr_assert_str_eq(report.broken, "");
    return report;
}

static double last_loss(const world_t *world)
{
    uint32_t count = 0;
    const sim_point_t *const points = sim_learn_points(world->learn, &count);
    return count > 0 ? points[count - 1].loss : (double)NAN;
}

// One contribution of some mode: its sender is named, it is counted, and training goes on to the
// end with every row, as if nothing had been.
static void one_is_spoiled(conf_mode_t mode)
{
    world_t *clean = world_new(0, 0);
    world_t *world = world_new(5, 6);
    const sim_report_t good = run(clean, mode);
    const sim_report_t report = run(world, mode);
    cr_expect_eq(report.status, 0, "%s", report.reason);
    cr_expect_gt(world->spoiled, 0);
    cr_expect_eq(report.dropped, good.dropped + 1, "one contribution, counted once");
    cr_expect_eq(report.rows, (uint64_t)STEPS * ROWS, "its rows went out again");
    const char *const line = strstr(world->trace, " from s0/w");
    cr_expect(line && strstr(line, " is not finite"), "the sender has a name:\n%s", world->trace);
    cr_expect_gt(world->looks, 100);
    cr_expect_gt(world->changes, 10, "and commits do change them");
    cr_expect_float_eq(last_loss(world), last_loss(clean), 0.2);
    world_destroy(&clean);
    world_destroy(&world);
}

Test(sim_nonfinite, one_contribution_changes_nothing_and_is_named, .timeout = 120)
{
    one_is_spoiled(CONF_MODE_BSP);
    one_is_spoiled(CONF_MODE_SSAW);
    one_is_spoiled(CONF_MODE_ASP);
}

// From some moment on all of them: nothing changes any more, and the run ends by its rule.
Test(sim_nonfinite, a_run_of_them_ends_training_with_everything_as_it_was, .timeout = 120)
{
    world_t *world = world_new(9, UINT64_MAX);
    const sim_report_t report = run(world, CONF_MODE_SSAW);
    cr_expect_eq(report.status, 1);
    cr_expect(strstr(report.reason, "30 contributions in a row were not finite"), "%s",
              report.reason);
    cr_expect_gt(report.commits, 0, "the good ones before");
    uint32_t refused = 0;
    for (const char *at = world->trace; (at = strstr(at, "gradients refused")); at++) {
        refused++;
    }
    // The last vote may have named one of each pipeline.
    cr_expect(refused >= 30 && refused < 30 + WORKERS, "%" PRIu32, refused);
    cr_expect_gt(last_loss(world), 0);
    cr_expect_lt(last_loss(world), 10, "what is kept is finite");
    world_destroy(&world);
}
