// keeper_test - the keeper's conversations: serving a source, saving a version, and what can go
// wrong.

#include "server/keeper.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/payload.h"
#include "tensor/hx_rng.h"
#include "tests/support/seats.h"
#include "tests/support/seed.h"

#define JOBS_MAX 8192u

static model_t *model;
static blocks_t blocks;
static plan_t plan;
static keeper_t *keeper;
static step_out_t out;
static hx_time_t now;

// Jobs that were given and have not ended; PULLs to shards that were not answered.
static step_job_t jobs[JOBS_MAX];
static uint32_t jobs_count;
static step_send_t pulls[JOBS_MAX];
static uint32_t pulls_count;

static keeper_t *new_keeper(node_id_t id)
{
    return keeper_new(&(keeper_conf_t){.member = {.id = id,
                                                  .role = PLAN_KEEPER,
                                                  .run = "r",
                                                  .name = "east/keeper0",
                                                  .scheduler = "there",
                                                  .join_timeout = HX_SEC(60),
                                                  .model = model},
                                       .block_size = 4096,
                                       .arrays = 3});
}

static void set_up(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 3;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 150;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    blocks_make(model, 4096, &blocks);
    plan = seats_plan(&(seats_conf_t){.stages = 2,
                                      .ends = {2, 5},
                                      .rows = 4,
                                      .microbatch = 2,
                                      .schedule = SCHEDULE_1F1B,
                                      .shards = 3},
                      model);
    out = (step_out_t){.wake_at = HX_TIME_NEVER};
    jobs_count = pulls_count = 0;
    now = HX_SEC(1);
    keeper = new_keeper(SEATS_KEEPER);
}

static void tear_down(void)
{
    for (uint32_t at = 0; at < jobs_count; at++) {
        blob_release(&jobs[at].blob);
    }
    keeper_destroy(&keeper);
    cr_assert_null(keeper);
    step_out_destroy(&out);
    plan_destroy(&plan);
    blocks_destroy(&blocks);
    model_destroy(&model);
}

TestSuite(keeper, .init = set_up, .fini = tear_down);

static void step(step_in_t in)
{
    step_out_clear(&out);
    in.now = now;
    keeper_step(keeper, &in, &out);
    for (uint32_t at = 0; at < out.jobs_count; at++) {
        cr_assert_lt(jobs_count, JOBS_MAX);
        jobs[jobs_count] = out.jobs[at];
        jobs[jobs_count++].blob = blob_retain(out.jobs[at].blob);
    }
    for (uint32_t at = 0; at < out.sends_count; at++) {
        if (out.sends[at].msg.kind == WIRE_PULL) {
            cr_assert_lt(pulls_count, JOBS_MAX);
            pulls[pulls_count++] = out.sends[at];
        }
    }
}

static void tell(node_id_t peer, wire_msg_t msg, blob_t *blob)
{
    step((step_in_t){.kind = STEP_MESSAGE, .peer = peer, .msg = msg, .blob = blob});
}

static step_job_t end_job(hx_err_t error, const char *line, blob_t *result)
{
    cr_assert_gt(jobs_count, 0);
    step_job_t job = jobs[0];
    jobs_count--;
    memmove(jobs, jobs + 1, jobs_count * sizeof *jobs);
    blob_release(&job.blob);
    blob_t *text = line ? blob_copy(line, strlen(line)) : NULL;
    step((step_in_t){.kind = STEP_JOB, .job = job, .error = error, .blob = line ? text : result});
    blob_release(&text);
    return job;
}

static const step_send_t *sent(wire_kind_t kind)
{
    const step_send_t *found = NULL;
    for (uint32_t at = 0; at < out.sends_count; at++) {
        if (out.sends[at].msg.kind == kind) {
            cr_assert_null(found, "two of %s", wire_kind_name(kind));
            found = &out.sends[at];
        }
    }
    return found;
}

static void join(void)
{
    step((step_in_t){.kind = STEP_START});
    tell(NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    blob_t *payload = payload_plan_encode(&plan);
    tell(NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = plan.epoch}, payload);
    blob_release(&payload);
}

static void open_fresh(void)
{
    join();
    cr_assert_eq(jobs[0].flags, 0);
    cr_assert_eq(end_job(HX_OK, NULL, NULL).kind, KEEPER_JOB_OPEN);
}

static void save(uint64_t version)
{
    blob_t *record = payload_record_encode(&(record_t){.version = version});
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_SAVE, .version = version}, record);
    blob_release(&record);
}

// Answers the `at`th open pull.
static void answer(uint32_t at)
{
    const step_send_t pull = pulls[at];
    pulls_count--;
    memmove(&pulls[at], &pulls[at + 1], (pulls_count - at) * sizeof *pulls);
    blob_t *blob = blob_virtual(blocks.blocks[pull.msg.block].count * sizeof(float));
    tell(pull.to,
         (wire_msg_t){.kind = WIRE_VALUE,
                      .block = pull.msg.block,
                      .part = pull.msg.part,
                      .version = pull.msg.version},
         blob);
    blob_release(&blob);
}

static void refused(uint64_t count)
{
    cr_assert_eq(keeper_info(keeper).refused, count);
    cr_assert_eq(out.sends_count, 0);
    cr_assert_eq(out.jobs_count, 0);
    cr_assert_not(out.stop);
}

// --- the source ---

Test(keeper, without_a_source_it_is_ready_when_the_folder_is_its_own)
{
    join();
    cr_assert_null(sent(WIRE_PLAN_ACK));
    cr_assert_eq(out.dials_count, 1);
    cr_assert_eq(out.dials[0].peer, SEATS_LEAD);
    cr_assert_eq(end_job(HX_OK, NULL, NULL).kind, KEEPER_JOB_OPEN);
    cr_assert_eq(sent(WIRE_PLAN_ACK)->to, SEATS_LEAD);
    cr_assert_null(sent(WIRE_RESUME));
    tell(SEATS_SHARD, (wire_msg_t){.kind = WIRE_PULL, .flags = 1}, NULL);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
}

Test(keeper, a_folder_that_cannot_be_had_ends_it_with_the_line)
{
    join();
    end_job(HX_E_PEER, "runs/one: process 12 has it", NULL);
    cr_assert_not(out.stop, "the scheduler ends the whole run");
    cr_assert_eq(sent(WIRE_STOP_ASK)->to, NODE_SCHEDULER);
    cr_assert_eq(sent(WIRE_STOP_ASK)->msg.count, 1);
    cr_assert_str_eq(sent(WIRE_STOP_ASK)->msg.text, "runs/one: process 12 has it");
    now += HX_SEC(11);
    step((step_in_t){.kind = STEP_TIMER});
    cr_assert(out.stop, "or does not");
    cr_assert_eq(out.status, 1);
    cr_assert_str_eq(out.reason, "runs/one: process 12 has it");
}

Test(keeper, a_failure_without_a_line_is_named)
{
    join();
    end_job(HX_E_NOMEM, NULL, NULL);
    cr_assert_str_eq(sent(WIRE_STOP_ASK)->msg.text, hx_strerror(HX_E_NOMEM));
}

static void pull(uint32_t block, uint32_t part, uint64_t version)
{
    tell(SEATS_SHARD,
         (wire_msg_t){
             .kind = WIRE_PULL, .block = block, .part = part, .version = version, .flags = 1},
         NULL);
}

Test(keeper, resuming_tells_the_lead_and_serves_the_shards)
{
    plan.resume = 9;
    join();
    cr_assert_eq(jobs[0].flags, KEEPER_OPEN_RESUME);
    cr_assert_eq(jobs[0].version, 9);
    pull(2, 1, 9);
    cr_assert_eq(out.sends_count + out.jobs_count, 0, "it is not open yet");
    blob_t *record = payload_record_encode(&(record_t){.version = 9});
    end_job(HX_OK, NULL, record);
    cr_assert_eq(sent(WIRE_RESUME)->to, SEATS_LEAD);
    cr_assert_eq(sent(WIRE_RESUME)->msg.version, 9);
    cr_assert_eq(sent(WIRE_RESUME)->blob, record);
    cr_assert_eq(sent(WIRE_PLAN_ACK)->msg.version, 9);
    cr_assert_eq(jobs_count, 1);
    cr_assert_eq(jobs[0].index, 2);
    cr_assert_eq(jobs[0].part, 1);
    cr_assert_eq(end_job(HX_OK, NULL, record).kind, KEEPER_JOB_READ);
    cr_assert_eq(sent(WIRE_VALUE)->to, SEATS_SHARD);
    cr_assert_eq(sent(WIRE_VALUE)->msg.version, 9);
    cr_assert_eq(sent(WIRE_VALUE)->blob, record);
    blob_release(&record);
    pull(2, 3, 9);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    pull(blocks.count, 0, 9);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    pull(2, 0, 8);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    pull(3, 2, 9);
    end_job(HX_E_IO, "the disk is broken", NULL);
    cr_assert_str_eq(sent(WIRE_NO_VALUE)->msg.text, "the disk is broken");
}

Test(keeper, an_init_file_has_weights_alone)
{
    plan.init_file = true;
    join();
    cr_assert_eq(jobs[0].flags, KEEPER_OPEN_INIT);
    end_job(HX_OK, NULL, NULL);
    cr_assert_eq(sent(WIRE_PLAN_ACK)->msg.version, 0);
    pull(0, 1, 0);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    pull(0, 0, 0);
    cr_assert_eq(jobs_count, 1);
}

Test(keeper, another_one_is_idle)
{
    keeper_destroy(&keeper);
    keeper = new_keeper(12);
    pull(0, 0, 0);
    cr_assert_null(sent(WIRE_NO_VALUE), "it may yet be chosen");
    join();
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    cr_assert_eq(jobs_count, 0);
    cr_assert_eq(out.dials_count, 0);
    pull(0, 0, 0);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    save(1);
    refused(1);
}

Test(keeper, a_later_plan_is_acknowledged)
{
    open_fresh();
    plan.epoch = 2;
    blob_t *payload = payload_plan_encode(&plan);
    tell(NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = 2}, payload);
    blob_release(&payload);
    cr_assert_eq(sent(WIRE_PLAN_ACK)->msg.epoch, 2);
    cr_assert_eq(jobs_count, 0);
}

// --- saving ---

Test(keeper, saves_every_array_of_every_block_with_few_in_flight)
{
    hx_rng_t rng = hx_rng_seed(seed_of("keeper saves"));
    open_fresh();
    save(5);
    cr_assert_eq(jobs[0].kind, KEEPER_JOB_BEGIN);
    cr_assert_eq(jobs[0].version, 5);
    uint32_t written = 0;
    bool *const seen = hx_new((size_t)blocks.count * 3, sizeof *seen);
    while (pulls_count > 0 || jobs_count > 0) {
        cr_assert_leq(keeper_info(keeper).in_flight, KEEPER_PULLS_IN_FLIGHT);
        if (pulls_count > 0 && (jobs_count == 0 || hx_rng_below(&rng, 2))) {
            const uint32_t at = (uint32_t)hx_rng_below(&rng, pulls_count);
            const uint32_t group = blocks.blocks[pulls[at].msg.block].group;
            cr_assert_eq(pulls[at].to, SEATS_SHARD + group % 3);
            cr_assert_eq(pulls[at].msg.version, 5);
            cr_assert(pulls[at].msg.flags & 1, "exactly");
            answer(at);
            continue;
        }
        const step_job_t job = end_job(HX_OK, NULL, NULL);
        if (job.kind == KEEPER_JOB_WRITE) {
            bool *const item = &seen[job.index * 3 + job.part];
            cr_assert_not(*item);
            *item = true;
            written++;
        } else if (job.kind == KEEPER_JOB_FINISH) {
            cr_assert_eq(written, blocks.count * 3);
            cr_assert_eq(sent(WIRE_SAVED)->msg.version, 5);
            cr_assert_eq(sent(WIRE_SAVED)->msg.flags, 1);
        }
    }
    cr_assert_eq(written, blocks.count * 3);
    free(seen);
    const keeper_info_t info = keeper_info(keeper);
    cr_assert_eq(info.saved, 1);
    cr_assert_not(info.saving);
    save(5);
    cr_assert_eq(sent(WIRE_SAVED)->msg.flags, 1, "the same answer again");
    cr_assert_eq(jobs_count, 0);
}

// Answers all pulls and ends all jobs but FINISH; returns how many arrays were written.
static uint32_t write_all(void)
{
    uint32_t written = 0;
    while (pulls_count > 0) {
        answer(0);
        while (jobs_count > 0 && jobs[0].kind != KEEPER_JOB_FINISH) {
            written += end_job(HX_OK, NULL, NULL).kind == KEEPER_JOB_WRITE;
        }
    }
    return written;
}

// The last step gave the save up: said so, cleaned up, and is ready for the next.
static void gave_up(uint64_t version, const char *part)
{
    const step_send_t *const answered = sent(WIRE_SAVED);
    cr_assert_not_null(answered);
    cr_assert_eq(answered->to, SEATS_LEAD);
    cr_assert_eq(answered->msg.version, version);
    cr_assert_eq(answered->msg.flags, 0);
    cr_assert_not_null(strstr(answered->msg.text, part), "%s", answered->msg.text);
    cr_assert_eq(jobs[jobs_count - 1].kind, KEEPER_JOB_ABORT);
    cr_assert_eq(out.notes[0].level, STEP_ERROR);
    cr_assert_not(out.stop);
    cr_assert_not(keeper_info(keeper).saving);
    while (pulls_count > 0) {
        answer(0);
        cr_assert_eq(out.jobs_count, 0, "it comes too late");
    }
    uint32_t old = 0;
    for (uint32_t at = 0; at < jobs_count; at++) {
        old += jobs[at].kind == KEEPER_JOB_WRITE;
    }
    save(version);  // Asked again, it is tried again, and jobs of before do not count.
    cr_assert_null(sent(WIRE_SAVED));
    cr_assert_eq(write_all(), old + blocks.count * 3);
    cr_assert_eq(end_job(HX_OK, NULL, NULL).kind, KEEPER_JOB_FINISH);
    cr_assert_eq(sent(WIRE_SAVED)->msg.flags, 1);
    cr_assert_eq(keeper_info(keeper).failed, 1);
    cr_assert_eq(keeper_info(keeper).saved, 1);
}

Test(keeper, a_save_that_cannot_begin_is_given_up)
{
    open_fresh();
    save(5);
    end_job(HX_E_IO, "the folder cannot be made", NULL);
    gave_up(5, "the folder cannot be made");
}

Test(keeper, a_full_disk_gives_the_save_up)
{
    open_fresh();
    save(5);
    end_job(HX_OK, NULL, NULL);
    answer(3);
    answer(2);
    end_job(HX_E_NOSPC, "no space left", NULL);
    gave_up(5, "no space left");
}

Test(keeper, a_save_that_cannot_be_finished_is_given_up)
{
    open_fresh();
    save(5);
    write_all();
    cr_assert_eq(jobs[0].kind, KEEPER_JOB_FINISH);
    end_job(HX_E_IO, NULL, NULL);
    gave_up(5, hx_strerror(HX_E_IO));
}

Test(keeper, a_shard_without_the_version_gives_the_save_up)
{
    open_fresh();
    save(5);
    wire_msg_t msg = {.kind = WIRE_NO_VALUE,
                      .block = pulls[0].msg.block,
                      .part = pulls[0].msg.part,
                      .version = 5};
    snprintf(msg.text, sizeof msg.text, "that version is gone");
    tell(pulls[0].to, msg, NULL);
    gave_up(5, "that version is gone");
}

Test(keeper, a_lost_shard_gives_the_save_up)
{
    open_fresh();
    save(5);
    step((step_in_t){.kind = STEP_LOST, .peer = SEATS_WORKER});
    cr_assert(keeper_info(keeper).saving);
    step((step_in_t){.kind = STEP_LOST, .peer = SEATS_SHARD + 1});
    gave_up(5, "east/shard1");
}

Test(keeper, what_does_not_fit_a_save_is_dropped)
{
    open_fresh();
    save(5);
    end_job(HX_OK, NULL, NULL);
    blob_t *blob = blob_virtual(blocks.blocks[pulls[0].msg.block].count * sizeof(float));
    wire_msg_t msg = {
        .kind = WIRE_VALUE, .block = pulls[0].msg.block, .part = pulls[0].msg.part, .version = 5};
    tell(SEATS_WORKER, msg, blob);
    refused(1);
    tell(pulls[0].to, msg, NULL);
    refused(2);
    msg.part = 3;
    tell(pulls[0].to, msg, blob);
    refused(3);
    msg.part = 0;
    msg.block = blocks.count;
    tell(pulls[0].to, msg, blob);
    refused(4);
    blob_release(&blob);
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_GRANT}, NULL);
    refused(5);
    save(6);
    cr_assert_eq(keeper_info(keeper).refused, 6);
    cr_assert_eq(sent(WIRE_SAVED)->msg.version, 6, "who waits is answered");
    cr_assert_eq(sent(WIRE_SAVED)->msg.flags, 0);
    cr_assert_eq(out.jobs_count, 0);
    blob_t *record = payload_record_encode(&(record_t){.version = 7});
    tell(SEATS_WORKER, (wire_msg_t){.kind = WIRE_SAVE, .version = 7}, record);
    blob_release(&record);
    refused(7);
    answer(0);
    cr_assert_eq(jobs_count, 1);
}

Test(keeper, says_every_five_seconds_what_a_save_waits_for)
{
    open_fresh();
    save(5);
    cr_assert_leq(out.wake_at, now + HX_SEC(5));
    now += HX_SEC(6);
    step((step_in_t){.kind = STEP_TIMER});
    bool said = false;
    for (uint32_t at = 0; at < out.notes_count; at++) {
        said = said || strstr(out.notes[at].text, "waiting for east/shard0");
    }
    cr_assert(said);
}

Test(keeper, ends_when_it_is_told_to_or_when_the_lead_is_gone)
{
    open_fresh();
    step((step_in_t){.kind = STEP_LOST, .peer = SEATS_LEAD});
    cr_assert_not(out.stop, "the scheduler may have the true reason");
    wire_msg_t msg = {.kind = WIRE_STOP, .count = 1};
    snprintf(msg.text, sizeof msg.text, "the lead is gone");
    tell(NODE_SCHEDULER, msg, NULL);
    cr_assert_not_null(sent(WIRE_STOPPED));
    cr_assert(out.stop);
    cr_assert_eq(out.status, 1);
}
