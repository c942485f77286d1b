// ps_shard_round_test - promise, prepare, vote, commit, apply: once, twice, late, and what is
// refused.

#include "server/ps_shard.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/shard_world.h"

TestSuite(ps_shard_round, .init = set_up, .fini = tear_down);

// --- rounds ---

Test(ps_shard_round, promises_and_tells_its_version)
{
    load();
    const wire_msg_t promise = {.kind = WIRE_PROMISE, .incarnation = 4};
    tell(SEATS_LEAD, promise, NULL);
    cr_assert_eq(sent(WIRE_PROMISED)->msg.incarnation, 4);
    cr_assert_eq(sent(WIRE_PROMISED)->msg.version, 0);
    cr_assert_null(sent(WIRE_PROMISED)->blob);
    tell(SEATS_LEAD, promise, NULL);
    cr_assert_not_null(sent(WIRE_PROMISED), "twice is once");
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_PROMISE, .incarnation = 3}, NULL);
    refused(1);
    const uint64_t attempt = 7;
    hold_all(attempt);
    prepare(3, 1, 1, 0, &attempt, 1, NULL, 0);
    refused(2);
    commit(3, 1, &attempt, 1, 0, false);
    refused(3);
}

Test(ps_shard_round, a_promise_during_a_step_is_answered_with_the_new_version)
{
    load();
    const uint64_t attempt = 7;
    hold_all(attempt);
    commit(1, 1, &attempt, 1, 0, false);
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_PROMISE, .incarnation = 2}, NULL);
    cr_assert_null(sent(WIRE_PROMISED));
    end_apply();
    cr_assert_eq(sent(WIRE_PROMISED)->msg.version, 1);
    record_t record = {0};
    cr_assert_eq(payload_record_decode(sent(WIRE_PROMISED)->blob, &record), HX_OK);
    cr_assert_eq(record.version, 1);
    record_destroy(&record);
}

Test(ps_shard_round, a_round_goes_from_prepare_to_applied)
{
    load();
    const uint64_t attempts[] = {7, 8};
    hold_all(7);
    hold_all(8);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    cr_assert_eq(jobs_count, 1);
    cr_assert_eq(jobs[0].kind, SHARD_JOB_SUM);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    cr_assert_eq(jobs_count, 1, "it is being summed");
    cr_assert_eq(out.sends_count, 0);
    end_sum();
    const step_send_t *const vote = sent(WIRE_VOTE);
    cr_assert_eq(vote->msg.flags, 1);
    cr_assert_eq(vote->msg.version, 1);
    cr_assert_eq(vote->msg.round, 1);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    cr_assert_eq(jobs_count, 0);
    cr_assert_eq(sent(WIRE_VOTE)->msg.flags, 1, "the same answer again");
    cr_assert_eq(blob_size(sent(WIRE_VOTE)->blob), 10, "one double");
    commit(1, 1, attempts, 2, 0, false);
    cr_assert_eq(jobs[0].kind, SHARD_JOB_STEP);
    const uint32_t steps = jobs_count;
    commit(1, 1, attempts, 2, 0, false);
    cr_assert_eq(jobs_count, steps);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    cr_assert_eq(jobs_count, steps);
    end_apply();
    cr_assert_eq(sent(WIRE_APPLIED)->msg.version, 1);
    cr_assert_eq(jobs_count, 0, "the step freed the members");
    commit(1, 1, attempts, 2, 0, false);
    cr_assert_eq(sent(WIRE_APPLIED)->msg.version, 1);
    cr_assert_eq(jobs_count, 0);
    cr_assert_eq(ps_shard_info(shard).attempts, 0);
    push(7, own[0], 0, 1);
    cr_assert_eq(sent(WIRE_CLOSED)->msg.attempt, 7);
}

static void votes_no(const uint64_t *wanted, uint32_t wanted_count)
{
    const step_send_t *const vote = sent(WIRE_VOTE);
    cr_assert_not_null(vote);
    cr_assert_eq(vote->msg.flags, 0);
    uint64_t *attempts = NULL;
    uint32_t count = 0;
    cr_assert_eq(payload_attempts_decode(vote->blob, &attempts, &count), HX_OK);
    cr_assert_eq(count, wanted_count);
    cr_assert_arr_eq(attempts, wanted, count * sizeof *attempts);
    free(attempts);
}

Test(ps_shard_round, votes_no_for_what_is_missing_or_not_finite)
{
    load();
    const uint64_t attempts[] = {5, 7, 8, 9};
    hold_all(7);
    push(8, own[0], 0, 1);
    end_job(HX_OK, 0, NULL);
    for (uint32_t at = 0; at < own_count; at++) {
        push(9, own[at], 0, 1);
        end_job(HX_OK, at == 1 ? SHARD_HOLD_NONFINITE : 0, NULL);
        cr_assert_not_null(sent(WIRE_ACK), "it is held, and will be named");
    }
    prepare(1, 1, 1, 0, attempts, 4, NULL, 0);
    const uint64_t bad[] = {5, 8, 9};
    votes_no(bad, 3);
    cr_assert_eq(jobs_count, 0);
    prepare(1, 1, 1, 0, attempts, 4, NULL, 0);
    votes_no(bad, 3);
    prepare(1, 2, 1, 0, attempts + 1, 1, bad, 3);
    cr_assert_eq(jobs_count, 3, "two drops and a sum");
    cr_assert_eq(end_job(HX_OK, 0, NULL).attempt, 8);
    cr_assert_eq(end_job(HX_OK, 0, NULL).attempt, 9);
    end_sum();
    cr_assert_eq(sent(WIRE_VOTE)->msg.flags, 1);
    cr_assert_eq(sent(WIRE_VOTE)->msg.round, 2);
}

Test(ps_shard_round, a_sum_that_overflows_is_voted_down)
{
    load();
    const uint64_t attempts[] = {7, 8};
    hold_all(7);
    hold_all(8);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    end_job(HX_E_NONFINITE, 0, NULL);
    votes_no(attempts, 2);
}

Test(ps_shard_round, only_the_last_question_is_answered)
{
    load();
    const uint64_t attempts[] = {7, 8};
    hold_all(7);
    hold_all(8);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    prepare(1, 2, 1, 0, attempts, 1, NULL, 0);
    cr_assert_eq(jobs_count, 2);
    end_sum();
    cr_assert_eq(out.sends_count, 0, "of the first");
    end_sum();
    cr_assert_eq(sent(WIRE_VOTE)->msg.round, 2);
    prepare(1, 1, 1, 0, attempts, 2, NULL, 0);
    cr_assert_eq(out.sends_count, 0, "round 1 is over");
    prepare(1, 2, 1, 0, attempts, 2, NULL, 0);
    end_sum();
    cr_assert_eq(sent(WIRE_VOTE)->msg.round, 2, "the same number with other members is new");
}

Test(ps_shard_round, questions_about_other_versions_are_not_answered)
{
    load();
    const uint64_t attempt = 7;
    hold_all(attempt);
    prepare(1, 1, 2, 0, &attempt, 1, NULL, 0);
    cr_assert_eq(out.sends_count + out.jobs_count, 0);
    prepare(1, 1, 0, 0, &attempt, 1, NULL, 0);
    cr_assert_eq(out.sends_count + out.jobs_count, 0);
    commit(1, 2, &attempt, 1, 0, false);
    refused(1);
    blob_t *junk = blob_copy("junk", 4);
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_PREPARE, .version = 1}, junk);
    refused(2);
    tell(SEATS_LEAD, (wire_msg_t){.kind = WIRE_COMMIT, .version = 1}, junk);
    refused(3);
    blob_release(&junk);
    tell(SEATS_WORKER, (wire_msg_t){.kind = WIRE_COMMIT, .version = 0}, NULL);
    refused(4);
}

Test(ps_shard_round, a_decided_version_that_it_cannot_apply_ends_it)
{
    load();
    const uint64_t attempt = 7;
    commit(1, 1, &attempt, 1, 0, false);
    cr_assert(out.stop);
    cr_assert_eq(out.status, 1);
    cr_assert_not_null(strstr(out.reason, "not held here"), "%s", out.reason);
    cr_assert_str_eq(sent(WIRE_STOP_ASK)->msg.text, out.reason);
}

Test(ps_shard_round, the_floor_and_the_closed_list_free_what_they_cover)
{
    load();
    hold_all(3);
    hold_all(6);
    hold_all(7);
    hold_all(9);
    const uint64_t attempt = 7;
    const uint64_t closed = 9;
    prepare(1, 1, 1, 5, &attempt, 1, &closed, 1);
    cr_assert_eq(jobs_count, 3);
    cr_assert_eq(end_job(HX_OK, 0, NULL).attempt, 3);
    cr_assert_eq(end_job(HX_OK, 0, NULL).attempt, 9);
    end_sum();
    for (uint64_t over = 1; over <= 4; over++) {
        push(over, own[0], 0, 1);
        cr_assert_not_null(sent(WIRE_CLOSED));
    }
    push(9, own[0], 0, 1);
    cr_assert_not_null(sent(WIRE_CLOSED));
    commit(1, 1, &attempt, 1, 8, false);
    end_apply();
    cr_assert_eq(jobs_count, 1);
    cr_assert_eq(jobs[0].kind, SHARD_JOB_DROP);
    cr_assert_eq(jobs[0].attempt, 6);
    cr_assert_eq(ps_shard_info(shard).held_bytes, 0);
    cr_assert_eq(ps_shard_info(shard).floor, 8);
}

Test(ps_shard_round, a_part_that_was_closed_while_it_was_being_held_is_not_acknowledged)
{
    load();
    hold_all(7);
    push(9, own[0], 0, 1);
    const uint64_t attempt = 7;
    const uint64_t closed = 9;
    prepare(1, 1, 1, 0, &attempt, 1, &closed, 1);
    cr_assert_eq(end_job(HX_OK, 0, NULL).kind, SHARD_JOB_HOLD);
    cr_assert_not_null(sent(WIRE_CLOSED));
    cr_assert_null(sent(WIRE_ACK));
    cr_assert_eq(end_job(HX_OK, 0, NULL).kind, SHARD_JOB_DROP);
}
