// worker_patch: members of one stage among each other, told as stories.

#include "worker/worker_fsm.h"

#include "tests/unit/worker_story.h"

// One stage of three workers; of four rows the first has two, the others one each.
static const seats_conf_t SPLIT = {.stages = 1,
                                   .ends = {4},
                                   .members = {3},
                                   .weights = {{2, 1, 1}},
                                   .modes = {PLAN_SPLIT},
                                   .rows = 4,
                                   .microbatch = 4,
                                   .schedule = SCHEDULE_1F1B,
                                   .shards = 1};

static void ask(story_t *self, node_id_t member, uint32_t block, uint64_t version)
{
    say(self, member, (wire_msg_t){.kind = WIRE_PULL, .block = block, .version = version}, NULL);
}

static void give(story_t *self, node_id_t member, uint64_t attempt, uint32_t block)
{
    const wire_msg_t msg = {.kind = WIRE_PUSH,
                            .attempt = attempt,
                            .block = block,
                            .part = (uint32_t)(member - SEATS_WORKER),
                            .parts = 3};
    say(self, member, msg, blob_virtual(block_bytes(self, block)));
}

Test(worker_patch, first_member_passes_weights_on_and_pushes_the_sum)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &SPLIT);
    ask(&story, SEATS_WORKER + 1, 0, 7);
    does(&story, "");
    grant(&story, 5, 40, 4, 7, 0);
    forget(&story);
    value(&story, SEATS_SHARD, 0, 8);
    does(&story, "> 101 VALUE block 0 of 8\n"
                 "job load block 0 buffer 1\n");
    ask(&story, SEATS_WORKER + 2, 0, 7);
    does(&story, "> 102 VALUE block 0 of 8\n");
    ask(&story, SEATS_WORKER + 2, 0, 9);  // Its next lease: the first one's is yet to come.
    does(&story, "");
    for (uint32_t block = 1; block < 5; block++) {
        value(&story, SEATS_SHARD, block, 8);
    }
    forget(&story);
    give(&story, SEATS_WORKER + 2, 5, 4);
    does(&story, "> 102 ACK 5 block 4 part 2\n"
                 "job stash 5.2 of a member\n");
    give(&story, SEATS_WORKER + 2, 5, 4);  // Twice: once is enough.
    does(&story, "");
    while (!strstr(story.text, "stash 5.0 of a member")) {
        end_job(&story);
    }
    forget(&story);
    give(&story, SEATS_WORKER + 1, 5, 4);
    does(&story, "> 101 ACK 5 block 4 part 1\n"
                 "job stash 5.1 of a member\n"
                 "job sum 5 block 4\n");
    end_jobs(&story);
    cr_assert(strstr(story.text, "> 20 PUSH 5 block 4 part 0 of 1\n"));
    cr_assert_null(strstr(story.text, "PUSH 5 block 3"));
    finish(&story);
}

Test(worker_patch, other_members_speak_with_the_first)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    join(&story);
    forget(&story);
    give_plan(&story, &SPLIT);
    does(&story, "dial 10 control-10\n"
                 "dial 20 data-20\n"
                 "dial 100 data-100\n"
                 "job open layers 0-3 sets 1\n"
                 "note plan 1: stage 0 of 1 in pipeline 0, layers 0 to 3, member 1 of 3 (split)\n");
    end_jobs(&story);
    grant(&story, 5, 40, 4, 7, 0);
    forget(&story);
    value(&story, SEATS_SHARD, 0, 7);
    does(&story, "");  // Not from there.
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_WORKER, block, 7);
    }
    forget(&story);
    end_jobs(&story);
    does(&story, "job backward 5.0 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n"
                 "job backward 5.0 layers 1-1 buffer 1\n"
                 "job grad 5 block 2\n"
                 "> 100 PUSH 5 block 4 part 1 of 3\n"
                 "job backward 5.0 layers 0-0 buffer 1\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 100 PUSH 5 block 3 part 1 of 3\n"
                 "> 100 PUSH 5 block 2 part 1 of 3\n"
                 "> 100 PUSH 5 block 1 part 1 of 3\n"
                 "> 100 PUSH 5 block 0 part 1 of 3\n");
    for (uint32_t block = 0; block < 5; block++) {
        acknowledge(&story, SEATS_WORKER, 5, block, 1);
    }
    does(&story, "> 10 READY 5 used 7 tokens 8 loss 3\n");
    // An evaluation needs exactly its version, which the first one may not have.
    grant(&story, 6, 0, 4, 6, 1);
    does(&story, "> 20 PULL block 0 at 6 exactly\n"
                 "> 20 PULL block 1 at 6 exactly\n"
                 "> 20 PULL block 2 at 6 exactly\n"
                 "> 20 PULL block 3 at 6 exactly\n"
                 "> 20 PULL block 4 at 6 exactly\n");
    finish(&story);
}

// One row is the first member's; the others have nothing to compute, and say so at once.
Test(worker_patch, member_without_rows_is_ready_at_once)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 2);
    stand_ready(&story, &SPLIT);
    grant(&story, 5, 40, 1, 7, 0);
    does(&story, "> 10 READY 5 used 7 tokens 0 loss 0\n");
    finish(&story);
}

Test(worker_patch, lost_member_ends_leases)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &SPLIT);
    grant(&story, 5, 40, 4, 7, 0);
    forget(&story);
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_WORKER});
    does(&story, "job drop 5\n"
                 "note a worker of this stage is gone\n"
                 "note lease 5 dropped: its pipeline is broken\n");
    finish(&story);
}

Test(worker_patch, nonsense_of_members_changes_nothing)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &SPLIT);
    grant(&story, 5, 40, 4, 7, 0);
    forget(&story);
    say(&story, SEATS_WORKER + 1,
        (wire_msg_t){.kind = WIRE_PULL, .block = 0, .version = 7, .flags = 1}, NULL);
    does(&story, "note PULL from east/worker1 dropped: a member gets weights for training only\n");
    ask(&story, SEATS_WORKER + 1, 99, 7);
    does(&story, "note PULL from east/worker1 dropped: block 99 is not of this stage\n");
    ask(&story, 4711, 0, 7);
    does(&story, "note PULL from node 0000000000001267 dropped: not for a worker\n");
    say(&story, SEATS_WORKER + 1,
        (wire_msg_t){.kind = WIRE_PUSH, .attempt = 5, .block = 4, .part = 2, .parts = 3},
        blob_virtual(block_bytes(&story, 4)));
    does(&story,
         "note PUSH from east/worker1 dropped: part 2 of 3 with 128 bytes of block 4 is not "
         "this member's\n");
    say(&story, SEATS_WORKER + 1,
        (wire_msg_t){.kind = WIRE_PUSH, .attempt = 5, .block = 4, .part = 1, .parts = 3},
        blob_virtual(5));
    does(&story, "note PUSH from east/worker1 dropped: part 1 of 3 with 5 bytes of block 4 is not "
                 "this member's\n");
    finish(&story);
}
