// harmony-ctl - asks, changes and stops a running system.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/node.h"
#include "net/options.h"
#include "scheduler/ctl.h"
#include "scheduler/report.h"

static bool as_json;

static const option_t OPTIONS[] = {
    {"json", 0, OPTION_FLAG, NULL, "status: print JSON instead of a table", &as_json},
};

static const options_spec_t SPEC = {
    .program = "harmony-ctl",
    .summary =
        "Talks to the scheduler of the run that CONF describes. `status` prints how far the run "
        "is, "
        "tables of its nodes and pipelines, and how often which lag occurred. `set` changes a key "
        "of `sync`, train.lr, train.clip or worker.NAME.slowdown from the next round on. "
        "`checkpoint` saves the newest version and prints where. `drain` lets a worker leave at "
        "the end of its step. `stop` ends the run cleanly, with a checkpoint, as Ctrl-C does.",
    .operands = "CONF status|set KEY VALUE|checkpoint|drain NODE|stop",
    .operands_min = 2,
    .operands_max = 4,
    .conf = true,
    .options = OPTIONS,
    .options_count = HX_COUNT(OPTIONS),
    .examples = "  harmony-ctl conf/quickstart.conf status\n"
                "  harmony-ctl conf/quickstart.conf set sync.staleness 8\n"
                "  harmony-ctl conf/quickstart.conf drain west/slow\n",
};

static int show(const blob_t *blob)
{
    const char *const json = blob_data(blob);
    if (as_json) {
        printf("%.*s\n", (int)blob_size(blob), json ? json : "");
        return EXIT_DONE;
    }
    char *text = NULL;
    if (report_status_text(json ? json : "", blob_size(blob), &text) != HX_OK) {
        fprintf(stderr, "%s: the answer makes no sense\n", SPEC.program);
        return EXIT_FAILED;
    }
    fputs(text, stdout);
    free(text);
    return EXIT_DONE;
}

// What an order came to, in one line.
static int tell(const conf_t *conf, const ctl_question_t *question)
{
    const wire_msg_t *const reply = &question->reply;
    char path[2 * CONF_TEXT_MAX];
    char file[64];
    if (reply->count != 0) {
        fprintf(stderr, "%s: %s\n", SPEC.program, reply->text);
        return reply->count == 2 ? EXIT_USAGE : EXIT_FAILED;
    }
    snprintf(file, sizeof file, "checkpoint-%" PRIu64, reply->version);
    if (question->msg.count != WIRE_ORDER_CHECKPOINT) {
        printf("%s%s%s\n", reply->name, reply->name[0] ? ": " : "", reply->text);
    } else if (conf_run_path(conf, file, path, sizeof path)) {
        printf("%s\n", path);
    }
    return EXIT_DONE;
}

static int ask(const conf_t *conf, ctl_question_t *question)
{
    hx_fault_t fault = {{0}};
    if (node_prepare(&fault) != HX_OK || ctl_ask(conf, question, &fault) != HX_OK) {
        fprintf(stderr, "%s: %s\n", SPEC.program, fault.text);
        return EXIT_FAILED;
    }
    if (question->answer == WIRE_ORDERED) {
        return tell(conf, question);
    }
    if (question->answer == WIRE_STATUS) {
        return show(question->blob);
    }
    printf("asked the scheduler at %s to end the run \"%s\"\n", conf->scheduler.endpoint,
           conf->run.name);
    return EXIT_DONE;
}

static int run(const conf_t *conf, const char *const *words, size_t count)
{
    hx_fault_t fault = {{0}};
    ctl_question_t question = {0};
    if (ctl_question(conf, words, count, &question, &fault) != HX_OK) {
        return options_refuse(&SPEC, "%s", fault.text);
    }
    const int status = ask(conf, &question);
    blob_release(&question.blob);
    return status;
}

int main(int argc, char **argv)
{
    options_t options;
    conf_t conf;
    if (!options_parse(&SPEC, argc, argv, &options) || !options_conf(&options, &conf)) {
        return options.status;
    }
    if (!options_log(&options, "ctl", NULL)) {
        conf_destroy(&conf);
        return options.status;
    }
    const int status = run(&conf, options.operands + 1, options.operands_count - 1);
    conf_destroy(&conf);
    options_destroy(&options);
    hx_log_close();
    return status;
}
