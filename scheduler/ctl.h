// ctl - asks a running scheduler, from another process. [io]

#ifndef CTL_H
#define CTL_H

#include "net/conf.h"
#include "net/link.h"

// Sends one message to the scheduler of the configuration. If `answer` is WIRE_STATUS or another
// kind, waits for it and gives its payload to `*out` (the caller's to release); if it is 0, waits
// only until the message was received. HX_E_TIMEOUT and a line: nobody answers there.
HX_MUST_USE hx_err_t ctl_ask(const conf_t *conf, const wire_msg_t *msg, wire_kind_t answer,
                             blob_t **out, hx_fault_t *fault);

// Whether a command is one of this version; else HX_E_ARG or HX_E_UNSUPPORTED and a line that says
// what to do instead.
HX_MUST_USE hx_err_t ctl_check(const char *command, hx_fault_t *fault);

#endif
