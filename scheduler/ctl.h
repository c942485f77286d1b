// ctl - asks a running scheduler, from another process. [io]

#ifndef CTL_H
#define CTL_H

#include "net/conf.h"
#include "net/link.h"

#define CTL_PATIENCE HX_SEC(5)

// What is asked, and what came back.
typedef struct {
    wire_msg_t msg;
    wire_kind_t answer;  // The kind to wait for; 0: only until the message was received.
    hx_time_t patience;  // How long; 0: CTL_PATIENCE.
    wire_msg_t reply;
    blob_t *blob;  // The answer's payload or NULL: the caller's to release.
} ctl_question_t;

// Sends question->msg to the scheduler of the configuration and waits for the answer.
// HX_E_TIMEOUT and a line: nobody answers there.
HX_MUST_USE hx_err_t ctl_ask(const conf_t *conf, ctl_question_t *question, hx_fault_t *fault);

// The question that a command line asks: `words` are COMMAND and what follows it. Keys and values
// of `set` are checked as far as the configuration tells; the lead checks the rest. HX_E_ARG and a
// line that says what is wrong.
HX_MUST_USE hx_err_t ctl_question(const conf_t *conf, const char *const *words, size_t count,
                                  ctl_question_t *out, hx_fault_t *fault);

#endif
