// sched_test - the scheduler's life told as stories in virtual time.

#include "scheduler/sched.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "net/payload.h"

enum { LEAD = 10, KEEPER, SHARD, FAST, SLOW, STRANGER, CTL };

static model_t *model;
static sched_conf_t conf;
static sched_t *sched;
static step_out_t out;
static hx_time_t now;

static void set_up(void)
{
    model_conf_t shape = model_conf_default();
    shape.layers = 2;
    shape.heads = 2;
    shape.channels = 16;
    shape.context = 8;
    shape.vocab = 32;
    cr_assert_eq(model_open(&shape, &model, NULL), HX_OK);
    static const sched_expected_t workers[] = {{.site = "east", .name = "east/fast", .count = 1},
                                               {.site = "east", .name = "east/slow", .count = 1}};
    static const sched_expected_t servers[] = {{.site = "east", .count = 1}};
    conf = (sched_conf_t){.run = "story",
                          .endpoint = "tcp://127.0.0.1:7700",
                          .mode = "ssaw",
                          .run_id = 77,
                          .conf_hash = 0xc0,
                          .planner = {.model = model,
                                      .rows = 8,
                                      .microbatch = 2,
                                      .schedule = SCHEDULE_H1F1B,
                                      .pipelines = 2,
                                      .overlap = true},
                          .workers = workers,
                          .workers_listed = 2,
                          .workers_count = 2,
                          .servers = servers,
                          .servers_listed = 1,
                          .servers_count = 1,
                          .shards = 1,
                          .join_timeout = HX_SEC(30),
                          .stop_timeout = HX_SEC(6),
                          .resume = true,
                          .goal_tokens = 1000};
    out = (step_out_t){.wake_at = HX_TIME_NEVER};
    now = 0;
}

static void tear_down(void)
{
    sched_destroy(&sched);
    step_out_destroy(&out);
    model_destroy(&model);
}

TestSuite(sched, .init = set_up, .fini = tear_down);

static void step(const step_in_t *in)
{
    step_out_clear(&out);
    out.notes_count = out.sends_count = out.jobs_count = 0;
    step_in_t copy = *in;
    copy.now = now;
    sched_step(sched, &copy, &out);
    cr_assert(out.stop || out.wake_at > now || out.wake_at == HX_TIME_NEVER,
              "a timer in the past would spin");
}

static void begin(void)
{
    sched = sched_new(&conf);
    step(&(step_in_t){.kind = STEP_START});
}

static void hear_with(node_id_t peer, wire_msg_t msg, blob_t *blob)
{
    step(&(step_in_t){.kind = STEP_MESSAGE, .peer = peer, .msg = msg, .blob = blob});
    blob_release(&blob);
}

static void hear(node_id_t peer, wire_msg_t msg)
{
    hear_with(peer, msg, NULL);
}

static void wait_until(hx_time_t at)
{
    now = at;
    step(&(step_in_t){.kind = STEP_TIMER});
}

static wire_msg_t registration(plan_role_t role, const char *site, const char *name)
{
    wire_msg_t msg = {
        .kind = WIRE_REGISTER, .role = role, .count = WIRE_VERSION, .hash = 0xc0, .hash2 = 0};
    msg.hash2 = role == PLAN_WORKER ? 0xda7a : 0;
    snprintf(msg.site, sizeof msg.site, "%s", site);
    snprintf(msg.name, sizeof msg.name, "%s/%s", site, name);
    snprintf(msg.control, sizeof msg.control, "tcp://%s:1", name);
    snprintf(msg.data, sizeof msg.data, "tcp://%s:2", name);
    snprintf(msg.text, sizeof msg.text, "story");
    return msg;
}

static const step_send_t *sent(node_id_t to, wire_kind_t kind)
{
    for (uint32_t at = 0; at < out.sends_count; at++) {
        if (out.sends[at].to == to && out.sends[at].msg.kind == kind) {
            return &out.sends[at];
        }
    }
    return NULL;
}

static bool noted(const char *part)
{
    for (uint32_t at = 0; at < out.notes_count; at++) {
        if (strstr(out.notes[at].text, part)) {
            return true;
        }
    }
    return false;
}

static const char *notes(void)
{
    static char all[4096];
    all[0] = '\0';
    for (uint32_t at = 0; at < out.notes_count; at++) {
        strncat(all, out.notes[at].text, sizeof all - strlen(all) - 2);
        strcat(all, "\n");
    }
    return all;
}

#define ASSERT_NOTED(part) cr_assert(noted(part), "no \"%s\" in:\n%s", part, notes())

static void join_servers(uint64_t checkpoint)
{
    hear(LEAD, registration(PLAN_LEAD, "east", "ps0.lead"));
    wire_msg_t keeper = registration(PLAN_KEEPER, "east", "ps0.keeper");
    keeper.version = checkpoint;
    hear(KEEPER, keeper);
    hear(SHARD, registration(PLAN_SHARD, "east", "ps0.shard0"));
}

static void join_workers(void)
{
    hear(FAST, registration(PLAN_WORKER, "east", "fast"));
    cr_assert(sent(FAST, WIRE_WELCOME));
    cr_assert_eq(sent(FAST, WIRE_WELCOME)->msg.hash, 77);
    hear(SLOW, registration(PLAN_WORKER, "east", "slow"));
}

static void send_profile(node_id_t from, double slow)
{
    const profile_t profile = {.microbatch = 2,
                               .embed = {0.001 * slow, 0.001 * slow},
                               .block = {0.01 * slow, 0.02 * slow},
                               .head = {0.002 * slow, 0.004 * slow},
                               .memory = 1 << 30,
                               .threads = 1,
                               .slowdown = 1};
    hear_with(from, (wire_msg_t){.kind = WIRE_PROFILE}, payload_profile_encode(&profile));
}

static void measure(void)
{
    const step_send_t *const asked = sent(FAST, WIRE_MEASURE);
    cr_assert(asked, "%s", notes());
    cr_assert_eq(asked->msg.node, SHARD);
    cr_assert_str_eq(asked->msg.data, "tcp://ps0.shard0:2");
    hear(FAST, (wire_msg_t){.kind = WIRE_LINK, .node = SHARD, .seconds = 1e-4, .value = 1e9});
}

static void up_to_plan(void)
{
    begin();
    join_servers(0);
    join_workers();
    send_profile(FAST, 1);
    send_profile(SLOW, 3);
    measure();
}

static void up_to_run(void)
{
    up_to_plan();
    hear(LEAD, (wire_msg_t){.kind = WIRE_PLAN_ACK, .epoch = 1});
}

static void job_done(uint32_t kind, hx_err_t error)
{
    step(&(step_in_t){.kind = STEP_JOB, .job = {.kind = kind}, .error = error});
}

static const step_job_t *given(uint32_t kind)
{
    for (uint32_t at = 0; at < out.jobs_count; at++) {
        if (out.jobs[at].kind == kind) {
            return &out.jobs[at];
        }
    }
    return NULL;
}

static void all_stop(void)
{
    static const node_id_t ids[] = {LEAD, KEEPER, SHARD, FAST, SLOW};
    for (size_t at = 0; at < HX_COUNT(ids); at++) {
        hear(ids[at], (wire_msg_t){.kind = WIRE_STOPPED});
    }
}

static json_t *summary(void)
{
    json_t *const json = json_loads(sched_summary(sched), 0, NULL);
    cr_assert(json);
    return json;
}

static const char *text_in(const json_t *json, const char *key)
{
    return json_string_value(json_object_get(json, key));
}

Test(sched, says_whom_it_waits_for_and_gives_up_in_time)
{
    begin();
    hear(FAST, registration(PLAN_WORKER, "east", "fast"));
    hear(SHARD, registration(PLAN_SHARD, "east", "ps0.shard0"));
    cr_assert_eq(out.wake_at, HX_SEC(5));
    wait_until(HX_SEC(5));
    ASSERT_NOTED(
        "at tcp://127.0.0.1:7700: 0 of 1 servers, 1 of 2 workers; missing server at east (0 "
        "of 1 there), worker east/slow; 25 s left");
    wait_until(HX_SEC(30));
    ASSERT_NOTED(
        "gave up after 30 s at tcp://127.0.0.1:7700: 0 of 1 servers, 1 of 2 workers; missing");
    cr_assert_eq(sent(FAST, WIRE_STOP)->msg.count, 1);
    cr_assert(sent(SHARD, WIRE_STOP));
    hear(FAST, (wire_msg_t){.kind = WIRE_STOPPED});
    cr_assert_null(given(SCHED_JOB_SUMMARY));
    hear(SHARD, (wire_msg_t){.kind = WIRE_STOPPED});
    cr_assert(given(SCHED_JOB_SUMMARY));
    json_t *json = summary();
    cr_assert_str_eq(text_in(json, "status"), "failed");
    cr_assert(json_is_null(json_object_get(json, "plan")));
    json_decref(json);
    job_done(SCHED_JOB_SUMMARY, HX_OK);
    cr_assert(out.stop);
    cr_assert_eq(out.status, 1);
    cr_assert(strstr(out.reason, "gave up"));
}

static void refused(wire_msg_t msg, const char *part)
{
    hear(STRANGER, msg);
    cr_assert(sent(STRANGER, WIRE_REFUSED));
    cr_assert(strstr(sent(STRANGER, WIRE_REFUSED)->msg.text, part), "\"%s\" lacks \"%s\"",
              sent(STRANGER, WIRE_REFUSED)->msg.text, part);
    cr_assert_null(sent(STRANGER, WIRE_WELCOME));
}

Test(sched, refuses_what_does_not_belong_and_names_both_sides)
{
    begin();
    join_workers();
    wire_msg_t msg = registration(PLAN_WORKER, "west", "odd");
    msg.count = 9;
    refused(msg, "speaks 1, you speak 9");
    msg = registration(PLAN_WORKER, "west", "odd");
    snprintf(msg.text, sizeof msg.text, "other");
    refused(msg, "the scheduler has \"story\", you have \"other\"");
    msg = registration(PLAN_WORKER, "west", "odd");
    msg.hash = 0xc1;
    refused(msg, "hash is 00000000000000c0, yours 00000000000000c1");
    msg = registration(PLAN_WORKER, "west", "odd");
    msg.hash2 = 1;
    refused(msg, "\"east/fast\" has 000000000000da7a, you have 0000000000000001");
    refused(registration(PLAN_SCHEDULER, "west", "odd"), "needs a role");
    msg = registration(PLAN_WORKER, "", "odd");
    refused(msg, "site \"\"");
    // The same node again is only welcomed again.
    hear(FAST, registration(PLAN_WORKER, "east", "fast"));
    cr_assert(sent(FAST, WIRE_WELCOME));
    cr_assert_null(sent(FAST, WIRE_REFUSED));
}

Test(sched, a_name_is_taken_only_while_its_holder_answers)
{
    begin();
    join_workers();
    for (int again = 0; again < 2; again++) {
        hear(STRANGER, registration(PLAN_WORKER, "east", "fast"));
        cr_assert_null(sent(STRANGER, WIRE_REFUSED));
        cr_assert_null(sent(STRANGER, WIRE_WELCOME));
        cr_assert(sent(FAST, WIRE_PROBE));
        hear(STRANGER, registration(PLAN_WORKER, "east", "fast"));
        cr_assert_eq(out.sends_count, 0, "it was asked already");
        hear(FAST, (wire_msg_t){.kind = WIRE_PROBED});
        refused(registration(PLAN_WORKER, "east", "fast"), "the name \"east/fast\" is taken");
    }
    // The holder is dead: who comes after it gets its name as soon as that is known.
    hear(STRANGER, registration(PLAN_WORKER, "east", "fast"));
    step(&(step_in_t){.kind = STEP_LOST, .peer = FAST});
    hear(STRANGER, registration(PLAN_WORKER, "east", "fast"));
    cr_assert(sent(STRANGER, WIRE_WELCOME));
    cr_assert_null(sent(STRANGER, WIRE_REFUSED));
}

Test(sched, a_node_lost_before_the_start_leaves_and_may_come_back)
{
    begin();
    join_servers(0);
    join_workers();
    send_profile(FAST, 1);
    step(&(step_in_t){.kind = STEP_LOST, .peer = SLOW});
    ASSERT_NOTED("east/slow was lost before the start");
    wait_until(HX_SEC(5));
    ASSERT_NOTED("1 of 1 servers, 1 of 2 workers; missing worker east/slow");
    hear(STRANGER, registration(PLAN_WORKER, "east", "slow"));
    cr_assert(sent(STRANGER, WIRE_WELCOME));
    send_profile(STRANGER, 2);
    measure();
    cr_assert(sched_plan(sched));
    cr_assert(sent(STRANGER, WIRE_PLAN));
    cr_assert_null(sent(SLOW, WIRE_PLAN));
}

Test(sched, a_prober_lost_while_it_measures_is_not_waited_for)
{
    begin();
    join_servers(0);
    join_workers();
    send_profile(FAST, 1);
    send_profile(SLOW, 1);
    cr_assert(sent(FAST, WIRE_MEASURE));
    step(&(step_in_t){.kind = STEP_LOST, .peer = FAST});
    ASSERT_NOTED("east/fast was lost before the start");
    hear(FAST, (wire_msg_t){.kind = WIRE_LINK, .node = SHARD, .seconds = 1e-4, .value = 1e9});
    cr_assert_null(sched_plan(sched));
}

Test(sched, waits_for_profiles_and_names_the_worker)
{
    begin();
    join_servers(0);
    join_workers();
    send_profile(FAST, 1);
    wait_until(HX_SEC(5));
    ASSERT_NOTED("waiting for the profile of east/slow");
    // A profile of nonsense is dropped.
    send_profile(SLOW, -1);
    ASSERT_NOTED("profile of east/slow dropped");
    send_profile(SLOW, 2);
    measure();
    cr_assert(sched_plan(sched));
}

Test(sched, a_line_that_cannot_be_measured_is_guessed_loudly)
{
    begin();
    join_servers(0);
    join_workers();
    send_profile(FAST, 1);
    send_profile(SLOW, 1);
    hear(FAST, (wire_msg_t){.kind = WIRE_LINK, .node = SHARD, .value = 0});
    ASSERT_NOTED("east/fast could not measure its line to east/ps0.shard0");
    cr_assert(sched_plan(sched));
}

Test(sched, sends_the_plan_to_its_nodes_and_runs_when_the_lead_is_ready)
{
    up_to_plan();
    static const node_id_t ids[] = {LEAD, KEEPER, SHARD, FAST, SLOW};
    for (size_t at = 0; at < HX_COUNT(ids); at++) {
        const step_send_t *const plan = sent(ids[at], WIRE_PLAN);
        cr_assert(plan);
        plan_t decoded = {0};
        cr_assert_eq(payload_plan_decode(plan->blob, &decoded), HX_OK);
        cr_assert(plan_equal(&decoded, sched_plan(sched)));
        plan_destroy(&decoded);
    }
    cr_assert_eq(sched_plan(sched)->pipelines_count, 2);
    cr_assert_eq(sched_plan(sched)->run_id, 77);
    cr_assert_eq(sched_plan(sched)->resume, PLAN_RESUME_NONE);
    cr_assert(given(SCHED_JOB_PLAN));
    wait_until(HX_SEC(5));
    ASSERT_NOTED("waiting for east/ps0.lead to have every node of the plan ready");
    hear(FAST, (wire_msg_t){.kind = WIRE_PLAN_ACK, .epoch = 1});
    cr_assert_not(noted("the run begins"));
    hear(LEAD, (wire_msg_t){.kind = WIRE_PLAN_ACK, .epoch = 1});
    ASSERT_NOTED("the run begins");
}

Test(sched, resumes_from_the_keepers_checkpoint_unless_told_not_to)
{
    begin();
    join_servers(41);
    join_workers();
    send_profile(FAST, 1);
    send_profile(SLOW, 1);
    measure();
    cr_assert_eq(sched_plan(sched)->resume, 40);
    ASSERT_NOTED("resuming from checkpoint 40");
    sched_destroy(&sched);
    conf.resume = false;
    conf.init_file = true;
    begin();
    join_servers(41);
    join_workers();
    send_profile(FAST, 1);
    send_profile(SLOW, 1);
    measure();
    cr_assert_eq(sched_plan(sched)->resume, PLAN_RESUME_NONE);
    cr_assert(sched_plan(sched)->init_file);
}

static void progress(uint64_t version, uint64_t tokens, double loss)
{
    char line[256];
    snprintf(line, sizeof line,
             "{\"version\": %" PRIu64 ", \"tokens_per_second\": 100.0, \"contributions\": "
             "[{\"pipeline\": 0, \"tokens\": 48, \"lag\": 2}, {\"pipeline\": 7, \"lag\": 0}]}",
             version);
    hear_with(
        LEAD,
        (wire_msg_t){.kind = WIRE_PROGRESS, .version = version, .tokens = tokens, .loss = loss},
        blob_copy(line, strlen(line)));
}

Test(sched, passes_progress_on_with_a_line_a_second)
{
    up_to_run();
    now = HX_SEC(10);
    progress(1, 100, 5.5);
    cr_assert(given(SCHED_JOB_METRICS));
    ASSERT_NOTED(
        "commit 1  100 of 1000 (10 %) tokens  loss 5.5000  100 tokens/s  lag 1.0  0:09 left");
    now += HX_MS(500);
    progress(2, 200, 5.4);
    cr_assert(given(SCHED_JOB_METRICS));
    cr_assert_eq(out.notes_count, 0);
    now += HX_MS(500);
    progress(3, 300, 5.3);
    ASSERT_NOTED("commit 3");
    hear_with(LEAD, (wire_msg_t){.kind = WIRE_PROGRESS, .version = 3, .loss = 5.1, .flags = 1},
              blob_copy("{}", 2));
    ASSERT_NOTED("version 3: validation loss 5.1000");
    hear(FAST, (wire_msg_t){.kind = WIRE_PROGRESS, .version = 9});
    cr_assert_eq(out.jobs_count, 0);
}

Test(sched, answers_status_with_a_line_for_each_node)
{
    up_to_run();
    now = HX_SEC(10);
    progress(1, 100, 5.5);
    now = HX_SEC(12);
    progress(2, 200, 5.4);
    hear(CTL, (wire_msg_t){.kind = WIRE_STATUS_ASK});
    const step_send_t *const answer = sent(CTL, WIRE_STATUS);
    cr_assert(answer);
    json_t *json = json_loadb(blob_data(answer->blob), blob_size(answer->blob), 0, NULL);
    cr_assert(json);
    cr_assert_str_eq(text_in(json, "phase"), "running");
    cr_assert_eq(json_integer_value(json_object_get(json, "version")), 2);
    const json_t *const nodes = json_object_get(json, "nodes");
    cr_assert_eq(json_array_size(nodes), 5);
    uint32_t seated = 0;
    for (size_t at = 0; at < 5; at++) {
        const json_t *const node = json_array_get(nodes, at);
        if (json_integer_value(json_object_get(node, "pipeline")) == 1) {
            seated++;
            cr_assert_str_eq(text_in(node, "role"), "worker");
            cr_assert_float_eq(json_number_value(json_object_get(node, "step_seconds")), 2, 1e-9);
            cr_assert_float_eq(json_number_value(json_object_get(node, "tokens_per_second")), 24,
                               1e-9);
        }
    }
    cr_assert_eq(seated, 1);
    json_decref(json);
}

Test(sched, ends_with_the_leads_totals_and_the_bytes_between_sites)
{
    up_to_run();
    static const char totals[] = "{\"version\": 12, \"tokens\": 960, \"valid_loss\": 1.5, "
                                 "\"lag_max\": 3, \"dropped\": 1}";
    hear_with(LEAD,
              (wire_msg_t){.kind = WIRE_DONE, .count = 0, .version = 12, .text = "goal reached"},
              blob_copy(totals, strlen(totals)));
    cr_assert_eq(sent(SHARD, WIRE_STOP)->msg.count, 0);
    cr_assert_str_eq(sent(SHARD, WIRE_STOP)->msg.text, "goal reached");
    static const char events[] =
        "{\"name\":\"forward\",\"ph\":\"X\"}\n"
        "{\"name\":\"bytes_received\",\"ph\":\"M\",\"args\":{\"west\":100,\"east\":7}}\n";
    hear_with(FAST, (wire_msg_t){.kind = WIRE_STOPPED}, blob_copy(events, strlen(events)));
    cr_assert_eq(out.jobs_count, 2);
    cr_assert_eq(out.jobs[0].kind, SCHED_JOB_TRACE);
    cr_assert_eq(blob_size(out.jobs[0].blob), strlen("east/fast"));
    cr_assert_eq(blob_size(out.jobs[1].blob), strlen(events));
    all_stop();
    json_t *json = summary();
    cr_assert_str_eq(text_in(json, "status"), "done");
    cr_assert_str_eq(text_in(json, "reason"), "goal reached");
    cr_assert_str_eq(text_in(json, "mode"), "ssaw");
    cr_assert_eq(json_integer_value(json_object_get(json, "version")), 12);
    cr_assert_eq(json_integer_value(json_object_get(json, "tokens")), 960);
    cr_assert_eq(json_integer_value(json_object_get(json, "lag_max")), 3);
    cr_assert_float_eq(json_number_value(json_object_get(json, "predicted_step_seconds")),
                       sched_plan(sched)->step_seconds, 1e-6);
    const json_t *const plan = json_object_get(json, "plan");
    cr_assert_eq(json_array_size(json_object_get(plan, "pipelines")), 2);
    const json_t *const bytes = json_object_get(json, "bytes_sent");
    cr_assert_eq(json_integer_value(json_object_get(bytes, "west -> east")), 100);
    cr_assert_eq(json_integer_value(json_object_get(bytes, "east -> east")), 7);
    static const char *const keys[] = {"status",
                                       "reason",
                                       "seconds",
                                       "version",
                                       "tokens",
                                       "tokens_per_second",
                                       "train_loss",
                                       "valid_loss",
                                       "mode",
                                       "lag_mean",
                                       "lag_max",
                                       "valid_loss_first",
                                       "dropped",
                                       "replans",
                                       "plan",
                                       "failures",
                                       "bytes_sent",
                                       "predicted_step_seconds",
                                       "measured_step_seconds"};
    for (size_t at = 0; at < HX_COUNT(keys); at++) {
        cr_assert(json_object_get(json, keys[at]), "%s is missing", keys[at]);
    }
    json_decref(json);
    job_done(SCHED_JOB_SUMMARY, HX_OK);
    cr_assert(out.stop);
    cr_assert_eq(out.status, 0);
}

Test(sched, a_summary_that_cannot_be_written_is_no_success)
{
    up_to_run();
    hear(LEAD, (wire_msg_t){.kind = WIRE_DONE, .text = "goal reached"});
    all_stop();
    job_done(SCHED_JOB_SUMMARY, HX_E_IO);
    cr_assert_eq(out.status, 1);
}

Test(sched, files_that_cannot_be_written_are_said_now_and_then)
{
    up_to_run();
    const hx_time_t start = now;
    uint32_t said = 0;
    for (uint32_t commit = 0; commit < 300; commit++) {
        now = start + HX_MS(100) * commit;
        blob_t *blob = blob_copy("metrics.jsonl: no space", 23);
        step(&(step_in_t){.kind = STEP_JOB,
                          .job = {.kind = SCHED_JOB_METRICS},
                          .error = HX_E_NOSPC,
                          .blob = blob});
        blob_release(&blob);
        said += out.notes_count > 0;
        if (commit == 0) {
            ASSERT_NOTED("could not be written: metrics.jsonl: no space");
        }
        if (commit == 100) {
            ASSERT_NOTED("and 99 more");
        }
    }
    cr_assert_eq(said, 3);
}

Test(sched, a_lost_worker_is_a_warning_and_a_lost_server_the_end)
{
    up_to_run();
    step(&(step_in_t){.kind = STEP_LOST, .peer = SLOW});
    ASSERT_NOTED("east/slow (a worker) is gone");
    cr_assert_eq(out.notes[0].level, STEP_WARN);
    cr_assert_eq(out.sends_count, 0);
    step(&(step_in_t){.kind = STEP_LOST, .peer = SHARD});
    ASSERT_NOTED("east/ps0.shard0 (shard) is gone");
    cr_assert_eq(sent(LEAD, WIRE_STOP)->msg.count, 1);
    cr_assert_null(sent(SHARD, WIRE_STOP));
    cr_assert_null(sent(SLOW, WIRE_STOP));
    hear(LEAD, (wire_msg_t){.kind = WIRE_STOPPED});
    hear(KEEPER, (wire_msg_t){.kind = WIRE_STOPPED});
    cr_assert_null(given(SCHED_JOB_SUMMARY));
    wait_until(now + HX_SEC(5));
    ASSERT_NOTED("waiting for the end of east/fast");
    wait_until(now + HX_SEC(5));
    ASSERT_NOTED("not waiting any more for the end of east/fast");
    cr_assert(given(SCHED_JOB_SUMMARY));
    json_t *json = summary();
    cr_assert_str_eq(text_in(json, "status"), "failed");
    cr_assert(strstr(text_in(json, "reason"), "east/ps0.shard0"));
    cr_assert_eq(json_integer_value(json_object_get(json, "failures")), 2);
    json_decref(json);
}

Test(sched, a_worker_that_leaves_is_no_failure)
{
    up_to_run();
    hear(SLOW, (wire_msg_t){.kind = WIRE_LEAVE, .text = "was asked to stop:"});
    ASSERT_NOTED("east/slow (a worker) was asked to stop:");
    hear(LEAD, (wire_msg_t){.kind = WIRE_DONE, .text = "goal reached"});
    cr_assert_null(sent(SLOW, WIRE_STOP));
}

Test(sched, a_signal_asks_the_lead_and_a_second_one_forces)
{
    up_to_run();
    step(&(step_in_t){.kind = STEP_SIGNAL});
    cr_assert_eq(sent(LEAD, WIRE_STOP_ASK)->msg.count, 130);
    cr_assert_null(sent(FAST, WIRE_STOP));
    hear(LEAD, (wire_msg_t){.kind = WIRE_DONE, .count = 130, .text = "interrupted"});
    cr_assert(sent(FAST, WIRE_STOP));
    all_stop();
    json_t *json = summary();
    cr_assert_str_eq(text_in(json, "status"), "interrupted");
    json_decref(json);
    job_done(SCHED_JOB_SUMMARY, HX_OK);
    cr_assert_eq(out.status, 130);
}

Test(sched, a_second_signal_does_not_wait_for_the_lead)
{
    up_to_run();
    step(&(step_in_t){.kind = STEP_SIGNAL});
    step(&(step_in_t){.kind = STEP_SIGNAL});
    cr_assert_eq(sent(FAST, WIRE_STOP)->msg.count, 130);
}

Test(sched, a_lead_that_does_not_end_is_not_waited_for)
{
    up_to_run();
    now = HX_SEC(20);
    hear(CTL, (wire_msg_t){.kind = WIRE_STOP_ASK, .count = 130, .text = "by hand"});
    cr_assert_str_eq(sent(LEAD, WIRE_STOP_ASK)->msg.text, "by hand");
    cr_assert_eq(out.wake_at, HX_SEC(26));
    wait_until(HX_SEC(26));
    ASSERT_NOTED("the lead did not end the run in time");
    cr_assert_eq(sent(FAST, WIRE_STOP)->msg.count, 130);
    cr_assert_str_eq(sent(FAST, WIRE_STOP)->msg.text, "by hand");
}

Test(sched, a_signal_while_gathering_ends_at_once)
{
    begin();
    step(&(step_in_t){.kind = STEP_SIGNAL});
    cr_assert(given(SCHED_JOB_SUMMARY));
    job_done(SCHED_JOB_SUMMARY, HX_OK);
    cr_assert(out.stop);
    cr_assert_eq(out.status, 130);
}

Test(sched, plan_only_prints_and_stops_all_with_status_0)
{
    conf.plan_only = true;
    up_to_plan();
    const step_job_t *const job = given(SCHED_JOB_PLAN);
    cr_assert(job);
    cr_assert_eq(job->flags, 0);
    cr_assert_eq(job->version, 1);
    cr_assert(memmem(blob_data(job->blob), blob_size(job->blob), "east/fast", 9));
    cr_assert_null(sent(LEAD, WIRE_PLAN));
    cr_assert_eq(sent(LEAD, WIRE_STOP)->msg.count, 0);
    all_stop();
    cr_assert(out.stop);
    cr_assert_eq(out.status, 0);
    cr_assert_null(given(SCHED_JOB_SUMMARY));
}

Test(sched, a_plan_that_cannot_be_ends_the_run_with_its_line)
{
    conf.planner.stages = "east/fast:1,east/slow:2";
    conf.planner.pipelines = PLANNER_AUTO;
    up_to_plan();
    ASSERT_NOTED("pipeline 1 have 3 transformer blocks in all, the model has 2");
    cr_assert_eq(sent(LEAD, WIRE_STOP)->msg.count, 1);
    cr_assert_null(sched_plan(sched));
}

static hx_err_t no_plan(void *self, const plan_t *plan, hx_fault_t *fault)
{
    return hx_fault(fault, HX_E_ARG, "%s %" PRIu32, (const char *)self, plan->pipelines_count);
}

Test(sched, asks_whether_the_configuration_allows_the_plan)
{
    static char text[] = "not with this many pipelines:";
    conf.check = no_plan;
    conf.check_self = text;
    up_to_plan();
    ASSERT_NOTED("not with this many pipelines: 2");
    cr_assert_eq(sent(LEAD, WIRE_STOP)->msg.count, 1);
}

Test(sched, a_node_that_comes_after_the_start_is_refused)
{
    up_to_run();
    refused(registration(PLAN_WORKER, "east", "late"), "has begun without \"east/late\"");
}

static uint32_t warnings(void)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < out.notes_count; at++) {
        count += out.notes[at].level == STEP_WARN;
    }
    return count;
}

Test(sched, who_is_refused_again_and_again_is_answered_but_said_once_a_minute)
{
    up_to_run();
    const hx_time_t start = now;
    uint32_t said = 0;
    for (uint32_t second = 0; second < 120; second++) {
        now = start + HX_SEC(second);
        refused(registration(PLAN_WORKER, "east", "late"), "has begun");
        said += warnings();
    }
    cr_assert_eq(said, 2);
    now += HX_SEC(1);
    refused(registration(PLAN_WORKER, "east", "other"), "has begun");
    cr_assert_eq(warnings(), 1, "another name is news");
    ASSERT_NOTED("and 59 more");
}

Test(sched, many_who_are_refused_do_not_fill_the_log)
{
    up_to_run();
    const hx_time_t start = now;
    uint32_t said = 0;
    for (uint32_t one = 0; one < 4000; one++) {
        char name[16];
        snprintf(name, sizeof name, "n%u", one);
        now = start + HX_MS(10) * one;
        refused(registration(PLAN_WORKER, "east", name), "has begun");
        said += warnings();
    }
    cr_assert_leq(said, 40, "%u lines in 40 s", said);
    cr_assert_geq(said, 16);
}

Test(sched, answers_probes_and_drops_nonsense)
{
    begin();
    hear(STRANGER, (wire_msg_t){.kind = WIRE_PROBE, .micro = 5});
    cr_assert_eq(sent(STRANGER, WIRE_PROBED)->msg.micro, 5);
    static const wire_kind_t odd[] = {WIRE_DONE,    WIRE_PROGRESS, WIRE_PLAN_ACK, WIRE_LINK,
                                      WIRE_STOPPED, WIRE_PROFILE,  WIRE_VOTE,     WIRE_LEAVE};
    for (size_t at = 0; at < HX_COUNT(odd); at++) {
        hear(STRANGER, (wire_msg_t){.kind = odd[at]});
        cr_assert_eq(out.sends_count + out.jobs_count, 0);
        cr_assert_not(out.stop);
    }
    step(&(step_in_t){.kind = STEP_LOST, .peer = STRANGER});
    cr_assert_eq(out.notes_count, 0);
}

// ---- orders

static void order(node_id_t from, wire_order_t what, const char *text)
{
    wire_msg_t msg = {.kind = WIRE_ORDER, .count = what, .node = 12345};
    snprintf(msg.text, sizeof msg.text, "%s", text);
    hear(from, msg);
}

static void answered(uint32_t status, const char *says)
{
    const step_send_t *const answer = sent(CTL, WIRE_ORDERED);
    cr_assert(answer);
    cr_assert_eq(answer->msg.count, status);
    cr_assert(strstr(answer->msg.text, says), "%s", answer->msg.text);
}

Test(sched, passes_orders_to_the_lead_and_its_answer_back)
{
    up_to_plan();
    order(CTL, WIRE_ORDER_SET, "sync.staleness=8");
    answered(1, "has not begun");
    hear(LEAD, (wire_msg_t){.kind = WIRE_PLAN_ACK, .epoch = 1});
    order(CTL, WIRE_ORDER_SET, "sync.staleness=8");
    const step_send_t *const passed = sent(LEAD, WIRE_ORDER);
    cr_assert(passed);
    cr_assert_eq(passed->msg.node, CTL, "the answer goes to who asked, whatever he says");
    cr_assert_str_eq(passed->msg.text, "sync.staleness=8");
    hear(LEAD, (wire_msg_t){.kind = WIRE_ORDERED, .node = CTL, .text = "done"});
    answered(0, "done");
    hear(FAST, (wire_msg_t){.kind = WIRE_ORDERED, .node = CTL, .text = "done"});
    cr_assert_eq(out.sends_count, 0, "only the lead may answer");
    hear(CTL, (wire_msg_t){.kind = WIRE_STOP_ASK, .count = 130, .text = "enough"});
    order(CTL, WIRE_ORDER_CHECKPOINT, "");
    answered(1, "being ended");
}

Test(sched, a_worker_that_was_drained_is_told_to_stop_and_is_no_failure)
{
    up_to_run();
    hear(LEAD, (wire_msg_t){.kind = WIRE_ORDERED, .node = CTL, .name = "east/slow"});
    cr_assert(sent(CTL, WIRE_ORDERED));
    cr_assert(sent(SLOW, WIRE_STOP));
    cr_assert_eq(sent(SLOW, WIRE_STOP)->msg.count, 0);
    cr_assert_null(sent(FAST, WIRE_STOP));
    hear(SLOW, (wire_msg_t){.kind = WIRE_STOPPED});
    step(&(step_in_t){.kind = STEP_LOST, .peer = SLOW});
    cr_assert_eq(out.notes_count, 0);
    hear(LEAD, (wire_msg_t){.kind = WIRE_ORDERED, .node = CTL, .name = "east/ps0.shard0"});
    cr_assert_null(sent(SHARD, WIRE_STOP), "servers stay");
    hear(LEAD, (wire_msg_t){.kind = WIRE_DONE, .version = 3});
    hear(LEAD, (wire_msg_t){.kind = WIRE_STOPPED});
    hear(KEEPER, (wire_msg_t){.kind = WIRE_STOPPED});
    hear(SHARD, (wire_msg_t){.kind = WIRE_STOPPED});
    hear(FAST, (wire_msg_t){.kind = WIRE_STOPPED});
    json_t *const json = summary();
    cr_assert_eq(json_integer_value(json_object_get(json, "failures")), 0);
    json_decref(json);
}

Test(sched, status_has_what_the_lead_said_last)
{
    up_to_run();
    static const char text[] = "{\"version\": 3, \"lags\": [1, 2]}";
    hear_with(LEAD, (wire_msg_t){.kind = WIRE_LEAD_STATUS}, blob_copy(text, sizeof text - 1));
    hear_with(FAST, (wire_msg_t){.kind = WIRE_LEAD_STATUS}, blob_copy("{}", 2));
    hear_with(LEAD, (wire_msg_t){.kind = WIRE_LEAD_STATUS}, blob_copy("nonsense", 8));
    now += HX_SEC(2);
    hear(CTL, (wire_msg_t){.kind = WIRE_STATUS_ASK});
    const blob_t *const answer = sent(CTL, WIRE_STATUS)->blob;
    json_t *const json = json_loadb(blob_data(answer), blob_size(answer), 0, NULL);
    const json_t *const sync = json_object_get(json, "sync");
    cr_assert_eq(json_integer_value(json_object_get(sync, "version")), 3);
    cr_assert_float_eq(json_number_value(json_object_get(json, "sync_age_seconds")), 2, 1e-9);
    json_decref(json);
}
