// web_text - the status of a run as a page for people and as metrics for Prometheus.
//
// Pure. `json` is an answer to STATUS_ASK (sched_status_json). Texts are given back by free().

#ifndef WEB_TEXT_H
#define WEB_TEXT_H

#include "tensor/hx.h"

// A page that looks like `harmony-ctl status` and fetches itself again every 2 s. HX_E_FORMAT: this
// is no status.
HX_MUST_USE hx_err_t web_text_page(const char *json, size_t size, char **out);
// The text format of Prometheus, version 0.0.4: a line a value, names that begin with "harmony_".
// What is not known is left out. HX_E_FORMAT likewise.
HX_MUST_USE hx_err_t web_text_metrics(const char *json, size_t size, char **out);

#endif
