// worker_fsm: joining, plans and ends, told as stories.

#include "worker/worker_fsm.h"

#include "tests/unit/worker_story.h"

Test(worker_fsm, joins_measures_itself_and_takes_its_seat)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    feed(&story, (step_in_t){.kind = STEP_START});
    does(&story, "dial 1 tcp://127.0.0.1:7700\n"
                 "> 1 REGISTER\n");
    say(&story, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    does(&story, "job profile\n"
                 "note joined the run \"story\" at tcp://127.0.0.1:7700\n");
    end_jobs(&story);
    does(&story, "> 1 PROFILE\n");
    give_plan(&story, &TWO_STAGES);
    does(&story, "dial 10 control-10\n"
                 "dial 20 data-20\n"
                 "dial 100 data-100\n"
                 "job open layers 2-3 sets 1\n"
                 "note plan 1: stage 1 of 2 in pipeline 0, layers 2 to 3\n");
    end_jobs(&story);
    does(&story, "> 10 PLAN_ACK 1\n");
    wait_for(&story, HX_SEC(2));
    does(&story, "> 10 PLAN_ACK 1\n");
    finish(&story);
}

Test(worker_fsm, without_a_seat_it_stands_by)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 2);
    join(&story);
    forget(&story);
    seats_conf_t conf = TWO_STAGES;
    conf.spares = 1;
    give_plan(&story, &conf);
    does(&story, "dial 10 control-10\n"
                 "> 10 PLAN_ACK 1\n"
                 "note plan 1: in no stage, standing by\n");
    grant(&story, 5, 0, 4, 0, 0);
    does(&story, "note GRANT from east/lead0 dropped: lease 5 is not of the plan in force\n");
    finish(&story);
}

Test(worker_fsm, stage_that_does_not_fit_ends_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    join(&story);
    give_plan(&story, &ONE_STAGE);
    forget(&story);
    feed(&story,
         (step_in_t){.kind = STEP_JOB, .job = {.kind = WORKER_JOB_OPEN}, .error = HX_E_NOMEM});
    does(&story, "> 1 LEAVE a open job failed: out of memory\n"
                 "> 10 LEAVE a open job failed: out of memory\n"
                 "stop 1 a open job failed: out of memory\n");
    finish(&story);
}

Test(worker_fsm, new_plan_takes_the_old_leases_with_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 4, 0, 0);
    forget(&story);
    seats_conf_t conf = TWO_STAGES;
    conf.epoch = 2;
    give_plan(&story, &conf);
    does(&story, "dial 10 control-10\n"
                 "dial 20 data-20\n"
                 "job drop 5\n"
                 "job open layers 0-1 sets 2\n"
                 "note lease 5 dropped: a new plan came\n"
                 "note plan 2: stage 0 of 2 in pipeline 0, layers 0 to 1\n");
    finish(&story);
}

Test(worker_fsm, asked_to_stop_it_leaves)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    feed(&story, (step_in_t){.kind = STEP_SIGNAL});
    does(&story, "> 1 LEAVE interrupted\n"
                 "> 10 LEAVE interrupted\n"
                 "stop 130 interrupted\n");
    finish(&story);
}

Test(worker_fsm, stopped_it_gives_its_trace)
{
    static story_t story;
    begin_with(&story, SEATS_WORKER, 1, 0);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    end_jobs(&story);
    forget(&story);
    say(&story, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_STOP, .count = 0, .text = "done"}, NULL);
    does(&story, "> 1 STOPPED\n"
                 "stop 0 done\n");
    const blob_t *const blob = story.out.sends[0].blob;
    cr_assert_not_null(blob);
    char *const text = strndup(blob_data(blob), blob_size(blob));
    cr_assert(strstr(text, "\"name\":\"forward\""));
    cr_assert(strstr(text, "\"name\":\"backward\""));
    cr_assert(strstr(text, "\"name\":\"pull\""));
    cr_assert(strstr(text, "\"pid\":\"east/worker\""));
    free(text);
    finish(&story);
}

Test(worker_fsm, lead_that_is_gone_ends_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_LEAD});
    does(&story, "note the lead east/lead0 is gone: nothing was heard of it for too long\n");
    wait_for(&story, HX_SEC(10));  // For a STOP that would tell the reason.
    does(&story, "stop 1 the lead east/lead0 is gone: nothing was heard of it for too long\n");
    finish(&story);
}
