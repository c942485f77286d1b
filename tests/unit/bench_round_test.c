// bench_round: stand-ins for scheduler, lead and workers around a real shard's bookkeeping, in
// virtual time.

#include "bench/bench_round.h"

#include <criterion/criterion.h>
#include <stdio.h>

#include "bench/sim_jobs.h"

#define SHARDS 2u
#define WORKERS 2u
#define BLOCK_SIZE 4096u

// What the network saw.
typedef struct {
    uint64_t pushes, acks, pulls, values, prepares, commits, applied, refusals;
    uint64_t commit_version;
} seen_t;

typedef struct {
    model_t *model;
    blocks_t blocks;
    sim_t *sim;
    bench_boss_t boss;
    bench_lead_t lead;
    member_t keeper;
    ps_shard_t *shards[SHARDS];
    sim_work_t works[SHARDS];
    bench_worker_t workers[WORKERS];
    seen_t seen;
} world_t;

static void look(void *self, hx_time_t now, node_id_t from, const step_send_t *send)
{
    seen_t *const seen = self;
    (void)now;
    (void)from;
    switch (send->msg.kind) {
    case WIRE_PUSH:
        seen->pushes++;
        break;
    case WIRE_ACK:
        seen->acks++;
        break;
    case WIRE_PULL:
        seen->pulls++;
        break;
    case WIRE_VALUE:
        seen->values++;
        break;
    case WIRE_PREPARE:
        seen->prepares++;
        break;
    case WIRE_COMMIT:
        seen->commits++;
        seen->commit_version = send->msg.version;
        break;
    case WIRE_APPLIED:
        seen->applied++;
        break;
    case WIRE_CLOSED:
    case WIRE_NO_VALUE:
        seen->refusals++;
        break;
    default:
        break;
    }
}

static hx_err_t no_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                       hx_time_t *duration)
{
    (void)worker;
    (void)job;
    (void)result;
    (void)rng;
    *duration = 0;
    cr_assert_fail("a stand-in gave a job");
    return HX_OK;
}

// In the simulator any endpoint leads to its node.
static void seat(member_conf_t *conf)
{
    snprintf(conf->scheduler, sizeof conf->scheduler, "boss");
    snprintf(conf->control, sizeof conf->control, "control");
    snprintf(conf->data, sizeof conf->data, "data");
}

static void add_shards(world_t *world)
{
    for (uint32_t at = 0; at < SHARDS; at++) {
        const node_id_t id = BENCH_SHARD + at;
        ps_shard_conf_t conf = {
            .member = bench_boss_member(id, world->model), .block_size = BLOCK_SIZE, .arrays = 3};
        seat(&conf.member);
        world->shards[at] = ps_shard_new(&conf);
        world->works[at] = (sim_work_t){
            .model = world->model, .blocks = &world->blocks, .shard = world->shards[at]};
        sim_add(world->sim, "shard", id, ps_shard_step, world->shards[at], sim_shard_job,
                &world->works[at], HX_MS(at));
    }
}

static void open_model(world_t *world)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 5;
    conf.heads = 1;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 150;
    cr_assert_eq(model_open(&conf, &world->model, NULL), HX_OK);
    blocks_make(world->model, BLOCK_SIZE, &world->blocks);
}

static void set_up(world_t *world, bool apply)
{
    *world = (world_t){.seen = {0}};
    open_model(world);
    world->sim = sim_new(&(sim_conf_t){.seed = 1,
                                       .latency_min = HX_US(50),
                                       .latency_max = HX_MS(1),
                                       .dead_after = HX_SEC(9),
                                       .keep_trace = true,
                                       .trace_level = STEP_INFO});
    sim_look(world->sim, look, &world->seen);
    bench_boss_init(&world->boss, &(bench_boss_conf_t){world->model, SHARDS, WORKERS});
    sim_add(world->sim, "boss", NODE_SCHEDULER, bench_boss_step, &world->boss, no_job, NULL, 0);
    bench_lead_init(&world->lead, &(bench_lead_conf_t){.model = world->model,
                                                       .shards = SHARDS,
                                                       .workers = WORKERS,
                                                       .apply = apply,
                                                       .seconds = 1});
    seat(&world->lead.member.conf);
    sim_add(world->sim, "lead", BENCH_LEAD, bench_lead_step, &world->lead, no_job, NULL, 0);
    const member_conf_t keeper = bench_boss_member(BENCH_KEEPER, world->model);
    member_init(&world->keeper, &keeper);
    seat(&world->keeper.conf);
    sim_add(world->sim, "keeper", BENCH_KEEPER, bench_keeper_step, &world->keeper, no_job, NULL, 0);
    add_shards(world);
    for (uint32_t at = 0; at < WORKERS; at++) {
        bench_worker_init(&world->workers[at], &(bench_worker_conf_t){.model = world->model,
                                                                      .blocks = &world->blocks,
                                                                      .index = at,
                                                                      .in_flight = 3,
                                                                      .virtual_bytes = true});
        seat(&world->workers[at].member.conf);
        sim_add(world->sim, "worker", BENCH_WORKER + at, bench_worker_step, &world->workers[at],
                no_job, NULL, HX_MS(5));
    }
}

static void tear_down(world_t *world)
{
    sim_destroy(&world->sim);
    bench_boss_clear(&world->boss);
    bench_lead_clear(&world->lead);
    member_clear(&world->keeper);
    for (uint32_t at = 0; at < SHARDS; at++) {
        ps_shard_destroy(&world->shards[at]);
    }
    for (uint32_t at = 0; at < WORKERS; at++) {
        bench_worker_clear(&world->workers[at]);
    }
    blocks_destroy(&world->blocks);
    model_destroy(&world->model);
}

// Runs to the end and checks what holds with and without an optimizer.
static void run(world_t *world)
{
    const char *reason = NULL;
    cr_assert(sim_run(world->sim, HX_SEC(60)), "%s", sim_trace(world->sim));
    cr_assert_eq(sim_status(world->sim, NODE_SCHEDULER, &reason), 0, "%s", reason);
    cr_assert_eq(sim_undialled(world->sim), 0);
    const seen_t *const seen = &world->seen;
    const uint64_t rounds = world->lead.round;
    const uint64_t moved = rounds * WORKERS * world->blocks.count;
    cr_assert_geq(rounds, 10);
    cr_assert_eq(seen->pushes, moved);
    cr_assert_eq(seen->acks, moved);
    cr_assert_eq(seen->pulls, moved);
    cr_assert_eq(seen->values, moved);
    cr_assert_eq(seen->refusals, 0);
    cr_assert_eq(seen->commit_version, rounds);
    cr_assert_eq(seen->commits, rounds * SHARDS);
    cr_assert_eq(seen->applied, rounds * SHARDS);
    for (uint32_t at = 0; at < SHARDS; at++) {
        const ps_shard_info_t info = ps_shard_info(world->shards[at]);
        cr_assert_eq(info.version, rounds);
        cr_assert_eq(info.refused, 0);
        cr_assert_eq(info.attempts, 0, "nothing is held any more");
        cr_assert_eq(info.parked, 0);
    }
    const bench_rounds_t *const result = &world->lead.result;
    cr_assert_geq(result->seconds, 1.0);
    cr_assert_gt(result->rounds, 0);
    cr_assert_lt(result->rounds, rounds);
    cr_assert_gt(result->apply_seconds, 0);
    cr_assert_lt(result->vote_seconds + result->apply_seconds, result->seconds);
}

Test(bench_round, every_round_moves_all_blocks_both_ways_and_applies_them)
{
    world_t world;
    set_up(&world, true);
    run(&world);
    cr_assert_eq(world.seen.prepares, world.lead.round * SHARDS);
    cr_assert_gt(world.lead.result.vote_seconds, 0);
    tear_down(&world);
}

Test(bench_round, without_an_optimizer_what_was_pushed_is_dropped)
{
    world_t world;
    set_up(&world, false);
    run(&world);
    cr_assert_eq(world.seen.prepares, 0);
    tear_down(&world);
}

Test(bench_round, a_lost_shard_ends_it)
{
    world_t world;
    set_up(&world, true);
    sim_lose(world.sim, BENCH_SHARD, HX_MS(300));
    cr_assert(sim_run(world.sim, HX_SEC(60)));
    cr_assert_eq(sim_status(world.sim, NODE_SCHEDULER, NULL), 1);
    tear_down(&world);
}
