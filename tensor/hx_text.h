// hx_text - a text that grows; the nearest known word to a mistyped one, for options and
// configuration keys.

#ifndef HX_TEXT_H
#define HX_TEXT_H

#include <stdarg.h>

#include "tensor/hx.h"

// Starts from {0}. `bytes` is NULL until something was added, then ends with a 0 that `size` does
// not count; it is given back by free().
typedef struct {
    char *bytes;
    size_t size;
    size_t room;
} hx_text_t;

// Appends, as printf and vprintf.
void hx_text_add(hx_text_t *self, const char *format, ...) HX_PRINTF(2, 3);
void hx_text_add_args(hx_text_t *self, const char *format, va_list args) HX_PRINTF(2, 0);

#define HX_WORD_MAX 128  // Longer words are compared by their first bytes.

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
uint32_t hx_distance(const char *a, const char *b);

// The word of `list` with the fewest edits from `word` (the first among equals), or NULL if `list`
// is empty. The answer points into `list`.
const char *hx_nearest(const char *word, const char *const *list, size_t count);

#endif
