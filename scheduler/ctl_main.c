// harmony-ctl - asks and stops a running system.

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
        "Talks to the scheduler of the run that CONF describes. `status` prints a table of the "
        "nodes and "
        "how far the run is. `stop` ends the run cleanly, with a checkpoint, as Ctrl-C does.",
    .operands = "CONF status|stop",
    .operands_min = 2,
    .operands_max = 4,
    .conf = true,
    .options = OPTIONS,
    .options_count = HX_COUNT(OPTIONS),
    .examples = "  harmony-ctl conf/quickstart.conf status\n",
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

static int run(const conf_t *conf, const char *command)
{
    hx_fault_t fault = {{0}};
    if (ctl_check(command, &fault) != HX_OK) {
        return options_refuse(&SPEC, "%s", fault.text);
    }
    const bool status = strcmp(command, "status") == 0;
    wire_msg_t msg = {.kind = WIRE_STATUS_ASK};
    if (!status) {
        msg = (wire_msg_t){.kind = WIRE_STOP_ASK, .count = EXIT_INTERRUPTED};
        snprintf(msg.text, sizeof msg.text, "stopped by harmony-ctl");
    }
    blob_t *blob = NULL;
    if (node_prepare(&fault) != HX_OK ||
        ctl_ask(conf, &msg, status ? WIRE_STATUS : (wire_kind_t)0, &blob, &fault) != HX_OK) {
        fprintf(stderr, "%s: %s\n", SPEC.program, fault.text);
        return EXIT_FAILED;
    }
    if (status) {
        const int shown = show(blob);
        blob_release(&blob);
        return shown;
    }
    printf("asked the scheduler at %s to end the run \"%s\"\n", conf->scheduler.endpoint,
           conf->run.name);
    return EXIT_DONE;
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
    const int status = run(&conf, options.operands[1]);
    conf_destroy(&conf);
    options_destroy(&options);
    hx_log_close();
    return status;
}
