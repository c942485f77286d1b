// conf: reading a file and --set, printing, hashing, changing.

#include "net/conf.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

static size_t count_of(const char *const *sets)
{
    size_t count = 0;
    while (sets && sets[count]) {
        count++;
    }
    return count;
}

static const char BASE[] = "plan\n    workers = 2\n    servers = 1\n";
static const char SITES[] = "launch\n"
                            "    site\n"
                            "        name = east\n"
                            "        worker\n"
                            "            name = fast\n"
                            "        worker\n"
                            "            name = slow\n"
                            "            slowdown = 3\n"
                            "    site\n"
                            "        name = west\n"
                            "        servers = 0\n"
                            "        worker\n"
                            "            name = one\n";

static hx_err_t read_conf(const char *text, const char *const *sets, conf_t *conf,
                          hx_fault_t *fault)
{
    *fault = (hx_fault_t){0};
    return conf_read("t.conf", text, strlen(text), sets, count_of(sets), conf, fault);
}

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

static char *print(const conf_t *conf)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const file = open_memstream(&text, &size);
    cr_assert(file);
    conf_print(conf, file);
    fclose(file);
    return text;
}

Test(conf, the_files_of_this_tree_are_accepted)
{
    struct dirent **entries = NULL;
    const int count = scandir(HX_SOURCE_DIR "/conf", &entries, NULL, alphasort);
    uint32_t read = 0;
    for (int index = 0; index < count; index++) {
        char path[1024];
        conf_t conf;
        hx_fault_t fault = {0};
        const char *const dot = strrchr(entries[index]->d_name, '.');
        snprintf(path, sizeof path, "%s/conf/%s", HX_SOURCE_DIR, entries[index]->d_name);
        if (dot && strcmp(dot, ".conf") == 0) {
            cr_assert_eq(conf_open(path, NULL, 0, &conf, &fault), HX_OK, "%s", fault.text);
            cr_expect_geq(conf.plan.workers, 1);
            conf_destroy(&conf);
            read++;
        }
        free(entries[index]);
    }
    free(entries);
    cr_expect_geq(read, 4);
}

Test(conf, unknown_names_are_refused_with_line_and_nearest)
{
    refuse("sync\n    stalenes = 4\n", NULL,
           SETS("t.conf:2", "`sync.stalenes`", "`sync.staleness`"));
    refuse("train\n    staleness = 4\n", NULL, SETS("t.conf:2", "did you mean `sync.staleness`"));
    refuse("snyc\n    mode = bsp\n", NULL, SETS("t.conf:1", "`snyc`", "`sync`"));
    refuse("sync = bsp\n", NULL, SETS("t.conf:1", "`sync` is a section"));
    refuse("sync\n    mode\n", NULL, SETS("t.conf:2", "has no value"));
    refuse("sync\n    mode\n        x = 1\n", NULL, SETS("t.conf:2", "has no value"));
    refuse("sync\n    what\n        x = 1\n", NULL, SETS("t.conf:2", "unknown key `sync.what`"));
    refuse("run\n    seed = 1\n    seed = 2\n", NULL, SETS("t.conf:3", "given before, in line 2"));
    refuse("run\n    seed = 1\nplan\nrun\n    name = a\n", NULL, SETS("t.conf:4", "stands twice"));
    refuse("run\n    seed = x\n", NULL, SETS("t.conf:2: run.seed = x"));
    refuse("launch\n    host\n", NULL, SETS("t.conf:2", "`site` sections only"));
    refuse("launch\n    site\n        nme = a\n", NULL, SETS("t.conf:3", "`nme`", "`name`"));
    refuse("launch\n    site\n        name = a\n        worker\n            slowdwn = 2\n", NULL,
           SETS("t.conf:5", "`slowdwn`", "`slowdown`"));
}

Test(conf, sites_and_workers_have_names_of_their_own)
{
    refuse("launch\n    site\n        servers = 1\n", NULL,
           SETS("t.conf:2", "the site has no name"));
    refuse("launch\n    site\n        name = a\n        worker\n            threads = 1\n", NULL,
           SETS("t.conf:4", "the worker has no name"));
    refuse("launch\n    site\n        name = a\n    site\n        name = a\n", NULL,
           SETS("t.conf:4", "two sites are called a"));
    refuse(
        "launch\n    site\n        name = a\n        worker\n            name = x\n        worker\n"
        "            name = x\n",
        NULL, SETS("t.conf:6", "two workers called x"));
    refuse("launch\n    site\n        name = a\n        servers = 0\n", NULL,
           SETS("t.conf:2", "site a starts nothing"));
}

Test(conf, set_is_stronger_than_the_file_and_the_last_one_wins)
{
    conf_t conf;
    accept("plan\n    workers = 2\n    servers = 1\nrun\n    seed = 1\n",
           SETS("run.seed=2", "run.seed = 3", "run.name=a-b"), &conf);
    cr_expect_eq(conf.run.seed, 3);
    cr_expect_str_eq(conf.run.name, "a-b");
    conf_destroy(&conf);
    refuse(BASE, SETS("sync.stalenes=4"), SETS("--set", "`sync.stalenes`", "`sync.staleness`"));
    refuse(BASE, SETS("run.seed"), SETS("--set run.seed", "KEY=VALUE"));
    refuse(BASE, SETS("=4"), SETS("KEY=VALUE"));
    refuse(BASE, SETS("train.lr="), SETS("train.lr = \"\"", "expected a number"));
}

Test(conf, sites_and_workers_are_addressed_by_name)
{
    conf_t conf;
    accept(SITES, SETS("launch.site.east.worker.slow.slowdown=4", "launch.site.west.servers=2"),
           &conf);
    cr_expect_eq(conf.launch.sites[0].workers[1].slowdown, 4);
    cr_expect_eq(conf.launch.sites[0].workers[0].slowdown, 1);
    cr_expect_eq(conf.launch.sites[1].servers, 2);
    cr_expect_eq(conf_site(&conf, "west"), &conf.launch.sites[1]);
    cr_expect_null(conf_site(&conf, "north"));
    conf_destroy(&conf);
    refuse(SITES, SETS("launch.site.est.worker.slow.slowdown=4"), SETS("no site `est`", "east"));
    refuse(SITES, SETS("launch.site.east.worker.slw.slowdown=4"), SETS("no worker `slw`", "slow"));
    refuse(SITES, SETS("launch.site.east.worker.slow.slowdow=4"), SETS("`slowdow`", "`slowdown`"));
    refuse(SITES, SETS("launch.site.east.worker.slow.slowdown=0.5"), SETS("at least 1"));
    refuse(SITES, SETS("launch.site.east=4"), SETS("launch.site.SITE.KEY"));
    refuse(SITES, SETS("launch.site.east.worker.slow.slowdown.x.y=4"),
           SETS("launch.site.SITE.KEY"));
    refuse(SITES, SETS("launch.site.east.worker.slow.name=fast"), SETS("two workers called fast"));
}

Test(conf, what_is_printed_reads_back_as_the_same_and_names_its_sources)
{
    conf_t conf, again;
    char whole[2048];
    snprintf(whole, sizeof whole, "%strain\n    data = \"a # b\"\n    seconds = 12.5\n", SITES);
    accept(whole, SETS("sync.mode=bsp", "run.directory=it's here"), &conf);
    char *const text = print(&conf);
    static const char *const lines[] = {
        "    mode = bsp  # command line\n",
        "    quorum = 1  # follows sync.mode\n",
        "    data = \"a # b\"  # t.conf:15\n",
        "    lr = 0.003  # default\n",
        "    workers = 3  # follows launch\n",
        "    tokens = none  # follows train.seconds or train.target_loss\n",
        "    directory = \"it's here\"  # command line\n",
        "            slowdown = 3  # t.conf:8\n",
    };
    for (size_t at = 0; at < HX_COUNT(lines); at++) {
        cr_expect(strstr(text, lines[at]), "no \"%s\" in:\n%s", lines[at], text);
    }
    accept(text, NULL, &again);
    char *const second = print(&again);
    cr_expect_eq(conf_hash(&conf), conf_hash(&again));
    cr_expect_eq(again.launch.sites[0].workers[1].slowdown, 3);
    cr_expect_str_eq(again.run.directory, "it's here");
    free(text);
    free(second);
    conf_destroy(&conf);
    conf_destroy(&again);
}

Test(conf, the_hash_covers_what_must_agree_and_nothing_else)
{
    static const char *const agree[] = {"model.layers=3",    "train.lr=0.1", "sync.staleness=5",
                                        "plan.microbatch=4", "run.seed=2",   "server.block=8192"};
    static const char *const free_keys[] = {"run.directory=x", "train.data=y", "worker.threads=3",
                                            "scheduler.endpoint=tcp://127.0.0.1:1",
                                            "run.dead_after=9"};
    conf_t conf, other;
    accept(BASE, NULL, &conf);
    for (size_t at = 0; at < HX_COUNT(agree); at++) {
        accept(BASE, SETS(agree[at]), &other);
        cr_expect_neq(conf_hash(&conf), conf_hash(&other), "%s", agree[at]);
        conf_destroy(&other);
    }
    for (size_t at = 0; at < HX_COUNT(free_keys); at++) {
        accept(BASE, SETS(free_keys[at]), &other);
        cr_expect_eq(conf_hash(&conf), conf_hash(&other), "%s", free_keys[at]);
        conf_destroy(&other);
    }
    accept("plan\n    servers = 1\n    workers = 2  # another order, the same values\n", NULL,
           &other);
    cr_expect_eq(conf_hash(&conf), conf_hash(&other));
    conf_destroy(&other);
    conf_destroy(&conf);
}

Test(conf, a_change_is_checked_and_a_refused_one_changes_nothing)
{
    conf_t conf;
    hx_fault_t fault;
    accept(SITES, SETS("plan.stages=2;2"), &conf);
    const uint64_t before = conf_hash(&conf);
    cr_expect_eq(conf_set(&conf, "sync.staleness=7", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.sync.lag_max, 7);
    cr_expect_eq(conf_set(&conf, "sync.staleness=8", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf_hash(&conf), before);
    cr_expect_eq(conf_set(&conf, "sync.quorum=2", &fault), HX_E_ARG);
    cr_expect_eq(conf_set(&conf, "model.heads=3", &fault), HX_E_ARG);
    cr_expect_eq(conf_set(&conf, "nonsense", &fault), HX_E_ARG);
    cr_expect_eq(conf_hash(&conf), before);
    cr_expect_eq(conf_set(&conf, "sync.mode=bsp", &fault), HX_E_ARG,
                 "staleness was set as strongly");
    cr_expect_eq(conf.plan.cuts_count, 2);
    conf_destroy(&conf);
    conf_destroy(&conf);  // Allowed on a zeroed struct.
}

Test(conf, a_change_of_mode_takes_back_what_the_old_mode_meant)
{
    conf_t conf;
    hx_fault_t fault;
    accept(SITES, NULL, &conf);
    cr_expect_eq(conf_set(&conf, "sync.mode=bsp", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.sync.lag_max, 0);
    cr_expect_eq(conf_set(&conf, "sync.mode=ssaw", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.sync.grace, 0.1, "what the mode fixed goes back to the default");
    conf_destroy(&conf);
}

static hx_err_t open_path(const char *path, hx_fault_t *fault)
{
    conf_t conf;
    *fault = (hx_fault_t){0};
    return conf_open(path, NULL, 0, &conf, fault);
}

Test(conf, a_file_that_cannot_be_read_is_named)
{
    hx_fault_t fault;
    char dir[] = "/tmp/harmony conf XXXXXX";
    char path[128];
    cr_assert(mkdtemp(dir));
    cr_expect_eq(open_path(dir, &fault), HX_E_IO);
    cr_expect(strstr(fault.text, dir) && strstr(fault.text, "folder"), "%s", fault.text);
    snprintf(path, sizeof path, "%s/none.conf", dir);
    cr_expect_eq(open_path(path, &fault), HX_E_IO);
    cr_expect(strstr(fault.text, path) && strstr(fault.text, "No such file"), "%s", fault.text);

    FILE *file = fopen(path, "w");
    cr_assert(file);
    fputs(BASE, file);
    fclose(file);
    conf_t conf;
    cr_expect_eq(conf_open(path, NULL, 0, &conf, &fault), HX_OK, "%s", fault.text);
    conf_destroy(&conf);

    file = fopen(path, "w");
    cr_assert(file);
    cr_assert_eq(fseek(file, CONF_FILE_MAX, SEEK_SET), 0);
    fputc('\n', file);
    fclose(file);
    cr_expect_eq(open_path(path, &fault), HX_E_FORMAT);
    cr_expect(strstr(fault.text, "larger than"), "%s", fault.text);
    unlink(path);
    rmdir(dir);
}

Test(conf, small_questions)
{
    conf_t conf;
    char path[64];
    accept(BASE, SETS("run.directory=out", "run.name=r1", "train.global_batch=4096"), &conf);
    cr_expect_eq(conf_rows(&conf), 32);
    cr_expect(conf_run_path(&conf, "summary.json", path, sizeof path));
    cr_expect_str_eq(path, "out/r1/summary.json");
    cr_expect(conf_run_path(&conf, "", path, sizeof path));
    cr_expect_str_eq(path, "out/r1");
    cr_expect_not(conf_run_path(&conf, "summary.json", path, 10));
    cr_expect_eq(conf_model(&conf).channels, 128);
    cr_expect_str_eq(conf_mode_name(CONF_MODE_SSAW), "ssaw");
    cr_expect_str_eq(conf_weighting_name(CONF_WEIGHTING_EXP), "exp");
    cr_expect_str_eq(conf_optimizer_name(CONF_OPTIMIZER_SGD), "sgd");
    conf_destroy(&conf);
}

Test(conf, only_some_keys_change_while_a_run_is_on)
{
    conf_t conf;
    hx_fault_t fault;
    accept(SITES, NULL, &conf);
    cr_expect_eq(conf_set_live(&conf, "sync.staleness=8", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.sync.lag_max, 8);
    cr_expect_eq(conf_set_live(&conf, "train.lr=0.5", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.train.lr, 0.5);
    cr_expect_eq(conf_set_live(&conf, "sync.mode=bsp", &fault), HX_E_ARG);
    cr_expect(strstr(fault.text, "sync.staleness"), "it lists those that do: %s", fault.text);
    cr_expect_eq(conf_set_live(&conf, "sync.gracious=1", &fault), HX_E_ARG);
    cr_expect(strstr(fault.text, "sync.grace"), "%s", fault.text);
    cr_expect_eq(conf_set_live(&conf, "sync.grace=many", &fault), HX_E_ARG);
    cr_expect_eq(conf_check_live(&conf, "sync.grace=0.5", &fault), HX_OK, "%s", fault.text);
    cr_expect_eq(conf.sync.grace, 0.1, "a check changes nothing");
    cr_expect_eq(conf_check_live(&conf, "sync.grace=many", &fault), HX_E_ARG);
    conf_destroy(&conf);
}

Test(conf, what_a_mode_fixes_stays_fixed_while_a_run_is_on)
{
    conf_t conf;
    hx_fault_t fault;
    accept(SITES, SETS("sync.mode=bsp"), &conf);
    cr_expect_eq(conf_set_live(&conf, "sync.staleness=8", &fault), HX_E_ARG);
    cr_expect(strstr(fault.text, "sync.mode = bsp"), "%s", fault.text);
    cr_expect_eq(conf.sync.staleness, 0);
    conf_destroy(&conf);
}
