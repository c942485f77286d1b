// worker_work: leases as jobs carry them, told as stories.

#include "worker/worker_fsm.h"

#include "tests/unit/worker_story.h"

Test(worker_work, lease_of_a_single_stage)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 100, 3, 7, 0);
    does(&story, "> 20 PULL block 0 at 7\n"
                 "> 21 PULL block 1 at 7\n"
                 "> 20 PULL block 2 at 7\n"
                 "> 21 PULL block 3 at 7\n"
                 "> 20 PULL block 4 at 7\n");
    value(&story, SEATS_SHARD, 0, 8);
    value(&story, SEATS_SHARD + 1, 1, 7);
    value(&story, SEATS_SHARD, 2, 8);
    value(&story, SEATS_SHARD + 1, 3, 8);
    forget(&story);
    value(&story, SEATS_SHARD, 4, 8);
    does(&story, "job load block 4 buffer 1\n"
                 "job forward 5.0 layers 0-3 buffer 1\n"
                 "job backward 5.0 layers 0-3 buffer 1\n");
    for (uint32_t load = 0; load < 5; load++) {
        end_job(&story);
    }
    does(&story, "");
    end_job(&story);
    does(&story, "job forward 5.1 layers 0-3 buffer 1\n");
    end_job(&story);
    // The last backward goes layer by layer; blocks follow as they become complete.
    does(&story, "job backward 5.1 layers 3-3 buffer 1\n"
                 "job grad 5 block 4\n");
    end_job(&story);
    does(&story, "job backward 5.1 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n");
    end_job(&story);
    end_job(&story);
    does(&story, "job backward 5.1 layers 1-1 buffer 1\n"
                 "job grad 5 block 2\n"
                 "> 20 PUSH 5 block 4 part 0 of 1\n");
    end_jobs(&story);
    does(&story, "job backward 5.1 layers 0-0 buffer 1\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 21 PUSH 5 block 3 part 0 of 1\n"
                 "> 20 PUSH 5 block 2 part 0 of 1\n"
                 "> 21 PUSH 5 block 1 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 0 of 1\n");
    for (uint32_t block = 1; block < 5; block++) {
        acknowledge(&story, SEATS_SHARD + block % 2, 5, block, 0);
    }
    does(&story, "");
    acknowledge(&story, SEATS_SHARD, 5, 0, 0);
    does(&story, "> 10 READY 5 used 7 tokens 24 loss 9\n");
    wait_for(&story, HX_SEC(2));
    does(&story, "> 10 READY 5 used 7 tokens 24 loss 9\n");
    say(&story, SEATS_LEAD, (wire_msg_t){.kind = WIRE_OUTCOME, .attempt = 5, .version = 9}, NULL);
    wait_for(&story, HX_SEC(20));
    does(&story, "");
    finish(&story);
}

Test(worker_work, first_stage_of_two)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 40, 4, 3, 0);
    for (uint32_t block = 0; block < 3; block++) {
        value(&story, SEATS_SHARD, block, 3);
    }
    end_jobs(&story);
    does(&story, "> 20 PULL block 0 at 3\n"
                 "> 20 PULL block 1 at 3\n"
                 "> 20 PULL block 2 at 3\n"
                 "job load block 0 buffer 1\n"
                 "job load block 1 buffer 1\n"
                 "job load block 2 buffer 1\n"
                 "job forward 5.0 layers 0-1 buffer 1\n"
                 "job forward 5.1 layers 0-1 buffer 1\n"
                 "> 101 ACTIVATION 5.0 rows 40+2\n"
                 "> 101 ACTIVATION 5.1 rows 42+2\n");
    boundary(&story, WIRE_GRADIENT, 5, 0, 40, 2);
    does(&story, "job stash 5.0 gradient\n"
                 "job backward 5.0 layers 0-1 buffer 1\n");
    end_jobs(&story);
    boundary(&story, WIRE_GRADIENT, 5, 1, 42, 2);
    end_jobs(&story);
    does(&story, "job stash 5.1 gradient\n"
                 "job backward 5.1 layers 1-1 buffer 1\n"
                 "job grad 5 block 2\n"
                 "job backward 5.1 layers 0-0 buffer 1\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 20 PUSH 5 block 2 part 0 of 1\n"
                 "> 20 PUSH 5 block 1 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 0 of 2\n");
    finish(&story);
}

Test(worker_work, zero_bubble_pushes_behind_the_last_weight_part)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    seats_conf_t conf = TWO_STAGES;
    conf.schedule = SCHEDULE_ZB;
    stand_ready(&story, &conf);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 3; block++) {
        value(&story, SEATS_SHARD, block, 0);
    }
    end_jobs(&story);
    forget(&story);
    boundary(&story, WIRE_GRADIENT, 5, 0, 0, 2);
    end_jobs(&story);
    does(&story, "job stash 5.0 gradient\n"
                 "job backward 5.0 layers 0-1 buffer 1 input\n"
                 "job backward 5.0 layers 1-1 buffer 1 weight\n"
                 "job grad 5 block 2\n"
                 "job backward 5.0 layers 0-0 buffer 1 weight\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 20 PUSH 5 block 2 part 0 of 1\n"
                 "> 20 PUSH 5 block 1 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 0 of 2\n");
    finish(&story);
}

Test(worker_work, says_what_it_waits_for)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 0, 4, 9, 0);
    value(&story, SEATS_SHARD, 0, 9);
    forget(&story);
    wait_for(&story, HX_SEC(10));
    does(&story, "note lease 5 has waited 10 s for 2 of 3 blocks of version 9, the first from "
                 "shard 0\n");
    value(&story, SEATS_SHARD, 3, 9);
    value(&story, SEATS_SHARD, 4, 9);
    end_jobs(&story);
    forget(&story);
    wait_for(&story, HX_SEC(10));
    does(&story, "note lease 5 has waited 10 s for the activation of microbatch 0 from stage 0\n");
    finish(&story);
}
