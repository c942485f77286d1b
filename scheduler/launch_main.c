// harmony-launch - starts a whole run on this machine, and ends it.

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/conf.h"
#include "net/link.h"
#include "net/options.h"
#include "net/run_folder.h"
#include "scheduler/launcher.h"
#include "scheduler/sched_jobs.h"
#include "tensor/hx_log.h"

static bool status_only;
static bool plan_only;
static bool plan_json;

static const option_t OPTIONS[] = {
    {"status", 0, OPTION_FLAG, NULL, "print a table of the nodes of the running system, and end",
     &status_only},
    {"plan-only", 0, OPTION_FLAG, NULL, "make the plan, print it, and end without training",
     &plan_only},
    {"json", 0, OPTION_FLAG, NULL, "print that plan as JSON", &plan_json},
};

static const options_spec_t SPEC = {
    .program = "harmony-launch",
    .summary =
        "Starts the scheduler, the servers and the workers that the `launch` section of CONF names "
        "on this machine, shows the progress, and ends when the run does. Ctrl-C stops it cleanly: "
        "a "
        "checkpoint is written, the status is 130. SIGUSR1 prints a table of the nodes.",
    .operands = "CONF",
    .operands_min = 1,
    .operands_max = 1,
    .conf = true,
    .options = OPTIONS,
    .options_count = HX_COUNT(OPTIONS),
    .examples =
        "  harmony-launch conf/quickstart.conf\n"
        "  harmony-launch conf/quickstart.conf --set train.seconds=60 --set sync.mode=bsp\n",
};

// "harmony-ctl CONF status" with the same --set.
static char **status_args(const options_t *options, const char *folder, const char *path)
{
    char **const args = hx_new(options->sets.count * 2 + 4, sizeof *args);
    size_t count = 0;
    char *const program = hx_new(strlen(folder) + sizeof "/harmony-ctl", 1);
    sprintf(program, "%s/harmony-ctl", folder);
    args[count++] = program;
    args[count++] = strdup(path);
    args[count++] = strdup("status");
    for (size_t set = 0; set < options->sets.count; set++) {
        args[count++] = strdup("--set");
        args[count++] = strdup(options->sets.items[set]);
    }
    return args;
}

static void free_args(char **args)
{
    for (char **at = args; *at; at++) {
        free(*at);
    }
    free(args);
}

// The folder of the logs must be there before the first child, and no other run in it: of two
// launches of one configuration the second would send its workers to the first one's scheduler.
// `*lock` lives as long as this program.
static hx_err_t make_folder(const conf_t *conf, int *lock, hx_fault_t *fault)
{
    char folder[PATH_MAX];
    if (!conf_run_path(conf, "log", folder, sizeof folder)) {
        return hx_fault(fault, HX_E_ARG, "run.directory is too long a path");
    }
    if (plan_only) {
        return run_folder_make(folder, fault);
    }
    HX_TRY(run_folder_make(folder, fault));
    *strrchr(folder, '/') = '\0';
    HX_TRY(run_folder_lock(folder, "launch.lock", lock, fault));
    sched_jobs_t *jobs = NULL;  // A scheduler that was started by hand has its own.
    HX_TRY(sched_jobs_open(folder, &jobs, fault));
    sched_jobs_destroy(&jobs);
    return HX_OK;
}

static int launch(const options_t *options, const conf_t *conf)
{
    char folder[PATH_MAX];
    hx_fault_t fault = {{0}};
    launch_list_t list;
    int status = EXIT_FAILED;
    int lock = -1;
    if (!launcher_folder(folder, sizeof folder)) {
        hx_log_error("cannot find the folder of this program");
        return EXIT_FAILED;
    }
    char **const args = status_args(options, folder, conf->path);
    if (status_only) {
        execv(args[0], args);
        hx_log_error("cannot run %s", args[0]);
        free_args(args);
        return EXIT_FAILED;
    }
    const launch_conf_t how = {.folder = folder,
                               .sets = &options->sets,
                               .verbose = options->verbose,
                               .plan_only = plan_only,
                               .plan_json = plan_json};
    if (link_check_name(conf->scheduler.endpoint, &fault) != HX_OK ||
        make_folder(conf, &lock, &fault) != HX_OK ||
        launch_list(conf, &how, &list, &fault) != HX_OK) {
        free_args(args);
        return options_refuse(&SPEC, "%s", fault.text);
    }
    const launcher_conf_t launcher = {.list = &list,
                                      .status_args = args,
                                      .stop_timeout = conf->run.stop_timeout + HX_SEC(15),
                                      .dead_after = conf->run.dead_after,
                                      .verbose = options->verbose > 0};
    status = launcher_check(&list);
    if (status == EXIT_DONE && launcher_run(&launcher, &status, &fault) != HX_OK) {
        hx_log_error("%s", fault.text);
        status = EXIT_FAILED;
    }
    launch_list_destroy(&list);
    free_args(args);
    run_folder_unlock(&lock);
    return status;
}

int main(int argc, char **argv)
{
    options_t options;
    conf_t conf;
    if (!options_parse(&SPEC, argc, argv, &options) || !options_conf(&options, &conf)) {
        return options.status;
    }
    if (!options_log(&options, "launch", NULL)) {
        conf_destroy(&conf);
        return options.status;
    }
    const int status = launch(&options, &conf);
    conf_destroy(&conf);
    options_destroy(&options);
    hx_log_close();
    return status;
}
