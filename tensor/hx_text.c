// hx_text - see the header.

#include "tensor/hx_text.h"

#include <stdio.h>
#include <string.h>

void hx_text_add_args(hx_text_t *self, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int size = vsnprintf(NULL, 0, format, args);
    HX_ASSERT(size >= 0);
    const size_t needed = self->size + (size_t)size + 1;
    if (needed > self->room) {
        self->room = 2 * needed;
        self->bytes = hx_grow(self->bytes, self->room, 1);
    }
    vsnprintf(self->bytes + self->size, self->room - self->size, format, again);
    va_end(again);
    self->size += (size_t)size;
}

void hx_text_add(hx_text_t *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    hx_text_add_args(self, format, args);
    va_end(args);
}

// Optimal string alignment: three rows of the usual table are enough, since a swap looks two rows
// back.
uint32_t hx_distance(const char *a, const char *b)
{
    HX_ASSERT(a && b);
    const size_t a_size = HX_MIN(strlen(a), HX_WORD_MAX);
    const size_t b_size = HX_MIN(strlen(b), HX_WORD_MAX);
    uint32_t rows[3][HX_WORD_MAX + 1] = {0};
    for (size_t y = 0; y <= b_size; y++) {
        rows[0][y] = (uint32_t)y;
    }
    for (size_t x = 1; x <= a_size; x++) {
        uint32_t *const row = rows[x % 3];
        const uint32_t *const last = rows[(x + 2) % 3];
        const uint32_t *const last_but_one = rows[(x + 1) % 3];
        row[0] = (uint32_t)x;
        for (size_t y = 1; y <= b_size; y++) {
            const uint32_t replaced = last[y - 1] + (a[x - 1] != b[y - 1]);
            row[y] = HX_MIN(replaced, HX_MIN(last[y], row[y - 1]) + 1);
            if (x > 1 && y > 1 && a[x - 1] == b[y - 2] && a[x - 2] == b[y - 1]) {
                row[y] = HX_MIN(row[y], last_but_one[y - 2] + 1);
            }
        }
    }
    return rows[a_size % 3][b_size];
}

const char *hx_nearest(const char *word, const char *const *list, size_t count)
{
    const char *best = NULL;
    uint32_t best_distance = UINT32_MAX;
    for (size_t index = 0; index < count; index++) {
        const uint32_t distance = hx_distance(word, list[index]);
        if (distance < best_distance) {
            best_distance = distance;
            best = list[index];
        }
    }
    return best;
}
