// held_out - how many rows the held-out part of the data has, by the length of the files alone.
//
// Workers read the data; the lead only needs to know how many rows there are to evaluate on. The
// rule is that of the workers (a test compares them): windows of context + 1 tokens with stride
// context; a file that ends in .bin has a head of 1024 bytes and two bytes a token, any other one
// byte a token. [io]

#ifndef HELD_OUT_H
#define HELD_OUT_H

#include "tensor/hx.h"

typedef struct {
    const char *path;        // Borrowed for the call, as valid_path.
    double valid;            // Held-out tail, a fraction in (0, 1); not used with valid_path.
    const char *valid_path;  // A file of held-out data, or empty.
    uint32_t context;
} held_out_conf_t;

// HX_E_IO with a line: a file that cannot be looked at.
HX_MUST_USE hx_err_t held_out_rows(const held_out_conf_t *conf, uint64_t *rows, hx_fault_t *fault);

#endif
