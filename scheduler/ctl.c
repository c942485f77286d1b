// ctl - one link, one peer, one question.

#include "scheduler/ctl.h"

#include <stdio.h>
#include <string.h>

#include "net/conf_table.h"
#include "net/options.h"
#include "tensor/hx_clock.h"
#include "tensor/hx_text.h"

#define FAREWELL HX_MS(50)
#define SAVE_PATIENCE HX_SEC(60)  // Besides the longest step: of writing a checkpoint.
#define WORKER_BEFORE "worker."

typedef struct {
    const char *name;
    size_t words;  // With the command itself.
    const char *usage;
} command_t;

static const command_t COMMANDS[] = {
    {"status", 1, "status"},    {"set", 3, "set KEY VALUE"}, {"checkpoint", 1, "checkpoint"},
    {"drain", 2, "drain NODE"}, {"stop", 1, "stop"},
};

static hx_err_t find_command(const char *const *words, size_t count, hx_fault_t *fault)
{
    const char *names[HX_COUNT(COMMANDS)];
    for (size_t at = 0; at < HX_COUNT(COMMANDS); at++) {
        names[at] = COMMANDS[at].name;
        if (strcmp(words[0], names[at]) == 0) {
            return COMMANDS[at].words == count
                       ? HX_OK
                       : hx_fault(fault, HX_E_ARG, "expected `%s`", COMMANDS[at].usage);
        }
    }
    return hx_fault(fault, HX_E_ARG, "unknown command \"%.64s\"; the nearest known one is \"%s\"",
                    words[0], hx_nearest(words[0], names, HX_COUNT(names)));
}

// "lr" is short for "train.lr" where only one key that can be set ends so.
static const char *whole_key(const char *key)
{
    const char *found = NULL;
    for (size_t at = 0; !strchr(key, '.') && at < conf_keys_count(); at++) {
        const char *const name = conf_key(at)->name;
        if ((conf_key(at)->flags & CONF_LIVE) && strcmp(strchr(name, '.') + 1, key) == 0) {
            found = found ? key : name;
        }
    }
    return found ? found : key;
}

static hx_err_t ask_set(const conf_t *conf, const char *key, const char *value, wire_msg_t *msg,
                        hx_fault_t *fault)
{
    key = whole_key(key);
    const int length = snprintf(msg->text, sizeof msg->text, "%s=%s", key, value);
    if (length < 0 || (size_t)length >= sizeof msg->text) {
        return hx_fault(fault, HX_E_ARG, "set: the key or its value is too long");
    }
    if (strncmp(key, WORKER_BEFORE, sizeof WORKER_BEFORE - 1) == 0 && strstr(key, ".slowdown")) {
        return HX_OK;  // Who that is the lead knows.
    }
    return conf_check_live(conf, msg->text, fault);
}

hx_err_t ctl_question(const conf_t *conf, const char *const *words, size_t count,
                      ctl_question_t *out, hx_fault_t *fault)
{
    HX_ASSERT(count > 0);
    HX_TRY(find_command(words, count, fault));
    *out = (ctl_question_t){.answer = WIRE_ORDERED, .patience = CTL_PATIENCE};
    wire_msg_t *const msg = &out->msg;
    msg->kind = WIRE_ORDER;
    if (strcmp(words[0], "status") == 0) {
        msg->kind = WIRE_STATUS_ASK;
        out->answer = WIRE_STATUS;
    } else if (strcmp(words[0], "stop") == 0) {
        *msg = (wire_msg_t){.kind = WIRE_STOP_ASK, .count = EXIT_INTERRUPTED};
        snprintf(msg->text, sizeof msg->text, "stopped by harmony-ctl");
        out->answer = 0;
    } else if (strcmp(words[0], "checkpoint") == 0) {
        msg->count = WIRE_ORDER_CHECKPOINT;
        out->patience = SAVE_PATIENCE + conf->run.lease_min;
    } else if (strcmp(words[0], "drain") == 0) {
        msg->count = WIRE_ORDER_DRAIN;
        snprintf(msg->text, sizeof msg->text, "%.*s", PLAN_NAME_MAX - 1, words[1]);
        out->patience = CTL_PATIENCE + conf->run.lease_min;
    } else {
        msg->count = WIRE_ORDER_SET;
        return ask_set(conf, words[1], words[2], msg, fault);
    }
    return HX_OK;
}

// True when it is over: answered, or received where no answer is due.
static bool look(link_t *link, ctl_question_t *question)
{
    const wire_kind_t answer = question->answer;
    bool over = false;
    link_event_t event;
    while (link_next(link, hx_now(), &event)) {
        if (!over && answer != 0 && event.kind == LINK_MESSAGE && event.msg.kind == answer) {
            question->reply = event.msg;
            question->blob = event.blob;
            over = true;
        } else {
            blob_release(&event.blob);
        }
    }
    return over || (answer == 0 && link_idle(link));
}

hx_err_t ctl_ask(const conf_t *conf, ctl_question_t *question, hx_fault_t *fault)
{
    const hx_time_t patience = question->patience > 0 ? question->patience : CTL_PATIENCE;
    question->blob = NULL;
    const link_conf_t link_conf = {.id = link_random(),
                                   .toward = conf->scheduler.endpoint,
                                   .dead_after = conf->run.dead_after,
                                   .connect_timeout = conf->run.connect_timeout};
    link_t *link = NULL;
    HX_TRY(link_check_name(conf->scheduler.endpoint, fault));
    HX_TRY(link_open(&link_conf, &link, fault));
    const hx_time_t until = hx_now() + patience;
    link_dial(link, NODE_SCHEDULER, conf->scheduler.endpoint, NULL, hx_now());
    link_send(link, NODE_SCHEDULER, &question->msg, NULL, hx_now());
    bool over = false;
    while (!over && hx_now() < until) {
        link_flush(link, hx_now());
        link_wait(link, NULL, NULL, 0, until, hx_now());
        over = look(link, question);
    }
    // A last turn, so that the scheduler hears that its answer came.
    link_flush(link, hx_now());
    link_wait(link, NULL, NULL, 0, hx_now() + FAREWELL, hx_now());
    link_flush(link, hx_now());
    link_destroy(&link);
    return over ? HX_OK
                : hx_fault(fault, HX_E_TIMEOUT,
                           "no answer from a scheduler at %s within %d s: is the run on?",
                           conf->scheduler.endpoint, (int)(patience / HX_SEC(1)));
}
