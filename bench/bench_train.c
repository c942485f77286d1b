// bench_train - a whole run as harmony-launch does it, then its summary.
//
// Nothing is measured twice: the figures are those of summary.json, and the limit that they stand
// beside is the same model on one node (`harmony-bench compute` at the same shape).

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "net/options.h"

#define ARGS_MAX 256

// The folder of this program, where the others are.
static bool beside(const char *name, char *out, size_t room)
{
    char self[PATH_MAX];
    const ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (size <= 0) {
        return false;
    }
    self[size] = '\0';
    char *const slash = strrchr(self, '/');
    if (slash) {
        *slash = '\0';
    }
    return snprintf(out, room, "%s/%s", self, name) < (int)room;
}

static int launch(const options_t *options, bool quiet)
{
    char program[PATH_MAX + 32];
    if (!beside("harmony-launch", program, sizeof program)) {
        return EXIT_FAILED;
    }
    const char *args[ARGS_MAX] = {program, options->operands[0]};
    size_t count = 2;
    for (size_t at = 0; at < options->sets.count && count + 3 < ARGS_MAX; at++) {
        args[count++] = "--set";
        args[count++] = options->sets.items[at];
    }
    if (quiet) {
        args[count++] = "-q";
    }
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(2, 1);  // Standard output is for the result alone.
        execv(args[0], (char *const *)args);
        fprintf(stderr, "harmony-bench train: %s: %s\n", args[0], strerror(errno));
        _exit(EXIT_FAILED);
    }
    int status = 0;
    signal(SIGINT, SIG_IGN);  // The launcher ends the run; we then print what there is.
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILED;
}

static void print_text(const json_t *summary)
{
    static const char *const keys[] = {"status",
                                       "seconds",
                                       "version",
                                       "tokens",
                                       "tokens_per_second",
                                       "valid_loss_first",
                                       "valid_loss",
                                       "lag_mean",
                                       "lag_max",
                                       "dropped",
                                       "predicted_step_seconds",
                                       "measured_step_seconds"};
    for (size_t at = 0; at < HX_COUNT(keys); at++) {
        char *const value = json_dumps(json_object_get(summary, keys[at]),
                                       JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        printf("%-24s %s\n", keys[at], value ? value : "-");
        free(value);
    }
}

int bench_train(int argc, char **argv)
{
    bool json = false;
    const option_t list[] = {
        {"json", 0, OPTION_FLAG, NULL, "summary.json on standard output", &json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench train",
        .summary = "Runs harmony-launch on a configuration and prints the figures of the run.",
        .operands = "CONF",
        .operands_min = 1,
        .operands_max = 1,
        .conf = true,
        .options = list,
        .options_count = HX_COUNT(list),
        .examples = "  harmony-bench train conf/quickstart.conf --set train.seconds=30\n",
    };
    options_t options;
    conf_t conf;
    if (!options_parse(&spec, argc, argv, &options) || !options_conf(&options, &conf)) {
        return options.status;
    }
    char path[PATH_MAX];
    if (!conf_run_path(&conf, "summary.json", path, sizeof path)) {
        return options_refuse(&spec, "run.directory: the path is too long");
    }
    unlink(path);  // What is printed is of this run.
    const int status = launch(&options, options.quiet > 0);
    json_t *const summary = json_load_file(path, 0, NULL);
    if (!summary) {
        fprintf(stderr, "harmony-bench train: the run left no %s\n", path);
    } else if (json) {
        bench_print_json(json_incref(summary));
    } else {
        print_text(summary);
    }
    json_decref(summary);
    conf_destroy(&conf);
    options_destroy(&options);
    return summary ? status : HX_MAX(status, EXIT_FAILED);
}
