// ps_shard_load_test - where the first values come from, and what is not taken for one.

#include "server/ps_shard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/shard_world.h"

TestSuite(ps_shard_load, .init = set_up, .fini = tear_down);

// --- first values ---

// It cannot go on: the scheduler is told, and until it says STOP nothing else happens.
static void asks_to_end(const char *why)
{
    cr_assert_not(out.stop);
    cr_assert_eq(sent(WIRE_STOP_ASK)->to, NODE_SCHEDULER);
    cr_assert_eq(sent(WIRE_STOP_ASK)->msg.count, 1);
    cr_assert_not_null(strstr(sent(WIRE_STOP_ASK)->msg.text, why));
    pull(SEATS_WORKER, own[0], 0, 0, 2);
    cr_assert_eq(out.sends_count + out.jobs_count, 0);
    wire_msg_t msg = {.kind = WIRE_STOP, .count = 1};
    snprintf(msg.text, sizeof msg.text, "a shard cannot go on");
    tell(NODE_SCHEDULER, msg, NULL);
    cr_assert(out.stop);
    cr_assert_eq(out.status, 1);
}

Test(ps_shard_load, draws_its_own_blocks_and_says_that_it_is_ready)
{
    join();
    cr_assert_eq(out.dials_count, 2);
    cr_assert_eq(jobs_count, own_count);
    for (uint32_t at = 0; at < own_count; at++) {
        cr_assert_eq(jobs[at].kind, SHARD_JOB_INIT);
        cr_assert_eq(jobs[at].index, own[at]);
    }
    cr_assert_null(sent(WIRE_PLAN_ACK));
    end_all(SHARD_JOB_INIT);
    const step_send_t *const ack = sent(WIRE_PLAN_ACK);
    cr_assert_eq(ack->to, SEATS_LEAD);
    cr_assert_eq(ack->msg.version, 0);
    cr_assert_eq(ack->msg.epoch, 1);
    cr_assert_eq(ps_shard_info(shard).blocks, own_count);
}

static void answer_loads(uint32_t arrays, uint64_t version)
{
    uint32_t asked = 0;
    uint32_t loaded = 0;
    uint32_t queue[4096];
    bool acknowledged = false;
    while (loaded < own_count * arrays) {
        for (uint32_t at = 0; at < out.sends_count; at++) {
            const step_send_t *const send = &out.sends[at];
            if (send->msg.kind == WIRE_PULL) {
                cr_assert_eq(send->to, SEATS_KEEPER);
                cr_assert_eq(send->msg.version, version);
                cr_assert(send->msg.flags & 1);
                cr_assert_lt(send->msg.part, arrays);
                queue[asked++] = send->msg.block * 4 + send->msg.part;
            }
        }
        cr_assert_leq(asked - loaded, PS_LOADS_IN_FLIGHT);
        blob_t *blob = bytes_of(queue[loaded] / 4);
        const wire_msg_t value = {.kind = WIRE_VALUE,
                                  .block = queue[loaded] / 4,
                                  .part = queue[loaded] % 4,
                                  .version = version};
        tell(SEATS_KEEPER, value, blob);
        cr_assert_eq(jobs_count, 1);
        cr_assert_eq(jobs[0].version, version);
        cr_assert_not(acknowledged);
        cr_assert_eq(end_job(HX_OK, 0, NULL).kind, SHARD_JOB_LOAD);
        acknowledged = sent(WIRE_PLAN_ACK) != NULL;
        loaded++;
        blob_release(&blob);
    }
    cr_assert(acknowledged);
    cr_assert_eq(asked, own_count * arrays);
    cr_assert_eq(sent(WIRE_PLAN_ACK)->msg.version, version);
}

Test(ps_shard_load, resuming_pulls_all_arrays_from_the_keeper)
{
    plan.resume = 41;
    join();
    answer_loads(3, 41);
    cr_assert_eq(ps_shard_info(shard).version, 41);
}

Test(ps_shard_load, an_init_file_gives_weights_alone)
{
    plan.init_file = true;
    join();
    answer_loads(1, 0);
}

Test(ps_shard_load, values_that_were_not_asked_for_are_dropped)
{
    plan.resume = 41;
    join();
    blob_t *blob = bytes_of(own[0]);
    wire_msg_t value = {.kind = WIRE_VALUE, .block = own[0], .version = 41};
    tell(SEATS_WORKER, value, blob);
    refused(1);
    value.version = 40;
    tell(SEATS_KEEPER, value, blob);
    refused(2);
    value.version = 41;
    value.block = blocks.count;
    tell(SEATS_KEEPER, value, blob);
    refused(3);
    value.block = own[0];
    value.part = 3;
    tell(SEATS_KEEPER, value, blob);
    refused(4);
    value.part = 0;
    tell(SEATS_KEEPER, value, NULL);
    refused(5);
    tell(SEATS_KEEPER, value, blob);
    cr_assert_eq(jobs_count, 1);
    tell(SEATS_KEEPER, value, blob);
    refused(6);
    blob_release(&blob);
}

Test(ps_shard_load, a_keeper_that_has_no_value_ends_it_with_the_reason)
{
    plan.resume = 41;
    join();
    wire_msg_t value = {.kind = WIRE_NO_VALUE, .block = own[0], .version = 41};
    snprintf(value.text, sizeof value.text, "the disk is broken");
    tell(SEATS_KEEPER, value, NULL);
    asks_to_end("the disk is broken");
}

Test(ps_shard_load, says_every_five_seconds_what_it_waits_for)
{
    plan.resume = 41;
    join();
    const hx_time_t asked = out.wake_at;
    cr_assert_leq(asked, now + HX_SEC(5));
    now += HX_SEC(6);
    step((step_in_t){.kind = STEP_TIMER});
    cr_assert_gt(out.notes_count, 0);
    cr_assert_not_null(strstr(out.notes[0].text, "waiting for the keeper"), "%s",
                       out.notes[0].text);
}

Test(ps_shard_load, a_plan_without_it_leaves_it_idle)
{
    ps_shard_destroy(&shard);
    const ps_shard_conf_t conf = conf_of(999);
    shard = ps_shard_new(&conf);
    join();
    cr_assert_eq(jobs_count, 0);
    cr_assert_eq(out.dials_count, 0);
    pull(SEATS_WORKER, 0, 0, 0, 0);
    cr_assert_not_null(sent(WIRE_NO_VALUE));
    push(5, 0, 0, 1);
    refused(1);
}

Test(ps_shard_load, a_later_plan_is_acknowledged_with_the_own_version)
{
    load();
    run_round(1, 7, false);
    plan.epoch = 2;
    tell_plan();
    cr_assert_eq(sent(WIRE_PLAN_ACK)->msg.epoch, 2);
    cr_assert_eq(sent(WIRE_PLAN_ACK)->msg.version, 1);
    cr_assert_eq(jobs_count, 0);
    plan.epoch = 3;
    plan.group_shard[0] = 1;
    tell_plan();
    cr_assert(out.stop);
    cr_assert_not_null(strstr(out.reason, "moves parameters"), "%s", out.reason);
}

Test(ps_shard_load, a_job_that_fails_ends_it)
{
    join();
    end_job(HX_E_NOMEM, 0, NULL);
    asks_to_end(hx_strerror(HX_E_NOMEM));
}
