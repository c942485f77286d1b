// pulls: what waits is served once, forgotten with its peer, and never more than the limit.

#include "server/pulls.h"

#include <criterion/criterion.h>
#include <string.h>

static step_out_t out;
static pulls_t pulls;

static void set_up(void)
{
    out = (step_out_t){.wake_at = HX_TIME_NEVER};
}

static void tear_down(void)
{
    pulls_clear(&pulls);
    step_out_destroy(&out);
}

TestSuite(pulls, .init = set_up, .fini = tear_down);

static pull_t pull(node_id_t peer, uint64_t version)
{
    return (pull_t){.peer = peer, .version = version, .block = 3, .part = 1};
}

static bool answer_up_to(void *newest, const pull_t *one, step_out_t *to)
{
    (void)to;
    return one->version <= *(const uint64_t *)newest;
}

Test(pulls, wait_until_they_can_be_answered)
{
    for (uint64_t version = 1; version <= 100; version++) {
        const pull_t one = pull(20 + version % 2, version);
        cr_assert(pulls_park(&pulls, &one, 100, &out));
    }
    uint64_t newest = 40;
    pulls_serve(&pulls, answer_up_to, &newest, &out);
    cr_assert_eq(pulls.count, 60);
    pulls_forget(&pulls, 21);
    cr_assert_eq(pulls.count, 30);
    for (uint32_t at = 0; at < pulls.count; at++) {
        cr_assert_eq(pulls.list[at].peer, 20);
        cr_assert_eq(pulls.list[at].version, 42 + 2 * at, "in their order");
    }
    cr_assert_eq(out.sends_count, 0);
}

Test(pulls, one_too_many_is_answered)
{
    const pull_t one = pull(20, 7);
    cr_assert(pulls_park(&pulls, &one, 1, &out));
    cr_assert_not(pulls_park(&pulls, &one, 1, &out));
    cr_assert_eq(pulls.count, 1);
    cr_assert_eq(out.sends_count, 1);
    cr_assert_eq(out.sends[0].to, 20);
    cr_assert_eq(out.sends[0].msg.kind, WIRE_NO_VALUE);
    cr_assert_eq(out.sends[0].msg.block, 3);
    cr_assert_eq(out.sends[0].msg.part, 1);
    cr_assert_eq(out.sends[0].msg.version, 7);
    cr_assert(strstr(out.sends[0].msg.text, "too many"));
}

Test(pulls, become_jobs_and_come_back)
{
    const step_in_t in = {
        .peer = 21,
        .msg = {.kind = WIRE_PULL, .block = 5, .part = 2, .version = 9, .flags = PULL_AT_ONCE}};
    const pull_t one = pull_of(&in);
    cr_assert_eq(one.flags, PULL_AT_ONCE);
    const step_job_t job = pull_job(4, &one);
    cr_assert_eq(job.kind, 4);
    const pull_t again = pull_of_job(&job);
    cr_assert_eq(again.peer, 21);
    cr_assert_eq(again.block, 5);
    cr_assert_eq(again.part, 2);
    cr_assert_eq(again.version, 9);
}
