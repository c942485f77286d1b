// conf_value - single configuration values: text to typed field and back.
//
// What a key may hold is a row of conf_table. Pure.

#ifndef CONF_VALUE_H
#define CONF_VALUE_H

#include "net/conf_table.h"

// Writes the value that `text` means to `base` + key->offset. On failure the field is unchanged and
// `fault` says, without place, what is wrong: "sync.alpha = x: expected a number ...".
HX_MUST_USE hx_err_t conf_value_parse(const conf_key_t *key, const char *text, void *base,
                                      hx_fault_t *fault);
// The text that means the field's value, as conf_value_parse takes it.
void conf_value_format(const conf_key_t *key, const void *base, char *out, size_t out_size);

// Whether `name` may name a run, site or worker.
bool conf_name_valid(const char *name);

#endif
