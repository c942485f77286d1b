// dashboard - a small HTTP server that shows the run: a page at /, metrics for Prometheus at
// /metrics, all of it at /status.json. Only reading; nothing can be changed by it. [io]
//
// It runs in a thread of its own, by libmicrohttpd, and shows what it was given last.

#ifndef DASHBOARD_H
#define DASHBOARD_H

#include "net/blob.h"
#include "tensor/hx.h"

typedef struct dashboard dashboard_t;

// Listens at "ADDRESS:PORT" (port *: any free one). HX_E_UNSUPPORTED, HX_E_ARG, HX_E_IO with a
// line: built without libmicrohttpd; no such address; not to be had, as a port that is taken.
HX_MUST_USE hx_err_t dashboard_open(const char *address, dashboard_t **self_p, hx_fault_t *fault);
void dashboard_destroy(dashboard_t **self_p);

// From now on `status` (a status as JSON) is shown. Before the first, visitors are told to come
// again.
void dashboard_show(dashboard_t *self, const blob_t *status);

// The port that it really has.
uint16_t dashboard_port(const dashboard_t *self);

#endif
