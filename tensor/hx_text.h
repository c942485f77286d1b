// hx_text - the nearest known word to a mistyped one, for options and configuration keys.

#ifndef HX_TEXT_H
#define HX_TEXT_H

#include "tensor/hx.h"

#define HX_WORD_MAX 128  // Longer words are compared by their first bytes.

// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
uint32_t hx_distance(const char *a, const char *b);

// The word of `list` with the fewest edits from `word` (the first among equals), or NULL if `list`
// is empty. The answer points into `list`.
const char *hx_nearest(const char *word, const char *const *list, size_t count);

#endif
