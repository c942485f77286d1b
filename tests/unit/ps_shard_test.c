// ps_shard_test - pushes, pulls and ends; and rounds in any order, with everything twice, which
// end in the same numbers to the bit.

#include "server/ps_shard.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "server/shard_jobs.h"
#include "tensor/hx_rng.h"
#include "tests/support/shard_world.h"
#include "tests/support/seed.h"

TestSuite(ps_shard, .init = set_up, .fini = tear_down);

// --- pushes ---

Test(ps_shard, a_part_is_acknowledged_when_it_is_held)
{
    load();
    push(7, own[1], 0, 2);
    cr_assert_null(sent(WIRE_ACK));
    cr_assert_eq(jobs[0].kind, SHARD_JOB_HOLD);
    cr_assert_eq(jobs[0].attempt, 7);
    cr_assert_eq(jobs[0].rows, 2);
    push(7, own[1], 0, 2);
    cr_assert_eq(jobs_count, 1, "the second is the first");
    end_job(HX_OK, 0, NULL);
    const step_send_t *ack = sent(WIRE_ACK);
    cr_assert_eq(ack->to, SEATS_WORKER);
    cr_assert_eq(ack->msg.block, own[1]);
    push(7, own[1], 0, 2);
    cr_assert_eq(jobs_count, 0);
    cr_assert_not_null(sent(WIRE_ACK), "again, at once");
    cr_assert_eq(ps_shard_info(shard).held_bytes, blocks.blocks[own[1]].count * sizeof(float));
}

Test(ps_shard, pushes_that_cannot_be_meant_are_dropped)
{
    load();
    uint32_t foreign = 0;
    while (plan.group_shard[blocks.blocks[foreign].group] == 0) {
        foreign++;
    }
    push(7, foreign, 0, 1);
    refused(1);
    blob_t *blob = bytes_of(own[0]);
    wire_msg_t msg = {.kind = WIRE_PUSH, .attempt = 7, .block = blocks.count, .parts = 1};
    tell(SEATS_WORKER, msg, blob);
    refused(2);
    msg.block = own[0];
    msg.parts = 3;
    tell(SEATS_WORKER, msg, blob);
    refused(3);
    msg.parts = 0;
    tell(SEATS_WORKER, msg, blob);
    refused(4);
    msg.parts = 2;
    msg.part = 2;
    tell(SEATS_WORKER, msg, blob);
    refused(5);
    msg.part = 0;
    tell(SEATS_WORKER, msg, NULL);
    refused(6);
    blob_release(&blob);
    push(7, own[0], 0, 2);
    end_job(HX_OK, 0, NULL);
    push(7, own[0], 0, 1);
    refused(7);
    tell(SEATS_WORKER, (wire_msg_t){.kind = WIRE_GRANT}, NULL);
    refused(8);
}

// Whoever is not in the plan, or computes nothing in it, has nothing to contribute.
Test(ps_shard, pushes_of_nodes_without_a_seat_are_dropped)
{
    load();
    blob_t *blob = bytes_of(own[0]);
    const wire_msg_t msg = {.kind = WIRE_PUSH, .attempt = 7, .block = own[0], .parts = 1};
    static const node_id_t strangers[] = {4711, SEATS_LEAD, SEATS_KEEPER, SEATS_SHARD + 1};
    for (uint32_t at = 0; at < HX_COUNT(strangers); at++) {
        tell(strangers[at], msg, blob);
        refused(at + 1);
        cr_assert_eq(jobs_count, 0);
    }
    tell(SEATS_WORKER, msg, blob);
    cr_assert_eq(jobs_count, 1);
    blob_release(&blob);
}

Test(ps_shard, a_damaged_part_is_not_acknowledged_and_may_come_again)
{
    load();
    push(7, own[0], 0, 1);
    end_job(HX_E_FORMAT, 0, NULL);
    refused(1);
    cr_assert_eq(ps_shard_info(shard).held_bytes, 0);
    push(7, own[0], 0, 1);
    end_job(HX_OK, 0, NULL);
    cr_assert_not_null(sent(WIRE_ACK));
}

Test(ps_shard, holds_no_more_than_its_limit)
{
    ps_shard_destroy(&shard);
    ps_shard_conf_t conf = conf_of(ME);
    conf.hold_limit = blocks.blocks[own[0]].count * sizeof(float);
    shard = ps_shard_new(&conf);
    load();
    push(7, own[0], 0, 1);
    end_job(HX_OK, 0, NULL);
    push(8, own[0], 0, 1);
    refused(1);
    cr_assert_not_null(strstr(out.notes[0].text, "the limit is"), "%s", out.notes[0].text);
    cr_assert_eq(ps_shard_info(shard).held_peak, conf.hold_limit);
}

// --- pulls ---

Test(ps_shard, a_pull_waits_for_its_version)
{
    load();
    pull(SEATS_WORKER, own[1], 0, 0, 0);
    cr_assert_eq(jobs[0].kind, SHARD_JOB_READ);
    blob_t *value = bytes_of(own[1]);
    end_job(HX_OK, 0, value);
    cr_assert_eq(sent(WIRE_VALUE)->to, SEATS_WORKER);
    cr_assert_eq(sent(WIRE_VALUE)->msg.version, 0);
    cr_assert_eq(sent(WIRE_VALUE)->blob, value);
    pull(SEATS_WORKER, own[1], 1, 0, 0);
    pull(SEATS_WORKER + 1, own[0], 2, 0, 0);
    cr_assert_eq(jobs_count, 0);
    cr_assert_eq(ps_shard_info(shard).parked, 2);
    run_round(1, 7, false);
    cr_assert_eq(jobs_count, 1);
    cr_assert_eq(jobs[0].index, own[1]);
    end_job(HX_OK, 0, value);
    cr_assert_eq(sent(WIRE_VALUE)->msg.version, 1);
    cr_assert_eq(ps_shard_info(shard).parked, 1);
    blob_release(&value);
}

Test(ps_shard, a_block_that_is_stepped_is_served_before_the_others_are)
{
    load();
    cr_assert_geq(own_count, 2);
    const uint64_t attempt = 7;
    hold_all(attempt);
    pull(SEATS_WORKER, own[0], 1, 0, 0);
    pull(SEATS_WORKER, own[own_count - 1], 1, 0, 0);
    prepare(1, 1, 1, 0, &attempt, 1, NULL, 0);
    end_sum();
    commit(1, 1, &attempt, 1, 0, false);
    cr_assert_lt(jobs_count, own_count + 1, "not all are asked for at once");
    cr_assert(end_of_kind(SHARD_JOB_STEP));
    cr_assert_eq(ps_shard_info(shard).version, 0, "it is not the shard's yet");
    cr_assert_eq(ps_shard_info(shard).parked, 1);
    blob_t *value = bytes_of(own[0]);
    pull(SEATS_WORKER, own[0], 0, 0, 1);
    cr_assert_not_null(sent(WIRE_NO_VALUE), "exactly the version before is gone for that block");
    pull(SEATS_WORKER, own[1], 0, 0, 0);
    while (jobs[0].kind != SHARD_JOB_READ) {
        end_job(HX_OK, 0, NULL);
    }
    end_job(HX_OK, 0, value);
    cr_assert_eq(sent(WIRE_VALUE)->msg.block, own[0]);
    cr_assert_eq(sent(WIRE_VALUE)->msg.version, 1);
    cr_assert_null(sent(WIRE_APPLIED));
    while (jobs[0].kind != SHARD_JOB_READ) {
        end_job(HX_OK, 0, NULL);
    }
    end_job(HX_OK, 0, value);
    cr_assert_eq(sent(WIRE_VALUE)->msg.version, 1, "it was stepped while the read waited");
    blob_release(&value);
}

Test(ps_shard, pulls_before_the_values_are_there_wait_unless_they_want_an_answer)
{
    pull(SEATS_WORKER, own[0], 0, 0, 0);
    cr_assert_null(sent(WIRE_NO_VALUE));
    pull(SEATS_WORKER, own[0], 0, 0, 2);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    join();
    drop_jobs();
    pull(SEATS_WORKER, own[0], 0, 0, 2);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    cr_assert_eq(ps_shard_info(shard).parked, 1);
}

Test(ps_shard, an_exact_version_is_current_pinned_coming_or_gone)
{
    load();
    run_round(1, 7, true);
    cr_assert_eq(ps_shard_info(shard).pinned, 1);
    run_round(2, 8, false);
    run_round(3, 9, false);
    pull(SEATS_WORKER, own[0], 1, 2, 1);
    cr_assert_eq(jobs[0].flags, SHARD_READ_EXACT);
    cr_assert_eq(jobs[0].part, 2);
    blob_t *value = bytes_of(own[0]);
    end_job(HX_OK, 0, value);
    blob_release(&value);
    cr_assert_eq(sent(WIRE_VALUE)->msg.version, 1);
    pull(SEATS_WORKER, own[0], 2, 0, 1);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    pull(SEATS_WORKER, own[0], 3, 0, 1);
    cr_assert_eq(jobs_count, 1);
    end_job(HX_E_ARG, 0, NULL);
    cr_assert_not_null(sent(WIRE_NO_VALUE), "it went while the job waited");
    pull(SEATS_WORKER, own[0], 4, 0, 1);
    cr_assert_eq(out.sends_count, 0);
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_UNPIN, .version = 2}, NULL);
    cr_assert_eq(jobs_count, 0);
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_UNPIN, .version = 1}, NULL);
    cr_assert_eq(end_job(HX_OK, 0, NULL).kind, SHARD_JOB_UNPIN);
    pull(SEATS_WORKER, own[0], 1, 0, 1);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
}

Test(ps_shard, what_is_not_here_is_said_to_be_so)
{
    load();
    pull(SEATS_WORKER, blocks.count, 0, 0, 0);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    pull(SEATS_WORKER, own[0], 0, 3, 0);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
}

// --- ends ---

Test(ps_shard, a_lost_lead_ends_it_and_a_lost_worker_does_not)
{
    load();
    pull(SEATS_WORKER, own[0], 5, 0, 0);
    step((step_in_t){.kind = STEP_LOST, .peer = SEATS_WORKER});
    cr_assert_not(out.stop);
    cr_assert_eq(ps_shard_info(shard).parked, 0);
    step((step_in_t){.kind = STEP_LOST, .peer = SEATS_KEEPER});
    cr_assert_not(out.stop);
    step((step_in_t){.kind = STEP_LOST, .peer = SEATS_LEAD});
    cr_assert_not(out.stop, "the scheduler may have the true reason");
    now += HX_SEC(11);
    step((step_in_t){.kind = STEP_TIMER});
    cr_assert(out.stop);
    cr_assert_eq(out.status, 1);
    cr_assert_not_null(strstr(out.reason, "east/lead0"), "%s", out.reason);
}

Test(ps_shard, stop_is_answered_and_obeyed)
{
    load();
    wire_msg_t msg = {.kind = WIRE_STOP, .count = 130};
    snprintf(msg.text, sizeof msg.text, "asked to");
    tell(NODE_SCHEDULER, msg, NULL);
    cr_assert_not_null(sent(WIRE_STOPPED));
    cr_assert(out.stop);
    cr_assert_eq(out.status, 130);
}

// --- any order, everything twice ---

// Real numbers behind the role: its jobs run on a store, at random moments.
typedef struct {
    shard_jobs_t *jobs;
    hx_rng_t rng;
    uint32_t acks;
    bool voted;
    bool applied;
} world_t;

static blob_t *gradient_of(uint64_t attempt, uint32_t block, uint32_t part)
{
    const uint64_t count = blocks.blocks[block].count;
    blob_t *const blob = blob_new(count * sizeof(float));
    hx_rng_normal_fill(attempt, block * 2 + part, 0, 0.01f, blob_edit(blob), count);
    return blob;
}

// The embedding is used by both stages.
static uint32_t parts_of(uint32_t block)
{
    return blocks.blocks[block].group == 0 ? 2 : 1;
}

static void read_answers(world_t *world)
{
    cr_assert_not(out.stop, "%s", out.reason);
    world->acks += sent(WIRE_ACK) != NULL;
    world->voted = world->voted || (sent(WIRE_VOTE) && sent(WIRE_VOTE)->msg.flags == 1);
    world->applied = world->applied || sent(WIRE_APPLIED) != NULL;
    cr_assert(!sent(WIRE_VOTE) || sent(WIRE_VOTE)->msg.flags == 1);
}

// Runs the oldest job for true.
static void run_job(world_t *world)
{
    if (jobs_count == 0) {
        return;
    }
    step_job_t job = jobs[0];
    jobs_count--;
    memmove(jobs, jobs + 1, jobs_count * sizeof *jobs);
    blob_t *result = NULL;
    const hx_err_t err = shard_jobs_run(world->jobs, &job, &result);
    blob_release(&job.blob);
    job.blob = NULL;
    step((step_in_t){.kind = STEP_JOB, .job = job, .error = err, .blob = result});
    blob_release(&result);
    read_answers(world);
}

static void run_some(world_t *world)
{
    for (uint64_t left = hx_rng_below(&world->rng, 3); left > 0; left--) {
        run_job(world);
    }
}

static void run_rest(world_t *world)
{
    while (jobs_count > 0) {
        run_job(world);
    }
}

static void push_real(world_t *world, uint64_t attempt, uint32_t block, uint32_t part)
{
    blob_t *blob = gradient_of(attempt, block, part);
    const wire_msg_t msg = {.kind = WIRE_PUSH,
                            .attempt = attempt,
                            .block = block,
                            .part = part,
                            .parts = parts_of(block),
                            .hash = XXH3_64bits(blob_data(blob), blob_size(blob))};
    const uint64_t times = 1 + hx_rng_below(&world->rng, 2);
    for (uint64_t turn = 0; turn < times; turn++) {
        tell(SEATS_WORKER, msg, blob);
        read_answers(world);
        run_some(world);
    }
    blob_release(&blob);
}

#define STORY_MEMBERS 3u
#define STORY_ROUNDS 4u

// All parts of all members of a round, in any order.
static void push_round(world_t *world, uint64_t version)
{
    uint32_t list[STORY_MEMBERS * 512];
    uint32_t count = 0;
    for (uint32_t member = 0; member < STORY_MEMBERS; member++) {
        for (uint32_t at = 0; at < own_count; at++) {
            for (uint32_t part = 0; part < parts_of(own[at]); part++) {
                list[count++] = member << 24 | part << 16 | own[at];
            }
        }
    }
    for (uint32_t at = count; at > 1; at--) {
        const uint32_t other = (uint32_t)hx_rng_below(&world->rng, at);
        const uint32_t swap = list[at - 1];
        list[at - 1] = list[other];
        list[other] = swap;
    }
    world->acks = 0;
    for (uint32_t at = 0; at < count; at++) {
        push_real(world, 10 * version + (list[at] >> 24), list[at] & 0xffff, list[at] >> 16 & 255);
    }
    run_rest(world);
    cr_assert_geq(world->acks, count, "each part was acknowledged");
}

static round_member_t *story_members(uint64_t version)
{
    static round_member_t members[STORY_MEMBERS];
    for (uint32_t at = 0; at < STORY_MEMBERS; at++) {
        members[at] = (round_member_t){.attempt = 10 * version + at, .factor = 1.0 / (2.0 + at)};
    }
    return members;
}

static void twice(world_t *world, const wire_msg_t *msg, blob_t *payload)
{
    for (uint32_t turn = 0; turn < 3; turn++) {
        tell(SEATS_LEAD, *msg, payload);
        read_answers(world);
        run_some(world);
    }
    run_rest(world);
}

static void story_round(world_t *world, uint64_t version)
{
    push_round(world, version);
    push_real(world, 10 * version + 9, own[0], 0);  // One that will be closed.
    uint64_t closed = 10 * version + 9;
    blob_t *payload = payload_prepare_encode(&(prepare_t){.members = story_members(version),
                                                          .members_count = STORY_MEMBERS,
                                                          .closed = &closed,
                                                          .closed_count = 1});
    world->voted = world->applied = false;
    twice(
        world,
        &(wire_msg_t){.kind = WIRE_PREPARE, .incarnation = 1, .round = version, .version = version},
        payload);
    cr_assert(world->voted);
    blob_release(&payload);
    payload = payload_record_encode(&(record_t){.version = version,
                                                .scale = 0.5,
                                                .rate = 0.01,
                                                .step = version,
                                                .floor = 10 * version,
                                                .members = story_members(version),
                                                .members_count = STORY_MEMBERS});
    twice(world, &(wire_msg_t){.kind = WIRE_COMMIT, .incarnation = 1, .version = version}, payload);
    cr_assert(world->applied);
    blob_release(&payload);
    push_real(world, 10 * version + 1, own[0], 0);  // One that is late.
    run_rest(world);
    cr_assert_eq(ps_shard_info(shard).held_bytes, 0);
}

static uint64_t digest_of(shard_jobs_t *on)
{
    uint64_t digest = 0;
    for (uint32_t at = 0; at < own_count * 3; at++) {
        step_job_t job = {.kind = SHARD_JOB_READ, .index = own[at / 3], .part = at % 3};
        blob_t *value = NULL;
        cr_assert_eq(shard_jobs_run(on, &job, &value), HX_OK);
        digest = XXH3_64bits_withSeed(blob_data(value), blob_size(value), digest);
        blob_release(&value);
    }
    return digest;
}

static shard_jobs_t *new_jobs(void)
{
    return shard_jobs_new(&(shard_jobs_conf_t){.model = model,
                                               .block_size = BLOCK_SIZE,
                                               .optim = optim_conf_default(OPTIM_ADAMW),
                                               .seed = 9,
                                               .threads = 1});
}

Test(ps_shard, any_order_and_everything_twice_give_the_same_bits)
{
    const uint64_t seed = seed_of("ps_shard any order");
    uint64_t first = 0;
    for (uint64_t turn = 0; turn < 8; turn++) {
        world_t world = {.jobs = new_jobs(), .rng = hx_rng_seed(seed + turn)};
        ps_shard_destroy(&shard);
        const ps_shard_conf_t conf = conf_of(ME);
        shard = ps_shard_new(&conf);
        join();
        run_rest(&world);
        for (uint64_t version = 1; version <= STORY_ROUNDS; version++) {
            story_round(&world, version);
        }
        cr_assert_eq(ps_shard_info(shard).version, STORY_ROUNDS);
        cr_assert_eq(ps_shard_info(shard).refused, 0);
        const uint64_t digest = digest_of(world.jobs);
        first = turn == 0 ? digest : first;
        cr_assert_eq(digest, first, "seed %" PRIu64, seed + turn);
        shard_jobs_destroy(&world.jobs);
    }
    shard_jobs_t *untouched = new_jobs();
    for (uint32_t at = 0; at < own_count; at++) {
        step_job_t job = {.kind = SHARD_JOB_INIT, .index = own[at]};
        blob_t *none = NULL;
        cr_assert_eq(shard_jobs_run(untouched, &job, &none), HX_OK);
    }
    cr_assert_neq(digest_of(untouched), first, "something was learned");
    shard_jobs_destroy(&untouched);
}
