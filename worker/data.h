// data - rows of tokens from a file: plain text as bytes, or llm.c's token files.
//
// A row is `context` tokens and their `context` targets: a window of context + 1 tokens; windows
// follow one another with stride `context`, so the last token of one is the first of the next. The
// last part of the file is held out and has rows of its own.
//
//   text    any file whose name does not end in .bin: a byte is a token (so vocab is at least 256)
//   *.bin   1024 bytes of 256 int32 (magic 20240520, version 1, count, zeros), then count uint16
//
// The file is mapped, offsets are 64 bits all through. It must not change while it is mapped.

#ifndef DATA_H
#define DATA_H

#include "tensor/hx.h"

#define DATA_MAGIC 20240520
#define DATA_MAGIC_32 20240801  // Token files of 32 bits a token, refused.
#define DATA_HEADER_SIZE 1024u
#define DATA_CHECK_WHOLE ((uint64_t)64 << 20)  // Bytes: larger files are checked in samples,
#define DATA_HASH_WHOLE ((uint64_t)1 << 30)    // and hashed in samples.

typedef struct {
    const char *path;        // Borrowed for the call, as valid_path.
    double valid;            // Held-out tail, a fraction in (0, 1); not used with valid_path.
    const char *valid_path;  // A file of held-out data, or NULL or empty.
    uint32_t context;
    uint32_t vocab;
} data_conf_t;

typedef struct data data_t;

// Maps the file(s) and checks them. Every failure is one line in `fault` that names the file:
// HX_E_IO: cannot be opened, read or mapped. HX_E_FORMAT: a .bin whose magic, version or size is
// wrong. HX_E_ARG: too short for one row in either part, or a token outside the vocabulary (of a
// file above DATA_CHECK_WHOLE bytes samples are looked at; the rest when it is read).
HX_MUST_USE hx_err_t data_open(const data_conf_t *conf, data_t **data_p, hx_fault_t *fault);
void data_destroy(data_t **data_p);

// Rows of the training part and of the held-out part, each at least 1.
uint64_t data_rows(const data_t *self);
uint64_t data_valid_rows(const data_t *self);
// Tokens of the whole (both files).
uint64_t data_tokens(const data_t *self);

// Copies a row: `tokens` and `targets` (either may be NULL) get `context` entries each; `valid`
// chooses the part; row < its rows. HX_E_ARG with a line: a token outside the vocabulary.
HX_MUST_USE hx_err_t data_read(const data_t *self, bool valid, uint64_t row, int32_t *tokens,
                               int32_t *targets, hx_fault_t *fault);

// A hash of what all nodes of a run must agree on: sizes, the cut and the content (xxh3; of a file
// above DATA_HASH_WHOLE bytes, samples spread over it, its first and last bytes included). Never 0.
uint64_t data_hash(const data_t *self);

#endif
