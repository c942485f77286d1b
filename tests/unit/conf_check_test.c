// conf_check: what keys mean together.

#include "net/conf_check.h"
#include "net/conf_optim.h"

#include <criterion/criterion.h>
#include <string.h>

// A configuration of two workers, one server, with `text` added and `sets` applied.
static hx_err_t read_conf(const char *text, const char *const *sets, conf_t *conf,
                          hx_fault_t *fault)
{
    char whole[4096];
    size_t count = 0;
    *fault = (hx_fault_t){0};
    while (sets && sets[count]) {
        count++;
    }
    const int size =
        snprintf(whole, sizeof whole, "%s%s", text,
                 strstr(text, "plan\n") ? "" : "plan\n    workers = 2\n    servers = 1\n");
    return conf_read("t.conf", whole, (size_t)size, sets, count, conf, fault);
}

#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void accept(const char *text, const char *const *sets, conf_t *conf)
{
    hx_fault_t fault;
    const hx_err_t err = read_conf(text, sets, conf, &fault);
    cr_assert_eq(err, HX_OK, "%s", fault.text);
}

static void refuse(const char *text, const char *const *sets, const char *const *says)
{
    conf_t conf;
    hx_fault_t fault;
    cr_expect_neq(read_conf(text, sets, &conf, &fault), HX_OK, "accepted:\n%s", text);
    for (; *says; says++) {
        cr_expect(strstr(fault.text, *says), "\"%s\" does not say \"%s\"", fault.text, *says);
    }
}

Test(conf_check, a_mode_means_its_numbers)
{
    conf_t conf;
    accept("sync\n    mode = bsp\n", NULL, &conf);
    cr_expect_eq(conf.sync.quorum, 1);
    cr_expect_eq(conf.sync.staleness, 0);
    cr_expect_eq(conf.sync.lag_max, 0);
    cr_expect_eq(conf.sync.gate, CONF_UNBOUNDED);
    cr_expect_eq(conf.sync.run_ahead, 0);
    cr_expect_eq(conf.sync.grace, 0);
    cr_expect_eq(conf.sync.weighting, CONF_WEIGHTING_CONST);
    conf_destroy(&conf);

    accept("sync\n    mode = asp\n", NULL, &conf);
    cr_expect_eq(conf.sync.quorum, CONF_QUORUM_ONE);
    cr_expect_eq(conf.sync.lag_max, CONF_UNBOUNDED);
    cr_expect_eq(conf.sync.run_ahead, 1, "free in asp");
    conf_destroy(&conf);

    accept("sync\n    mode = softsync\n", NULL, &conf);
    cr_assert_eq(conf.sync.quorum, 0.5);
    cr_assert_eq(conf.sync.lag_max, CONF_UNBOUNDED);
    cr_assert_eq(conf.sync.weighting, CONF_WEIGHTING_INVERSE);
    conf_destroy(&conf);
    accept("sync\n    mode = ksync\n", NULL, &conf);
    cr_assert_eq(conf.sync.quorum, 0.75);
    cr_assert_eq(conf.sync.run_ahead, 0);
    cr_assert(conf.sync.cancel_late);
    conf_destroy(&conf);
    accept("sync\n    mode = ksync\n    quorum = 0.9\n", NULL, &conf);
    cr_assert_eq(conf.sync.quorum, 0.9, "a fraction of one's own");
    conf_destroy(&conf);
    accept("sync\n    mode = eager\n", NULL, &conf);
    cr_assert_eq(conf.sync.weighting, CONF_WEIGHTING_CONST);
    cr_assert_eq(conf.sync.grace, 0);
    conf_destroy(&conf);
    accept("sync\n    mode = wsp\n    staleness = 2\n", NULL, &conf);
    cr_assert_eq(conf.sync.gate, 2);
    cr_assert_eq(conf.sync.run_ahead, 2);
    cr_assert_eq(conf.sync.lag_max, CONF_UNBOUNDED);
    conf_destroy(&conf);
    accept("sync\n    mode = ssp\n    staleness = 3\n", NULL, &conf);
    cr_expect_eq(conf.sync.quorum, CONF_QUORUM_ONE);
    cr_expect_eq(conf.sync.gate, 3);
    cr_expect_eq(conf.sync.lag_max, CONF_UNBOUNDED);
    cr_expect_eq(conf.sync.run_ahead, 3);
    conf_destroy(&conf);

    accept("", NULL, &conf);
    cr_expect_eq(conf.sync.mode, CONF_MODE_SSAW);
    cr_expect_eq(conf.sync.quorum, 0.5);
    cr_expect_eq(conf.sync.lag_max, 8);
    conf_destroy(&conf);
}

Test(conf_check, the_stronger_source_wins_over_what_a_mode_means)
{
    conf_t conf;
    accept("sync\n    mode = ssaw\n    staleness = 7\n", SETS("sync.mode=bsp"), &conf);
    cr_expect_eq(conf.sync.staleness, 0, "the command line is stronger than the file");
    conf_destroy(&conf);
    refuse("sync\n    mode = bsp\n    staleness = 7\n", NULL,
           SETS("t.conf:3", "sync.staleness = 7", "sync.mode = bsp", "means 0"));
    refuse("sync\n    mode = bsp\n", SETS("sync.quorum=0.5"), SETS("--set", "sync.quorum = 0.5"));
    accept("sync\n    mode = bsp\n    staleness = 0\n    quorum = 1\n", NULL, &conf);
    conf_destroy(&conf);
    refuse("sync\n    mode = ssp\n    staleness = none\n", NULL, SETS("ssp needs a bound"));
    refuse("sync\n    mode = wsp\n    staleness = none\n", NULL,
           SETS("wsp needs a bound", "waves"));
    refuse("sync\n    mode = ksync\n    staleness = 3\n", NULL,
           SETS("sync.staleness", "sync.mode = ksync means none"));
    refuse("sync\n    mode = eager\n    weighting = poly\n", NULL,
           SETS("sync.weighting", "sync.mode = eager means const"));
}

Test(conf_check, a_goal_in_time_takes_the_place_of_the_default_goal)
{
    conf_t conf;
    accept("", NULL, &conf);
    cr_expect_eq(conf.train.tokens, 2000000);
    conf_destroy(&conf);
    accept("train\n    seconds = 30\n", NULL, &conf);
    cr_expect_eq(conf.train.tokens, 0);
    cr_expect_eq(conf.train.seconds, 30);
    conf_destroy(&conf);
    accept("train\n    seconds = 30\n    tokens = 5000\n", NULL, &conf);
    cr_expect_eq(conf.train.tokens, 5000);
    conf_destroy(&conf);
    refuse("train\n    tokens = none\n", NULL, SETS("no goal"));
}

Test(conf_check, nodes_are_counted_in_launch)
{
    conf_t conf;
    const char *const text =
        "plan\n    pipelines = 2\nlaunch\n"
        "    site\n        name = a\n        servers = 2\n"
        "        worker\n            name = x\n        worker\n            name = y\n"
        "    site\n        name = b\n        worker\n            name = x\n";
    accept(text, NULL, &conf);
    cr_expect_eq(conf.plan.workers, 3);
    cr_expect_eq(conf.plan.servers, 3);
    cr_expect_eq(conf.launch.sites[1].workers[0].slowdown, 1);
    conf_destroy(&conf);
    accept(text, SETS("plan.workers=8"), &conf);
    cr_expect_eq(conf.plan.workers, 8);
    conf_destroy(&conf);
    refuse("plan\n    servers = 1\n", NULL, SETS("plan.workers", "no workers to wait for"));
    refuse("plan\n    workers = 1\n", NULL, SETS("plan.servers", "no servers to wait for"));
    refuse("plan\n    workers = 1\n    servers = 1\n    pipelines = 2\n", NULL,
           SETS("t.conf:4", "more pipelines than workers (1)"));
}

Test(conf_check, follow_ups_have_their_source)
{
    conf_t conf;
    accept("run\n    seed = 9\nscheduler\n    endpoint = \"tcp://127.0.0.1:1234\"\n", NULL, &conf);
    cr_expect_eq(conf.train.order_seed, 9);
    cr_expect_str_eq(conf.scheduler.bind, "tcp://127.0.0.1:1234");
    conf_destroy(&conf);
    accept("train\n    order_seed = 4\n", NULL, &conf);
    cr_expect_eq(conf.train.order_seed, 4);
    conf_destroy(&conf);
}

Test(conf_check, stages_by_hand_are_parsed_and_must_add_up)
{
    conf_t conf;
    accept("plan\n    workers = 5\n    servers = 1\n    stages = \"east:1,3;4\"\nmodel\n    layers "
           "= 4\n",
           NULL, &conf);
    cr_assert_eq(conf.plan.cuts_count, 2);
    cr_expect_str_eq(conf.plan.cuts[0].site, "east");
    cr_expect_eq(conf.plan.cuts[0].stages_count, 2);
    cr_expect_eq(conf.plan.cuts[0].layers[1], 3);
    cr_expect_str_eq(conf.plan.cuts[1].site, "");
    cr_expect_eq(conf.plan.cuts[1].layers[0], 4);
    conf_destroy(&conf);

    const char *const four = "plan\n    workers = 4\n    servers = 1\nmodel\n    layers = 30\n";
    accept("plan\n    workers = 5\n    servers = 1\n    stages = \"east/a:1,east/b-2:3;west:2,2\"\n"
           "model\n    layers = 4\n",
           NULL, &conf);
    cr_expect_eq(conf.plan.cuts_count, 2);
    cr_expect_str_eq(conf.plan.cuts[0].site, "");
    cr_expect_eq(conf.plan.cuts[0].layers[1], 3);
    cr_expect_str_eq(conf.plan.cuts[1].site, "west");
    conf_destroy(&conf);
    refuse(four, SETS("plan.stages=7,7,7,7"), SETS("28 blocks", "has 30", "29 to 30"));
    refuse(four, SETS("plan.stages=7,7,7,10"), SETS("31 blocks", "has 30", "too many"));
    refuse(four, SETS("plan.stages=30,0"), SETS("a stage without a block"));
    refuse(four, SETS("plan.stages=6,6,6,6,6"), SETS("5 stages", "4 workers"));
    refuse(four, SETS("plan.stages=30;30", "plan.pipelines=3"), SETS("cuts 2 pipelines"));
    for (size_t at = 0; at < 8; at++) {
        static const char *const bad[] = {
            "plan.stages=1,", "plan.stages=,1", "plan.stages=;",     "plan.stages=30;;",
            "plan.stages=a",  "plan.stages=:1", "plan.stages=a b:1", "plan.stages=1.5",
        };
        refuse(four, SETS(bad[at]), SETS("plan.stages", "expected blocks per stage"));
    }
}

Test(conf_check, contradictions_are_refused_with_both_values)
{
    refuse("model\n    heads = 5\n", NULL, SETS("t.conf:2", "128 channels", "5 heads"));
    refuse("train\n    global_batch = 1000\n", NULL, SETS("t.conf:2", "128 tokens", "try 896"));
    refuse("train\n    global_batch = 100\n", NULL, SETS("try 128"));
    refuse("", SETS("plan.microbatch=7"), SETS("--set", "plan.microbatch = 7", "64 rows"));
    refuse("run\n    connect_timeout = 3\n", NULL, SETS("run.request_timeout = 2"));
    refuse("run\n    request_timeout = 20\n", NULL, SETS("run.dead_after = 15"));
    refuse("run\n    dead_after = 30\n", NULL, SETS("t.conf:2", "run.lease_min = 20"));
    refuse("sync\n    local_steps = 4\n", NULL, SETS("sync.mode = local"));
    refuse("sync\n    agreement = 0.5\n", SETS("train.optimizer=sgd", "train.momentum=0"),
           SETS("t.conf:2", "no momentum"));
    refuse("server\n    replicas = 2\n", NULL, SETS("not in this version"));
    refuse("security\n    curve = 1\n", NULL, SETS("later version"));
}

Test(conf_check, one_contribution_needs_a_bound_of_at_least_the_pipelines)
{
    conf_t conf;
    hx_fault_t fault;
    const char *const one =
        "plan\n    workers = 8\n    servers = 1\nsync\n    quorum = one\n    staleness = 4\n";
    refuse(one, SETS("plan.pipelines=5"), SETS("sync.staleness = 4", "number of pipelines, 5"));
    refuse(one, SETS("sync.staleness=0"), SETS("sync.staleness = 0", "number of pipelines, 1"));
    accept(one, SETS("plan.pipelines=4"), &conf);
    cr_expect_eq(conf_check_pipelines(&conf, 4, &fault), HX_OK);
    cr_expect_eq(conf_check_pipelines(&conf, 5, &fault), HX_E_ARG, "found by the planner");
    conf_destroy(&conf);
    accept(one, SETS("plan.pipelines=5", "sync.staleness=none"), &conf);
    conf_destroy(&conf);
    accept(one, SETS("sync.mode=asp"), &conf);
    cr_expect_eq(conf_check_pipelines(&conf, 16, &fault), HX_OK);
    cr_expect_eq(conf_check_pipelines(&conf, 17, &fault), HX_E_ARG);
    conf_destroy(&conf);
}

Test(conf_check, nothing_binds_beyond_loopback_without_keys)
{
    conf_t conf;
    hx_fault_t fault;
    accept("", NULL, &conf);
    static const char *const good[] = {"tcp://127.0.0.1:7700", "tcp://localhost:*",
                                       "tcp://[::1]:80",       "ipc:///tmp/x",
                                       "inproc://x",           "127.0.0.1:7780"};
    static const char *const open[] = {
        "tcp://*:7700", "tcp://0.0.0.0:7700",      "tcp://10.0.0.1:1",
        "tcp://eth0:*", "tcp://127.example.com:1", "tcp://[::]:7"};
    static const char *const malformed[] = {
        "tcp://127.0.0.1",  "tcp://:1",          "7700",
        "tcp://127.0.0.1:", "tcp://127.0.0.1:x", "tcp://127.0.0.1:70000"};
    for (size_t at = 0; at < HX_COUNT(good); at++) {
        cr_expect_eq(conf_check_bind(good[at], &conf, &fault), HX_OK, "%s", fault.text);
    }
    for (size_t at = 0; at < HX_COUNT(open); at++) {
        cr_expect_eq(conf_check_bind(open[at], &conf, &fault), HX_E_ARG, "%s", open[at]);
        cr_expect(strstr(fault.text, open[at]) && strstr(fault.text, "security.curve"), "%s",
                  fault.text);
    }
    for (size_t at = 0; at < HX_COUNT(malformed); at++) {
        cr_expect_eq(conf_check_bind(malformed[at], &conf, &fault), HX_E_ARG, "%s", malformed[at]);
        cr_expect(strstr(fault.text, "expected tcp://"), "%s", fault.text);
    }
    conf_destroy(&conf);
    refuse("scheduler\n    endpoint = \"tcp://0.0.0.0:7700\"\n", NULL, SETS("0.0.0.0"));
    refuse("server\n    bind = \"tcp://*:*\"\n", NULL, SETS("tcp://*:*"));
    refuse("scheduler\n    bind = \"tcp://[fe80::1]:7700\"\n", NULL, SETS("fe80"));
    // What a name means is known only when it is bound.
    accept("scheduler\n    endpoint = \"tcp://head.example:7700\"\n", NULL, &conf);
    conf_destroy(&conf);
    refuse("scheduler\n    endpoint = \"tcp://head.example\"\n", NULL, SETS("head.example"));
}

Test(conf_check, where_names_the_source)
{
    conf_t conf;
    char where[600];
    accept("train\n    lr = 0.1\n", SETS("run.seed=3"), &conf);
    conf_where(&conf, "train.lr", where, sizeof where);
    cr_expect_str_eq(where, "t.conf:2");
    conf_where(&conf, "run.seed", where, sizeof where);
    cr_expect_str_eq(where, "--set");
    conf_where(&conf, "train.clip", where, sizeof where);
    cr_expect_str_eq(where, "t.conf (default)");
    conf_destroy(&conf);
}

Test(conf_check, local_is_bsp_in_larger_rounds_over_pipelines_of_one_stage)
{
    conf_t conf;
    accept("sync\n    mode = local\n    local_steps = 4\n", NULL, &conf);
    cr_expect_eq(conf.sync.quorum, 1);
    cr_expect_eq(conf.sync.lag_max, 0);
    cr_expect_eq(conf.plan.pipelines, conf.plan.workers);
    cr_expect_eq(conf_round_rows(&conf), 4 * conf_rows(&conf));
    const optim_conf_t outer = conf_server_optim(&conf);
    cr_expect(outer.kind == OPTIM_SGD && outer.nesterov && outer.weight_decay == 0);
    cr_expect_eq(outer.momentum, 0.9);
    cr_expect_eq(conf_server_clip(&conf), 0);
    const optim_schedule_t schedule = conf_server_schedule(&conf);
    cr_expect_eq(optim_lr(&schedule, 0), 0.7);
    cr_expect_eq(optim_lr(&schedule, UINT64_C(1) << 40), 0.7);
    cr_expect_eq(conf_optim(&conf).kind, OPTIM_ADAMW);
    conf_destroy(&conf);
    refuse("sync\n    mode = local\n    staleness = 4\n", NULL, SETS("sync.mode = local"));
    refuse("sync\n    mode = local\n    local_steps = 1000000\n", NULL, SETS("microbatches"));
    refuse("sync\n    mode = local\nplan\n    workers = 2\n    servers = 1\n    stages = \"1,1\"\n",
           NULL, SETS("one stage"));
}
