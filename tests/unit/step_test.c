// step_test - actions are kept in order, blobs are counted, and everything is given back.

#include "net/step.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

static void count_free(void *data, void *hint)
{
    (void)data;
    ++*(int *)hint;
}

Test(step, actions_are_kept_in_order_and_counted)
{
    step_out_t out = {.wake_at = HX_TIME_NEVER};
    char byte = 0;
    int freed = 0;
    blob_t *blob = blob_wrap(&byte, 1, count_free, &freed);
    for (uint32_t at = 0; at < 100; at++) {
        step_send(&out, 5, &(wire_msg_t){.kind = WIRE_ACK, .block = at}, blob);
        step_run(&out, &(step_job_t){.kind = 1, .index = at, .blob = blob});
    }
    blob_release(&blob);
    cr_assert_eq(out.sends_count, 100);
    cr_assert_eq(out.jobs_count, 100);
    for (uint32_t at = 0; at < 100; at++) {
        cr_assert_eq(out.sends[at].msg.block, at);
        cr_assert_eq(out.jobs[at].index, at);
    }
    cr_assert_eq(freed, 0);
    step_out_clear(&out);
    cr_assert_eq(freed, 1);
    cr_assert_eq(out.sends_count + out.jobs_count, 0);
    step_out_destroy(&out);
    cr_assert_null(out.sends);
}

Test(step, earliest_wake_counts)
{
    step_out_t out = {.wake_at = HX_TIME_NEVER};
    step_wake(&out, 70);
    step_wake(&out, 50);
    step_wake(&out, 60);
    cr_assert_eq(out.wake_at, 50);
    step_out_clear(&out);
    cr_assert_eq(out.wake_at, HX_TIME_NEVER);
}

Test(step, notes_and_the_end_carry_their_text)
{
    step_out_t out = {.wake_at = HX_TIME_NEVER};
    char large[2 * STEP_NOTE_MAX];
    memset(large, 'n', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    step_note(&out, STEP_WARN, "round %d", 7);
    step_note(&out, STEP_DEBUG, "%s", large);
    step_stop(&out, 3, "block %u is gone", 9u);
    cr_assert_str_eq(out.notes[0].text, "round 7");
    cr_assert_eq(out.notes[0].level, STEP_WARN);
    cr_assert_eq(strlen(out.notes[1].text), STEP_NOTE_MAX - 1);
    cr_assert(out.stop);
    cr_assert_eq(out.status, 3);
    cr_assert_str_eq(out.reason, "block 9 is gone");
    step_out_clear(&out);
    cr_assert_not(out.stop);
    cr_assert_str_eq(out.reason, "");
    step_out_destroy(&out);
}

Test(step, dials_take_missing_endpoints_as_none)
{
    step_out_t out = {.wake_at = HX_TIME_NEVER};
    step_dial(&out, 8, "tcp://127.0.0.1:1", NULL);
    cr_assert_str_eq(out.dials[0].control, "tcp://127.0.0.1:1");
    cr_assert_str_eq(out.dials[0].data, "");
    step_out_destroy(&out);
}

Test(step, message_to_nobody_is_a_bug, .signal = SIGABRT)
{
    step_out_t out = {.wake_at = HX_TIME_NEVER};
    step_send(&out, NODE_NONE, &(wire_msg_t){.kind = WIRE_ACK}, NULL);
}
