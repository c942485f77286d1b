// worker_run: leases as messages change them, told as stories.

#include "worker/worker_fsm.h"

#include "tests/unit/worker_story.h"

Test(worker_run, next_lease_is_pulled_behind_the_last_forward)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    forget(&story);
    grant(&story, 6, 2, 2, 0, 0);
    does(&story, "");
    for (uint32_t load = 0; load < 5; load++) {
        end_job(&story);
    }
    end_job(&story);  // The forward.
    does(&story, "> 20 PULL block 0 at 0\n"
                 "> 21 PULL block 1 at 0\n"
                 "> 20 PULL block 2 at 0\n"
                 "> 21 PULL block 3 at 0\n"
                 "> 20 PULL block 4 at 0\n"
                 "job backward 5.0 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n");
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 1);
    }
    does(&story, "job load block 0 buffer 0\n"
                 "job load block 1 buffer 0\n"
                 "job load block 2 buffer 0\n"
                 "job load block 3 buffer 0\n"
                 "job load block 4 buffer 0\n");
    end_job(&story);
    forget(&story);
    end_jobs(&story);
    cr_assert(strstr(story.text, "job backward 5.0 layers 0-0 buffer 1\n"
                                 "job grad 5 block 1\n"
                                 "job grad 5 block 0\n"));
    cr_assert(strstr(story.text, "job forward 6.0 layers 0-3 buffer 0\n"));
    finish(&story);
}

// The second lease's values are asked for when the first has about as long to run as its own pull
// took: three of eight operations for a pull of three seconds.
Test(worker_run, next_lease_is_pulled_when_a_pull_takes_as_long_as_what_is_left)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 8, 0, 0);
    story.now += HX_SEC(3);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    for (uint32_t load = 0; load < 5; load++) {
        end_job(&story);
    }
    grant(&story, 6, 8, 8, 0, 0);
    forget(&story);
    uint32_t done = 0;
    while (!strstr(story.text, "PULL")) {
        story.now += HX_SEC(1);
        end_job(&story);
        done++;
    }
    cr_assert_eq(done, 5, "pulls after %" PRIu32 " operations", done);
    finish(&story);
}

// Two blocks of each shard at a time; the third of shard 0 is asked for when one of its has come.
Test(worker_run, no_more_is_asked_of_a_shard_than_a_window_holds)
{
    static story_t story;
    begin_with(&story, SEATS_WORKER, 0, 65536);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    does(&story, "> 20 PULL block 0 at 0\n"
                 "> 21 PULL block 1 at 0\n"
                 "> 20 PULL block 2 at 0\n"
                 "> 21 PULL block 3 at 0\n");
    value(&story, SEATS_SHARD + 1, 1, 0);
    does(&story, "job load block 1 buffer 1\n");
    value(&story, SEATS_SHARD, 2, 0);
    does(&story, "> 20 PULL block 4 at 0\n"
                 "job load block 2 buffer 1\n");
    value(&story, SEATS_SHARD, 0, 0);
    value(&story, SEATS_SHARD, 4, 1);
    forget(&story);
    value(&story, SEATS_SHARD + 1, 3, 0);
    cr_assert(strstr(story.text, "job forward 5.0"));
    finish(&story);
}

// Values that a closed lease asked for serve the next one, and do not hold up its window.
Test(worker_run, window_goes_on_behind_values_of_a_lease_that_is_over)
{
    static story_t story;
    begin_with(&story, SEATS_WORKER, 0, 65536);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    value(&story, SEATS_SHARD, 0, 0);  // Block 4 is asked for.
    say(&story, SEATS_LEAD,
        (wire_msg_t){.kind = WIRE_CLOSED, .attempt = 5, .count = WIRE_CLOSED_DEAD}, NULL);
    end_jobs(&story);
    grant(&story, 6, 0, 2, 0, 0);
    forget(&story);
    value(&story, SEATS_SHARD, 4, 0);  // Of lease 5.
    value(&story, SEATS_SHARD, 2, 0);
    value(&story, SEATS_SHARD, 0, 0);
    cr_assert_null(strstr(story.text, "PULL block 4"), "it is here");
    value(&story, SEATS_SHARD + 1, 1, 0);
    value(&story, SEATS_SHARD + 1, 3, 0);
    end_jobs(&story);
    cr_assert(strstr(story.text, "job forward 6.0"));
    finish(&story);
}

Test(worker_run, activation_before_its_grant_is_kept)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 2);
    does(&story, "job stash 5.0\n");
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 2);  // Twice: once is enough.
    does(&story, "");
    end_jobs(&story);
    grant(&story, 5, 40, 4, 3, 0);
    for (uint32_t block = 3; block < 5; block++) {
        value(&story, SEATS_SHARD, block, 3);
    }
    forget(&story);
    value(&story, SEATS_SHARD, 0, 3);
    end_jobs(&story);
    does(&story, "job load block 0 buffer 1\n"
                 "job forward 5.0 layers 2-3 buffer 1\n"
                 "job backward 5.0 layers 2-3 buffer 1\n"
                 "> 100 GRADIENT 5.0 rows 40+2\n");
    boundary(&story, WIRE_ACTIVATION, 5, 1, 42, 2);
    end_jobs(&story);
    does(&story, "job stash 5.1\n"
                 "job forward 5.1 layers 2-3 buffer 1\n"
                 "job backward 5.1 layers 3-3 buffer 1\n"
                 "job grad 5 block 4\n"
                 "job grad 5 block 0\n"
                 "job backward 5.1 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n"
                 "> 20 PUSH 5 block 4 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 1 of 2\n"
                 "> 100 GRADIENT 5.1 rows 42+2\n"
                 "> 20 PUSH 5 block 3 part 0 of 1\n");
    finish(&story);
}

Test(worker_run, early_messages_that_do_not_fit_the_grant_are_not_used)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 1);  // One row; the lease's microbatch has two.
    boundary(&story, WIRE_ACTIVATION, 5, 9, 58, 2);  // There is no tenth.
    grant(&story, 5, 40, 4, 3, 0);
    value(&story, SEATS_SHARD, 0, 3);
    value(&story, SEATS_SHARD, 3, 3);
    value(&story, SEATS_SHARD, 4, 3);
    cr_assert_null(strstr(story.text, "job forward"));
    finish(&story);
}

Test(worker_run, values_older_than_the_base_are_not_used)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 40, 4, 3, 0);
    forget(&story);
    value(&story, SEATS_SHARD, 3, 2);
    does(&story, "");
    value(&story, SEATS_SHARD, 3, 4);
    does(&story, "job load block 3 buffer 1\n");
    finish(&story);
}

Test(worker_run, lease_closed_in_its_middle_leaves_nothing)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 40, 4, 3, 0);
    grant(&story, 6, 44, 4, 3, 0);
    value(&story, SEATS_SHARD, 0, 3);
    value(&story, SEATS_SHARD, 3, 3);
    value(&story, SEATS_SHARD, 4, 3);
    end_jobs(&story);
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 2);
    boundary(&story, WIRE_ACTIVATION, 5, 1, 42, 2);
    forget(&story);
    say(&story, SEATS_LEAD,
        (wire_msg_t){.kind = WIRE_CLOSED, .attempt = 5, .count = WIRE_CLOSED_DEAD}, NULL);
    does(&story, "> 20 PULL block 0 at 3\n"
                 "> 20 PULL block 3 at 3\n"
                 "> 20 PULL block 4 at 3\n"
                 "job drop 5\n"
                 "note lease 5 dropped: a worker of the pipeline is gone\n");
    end_jobs(&story);  // What was given already still ends, and is of no use.
    does(&story, "");
    boundary(&story, WIRE_ACTIVATION, 5, 1, 42, 2);
    does(&story, "");
    value(&story, SEATS_SHARD, 0, 3);
    value(&story, SEATS_SHARD, 3, 3);
    value(&story, SEATS_SHARD, 4, 3);
    boundary(&story, WIRE_ACTIVATION, 6, 0, 44, 2);
    does(&story, "job load block 0 buffer 0\n"
                 "job load block 3 buffer 0\n"
                 "job load block 4 buffer 0\n"
                 "job stash 6.0\n"
                 "job forward 6.0 layers 2-3 buffer 0\n"
                 "job backward 6.0 layers 2-3 buffer 0\n");
    finish(&story);
}

Test(worker_run, shard_may_close_a_lease_that_is_being_pushed)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    end_jobs(&story);
    forget(&story);
    const wire_msg_t closed = {.kind = WIRE_CLOSED, .attempt = 5, .count = WIRE_CLOSED_UNKNOWN};
    say(&story, 4711, closed, NULL);
    does(&story, "note CLOSED from node 0000000000001267 dropped: it may not close a lease\n");
    say(&story, SEATS_SHARD, closed, NULL);
    does(&story, "job drop 5\n"
                 "note lease 5 dropped: it is not open\n");
    acknowledge(&story, SEATS_SHARD, 5, 0, 0);
    does(&story, "");
    finish(&story);
}

Test(worker_run, lost_neighbour_ends_what_needs_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD, block, 0);
    }
    boundary(&story, WIRE_ACTIVATION, 5, 0, 0, 2);
    end_jobs(&story);  // Lease 5 is computed and pushed.
    grant(&story, 6, 2, 2, 0, 0);
    forget(&story);
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_WORKER});
    does(&story, "job drop 6\n"
                 "note a worker of the stage before this one is gone\n"
                 "note lease 6 dropped: its pipeline is broken\n");
    acknowledge(&story, SEATS_SHARD, 5, 0, 1);
    acknowledge(&story, SEATS_SHARD, 5, 3, 0);
    acknowledge(&story, SEATS_SHARD, 5, 4, 0);
    does(&story, "> 10 READY 5 used 0 tokens 16 loss 6\n");
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_SHARD});
    does(&story, "note the shard east/shard0 is gone: nothing was heard of it for too long\n");
    finish(&story);
}

Test(worker_run, evaluation_runs_forward_on_exactly_its_version)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 4, 7, 1);
    does(&story, "> 20 PULL block 0 at 7 exactly\n"
                 "> 21 PULL block 1 at 7 exactly\n"
                 "> 20 PULL block 2 at 7 exactly\n"
                 "> 21 PULL block 3 at 7 exactly\n"
                 "> 20 PULL block 4 at 7 exactly\n");
    value(&story, SEATS_SHARD, 0, 8);
    does(&story, "");
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 7);
    }
    forget(&story);
    end_jobs(&story);
    does(&story, "> 10 READY 5 used 7 tokens 32 loss 12\n");
    say(&story, SEATS_LEAD, (wire_msg_t){.kind = WIRE_OUTCOME, .attempt = 5, .version = 7}, NULL);
    grant(&story, 6, 0, 4, 3, 1);
    forget(&story);
    say(&story, SEATS_SHARD,
        (wire_msg_t){.kind = WIRE_NO_VALUE, .block = 0, .version = 3, .text = "long gone"}, NULL);
    does(&story, "job drop 6\n"
                 "note block 0 of version 3 is not to be had: long gone\n"
                 "note lease 6 dropped: its parameters are gone\n");
    finish(&story);
}

Test(worker_run, nonsense_of_peers_changes_nothing)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    say(&story, 4711, (wire_msg_t){.kind = WIRE_GRANT, .attempt = 5, .rows = 4, .epoch = 1}, NULL);
    does(&story, "note GRANT from node 0000000000001267 dropped: not for a worker\n");
    grant(&story, 5, 0, 0, 0, 0);
    does(
        &story,
        "job drop 5\n"
        "note GRANT from east/lead0 dropped: the 0 rows of lease 5 do not fit what was reserved\n");
    grant(&story, 5, 0, 4, 0, 0);
    does(&story, "note GRANT from east/lead0 dropped: lease 5 is not newer than the last one\n");
    say(&story, SEATS_LEAD,
        (wire_msg_t){.kind = WIRE_GRANT, .attempt = 6, .rows = 4, .tokens = 32, .epoch = 2}, NULL);
    does(&story, "note GRANT from east/lead0 dropped: lease 6 is not of the plan in force\n");
    value(&story, SEATS_SHARD, 1, 0);
    does(&story,
         "note VALUE from east/shard0 dropped: block 1 is not of this stage, or not there\n");
    say(&story, SEATS_SHARD, (wire_msg_t){.kind = WIRE_ACK, .block = 99}, NULL);
    does(&story,
         "note ACK from east/shard0 dropped: block 99 is not of this stage, or not there\n");
    boundary(&story, WIRE_GRADIENT, 6, 0, 0, 2);
    does(&story,
         "note GRADIENT from node 0000000000000066 dropped: lease 6 is not for this stage\n");
    say(&story, SEATS_WORKER,
        (wire_msg_t){.kind = WIRE_ACTIVATION, .attempt = 6, .epoch = 1, .rows = 2},
        blob_virtual(12));
    does(&story, "note ACTIVATION from east/worker0 dropped: lease 6 is not for this stage\n");
    grant(&story, 7, 0, 4, 0, 0);
    forget(&story);
    say(&story, SEATS_LEAD, (wire_msg_t){.kind = WIRE_OUTCOME, .attempt = 7}, NULL);
    does(&story, "");  // It was not announced, and goes on.
    say(&story, SEATS_SHARD, (wire_msg_t){.kind = WIRE_VALUE, .block = 3}, blob_virtual(5));
    does(&story, "note VALUE from east/shard0 dropped: 5 bytes instead of the 13120 of block 3\n");
    finish(&story);
}
