// ctl - one link, one peer, one question.

#include "scheduler/ctl.h"

#include <stdio.h>
#include <string.h>

#include "tensor/hx_clock.h"
#include "tensor/hx_text.h"

#define PATIENCE HX_SEC(5)
#define FAREWELL HX_MS(50)

hx_err_t ctl_check(const char *command, hx_fault_t *fault)
{
    static const char *const known[] = {"status", "stop"};
    static const struct {
        const char *command;
        const char *instead;
    } later[] = {
        {"set", "stop the run, change the file, and start again: it resumes from its newest "
                "checkpoint"},
        {"drain", "stop the worker's process (SIGTERM): the run goes on without its pipeline"},
        {"checkpoint",
         "server.checkpoint_every sets how often one is written, and `stop` writes one"},
    };
    for (size_t at = 0; at < HX_COUNT(known); at++) {
        if (strcmp(command, known[at]) == 0) {
            return HX_OK;
        }
    }
    for (size_t at = 0; at < HX_COUNT(later); at++) {
        if (strcmp(command, later[at].command) == 0) {
            return hx_fault(fault, HX_E_UNSUPPORTED,
                            "\"%s\" comes with the next version (0.2); until then %s", command,
                            later[at].instead);
        }
    }
    return hx_fault(fault, HX_E_ARG, "unknown command \"%.64s\"; the nearest known one is \"%s\"",
                    command, hx_nearest(command, known, HX_COUNT(known)));
}

// True when it is over: answered, or received where no answer is due.
static bool look(link_t *link, wire_kind_t answer, blob_t **out)
{
    bool over = false;
    link_event_t event;
    while (link_next(link, hx_now(), &event)) {
        if (!over && answer != 0 && event.kind == LINK_MESSAGE && event.msg.kind == answer) {
            *out = event.blob;
            over = true;
        } else {
            blob_release(&event.blob);
        }
    }
    return over || (answer == 0 && link_idle(link));
}

hx_err_t ctl_ask(const conf_t *conf, const wire_msg_t *msg, wire_kind_t answer, blob_t **out,
                 hx_fault_t *fault)
{
    *out = NULL;
    const link_conf_t link_conf = {.id = link_random(),
                                   .toward = conf->scheduler.endpoint,
                                   .dead_after = conf->run.dead_after,
                                   .connect_timeout = conf->run.connect_timeout};
    link_t *link = NULL;
    HX_TRY(link_check_name(conf->scheduler.endpoint, fault));
    HX_TRY(link_open(&link_conf, &link, fault));
    const hx_time_t until = hx_now() + PATIENCE;
    link_dial(link, NODE_SCHEDULER, conf->scheduler.endpoint, NULL, hx_now());
    link_send(link, NODE_SCHEDULER, msg, NULL, hx_now());
    bool over = false;
    while (!over && hx_now() < until) {
        link_flush(link, hx_now());
        link_wait(link, NULL, NULL, 0, until, hx_now());
        over = look(link, answer, out);
    }
    // A last turn, so that the scheduler hears that its answer came.
    link_flush(link, hx_now());
    link_wait(link, NULL, NULL, 0, hx_now() + FAREWELL, hx_now());
    link_flush(link, hx_now());
    link_destroy(&link);
    return over ? HX_OK
                : hx_fault(fault, HX_E_TIMEOUT,
                           "no answer from a scheduler at %s within %d s: is the run on?",
                           conf->scheduler.endpoint, (int)(PATIENCE / HX_SEC(1)));
}
