// data_file - one file of tokens, mapped: its kind, its length, its tokens.
//
// For data.c alone. The formats are described in data.h.

#ifndef DATA_FILE_H
#define DATA_FILE_H

#include "tensor/hx.h"

typedef struct {
    char *path;
    const uint8_t *map;
    uint64_t size;    // Bytes.
    uint64_t offset;  // Where tokens begin.
    uint64_t tokens;  // How many.
    uint32_t width;   // Bytes of one: 1 or 2.
} data_file_t;

// Maps a file and reads its header; `key` is what names it in the configuration. HX_E_IO or
// HX_E_FORMAT with a line.
HX_MUST_USE hx_err_t data_file_open(const char *path, const char *key, data_file_t *out,
                                    hx_fault_t *fault);
// A cleared struct is accepted.
void data_file_close(data_file_t *self);

uint32_t data_file_token(const data_file_t *self, uint64_t position);

// Are tokens [first, end) below `vocab`? HX_E_ARG with a line that names the first that is not.
HX_MUST_USE hx_err_t data_file_check(const data_file_t *self, uint64_t first, uint64_t end,
                                     uint32_t vocab, hx_fault_t *fault);
// The same for the whole file, or for samples of a large one.
HX_MUST_USE hx_err_t data_file_check_all(const data_file_t *self, uint32_t vocab,
                                         hx_fault_t *fault);

// xxh3 of size and content, or of samples of a large file, on top of `seed`.
uint64_t data_file_hash(const data_file_t *self, uint64_t seed);

#endif
