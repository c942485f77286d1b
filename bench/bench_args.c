// bench_args - see the header.

#include "bench/bench_args.h"

#include <stdlib.h>
#include <string.h>

// Copies the word at *text, up to the next comma, and moves *text behind it (NULL: it was the
// last). False if the word is empty or too long.
static bool next_word(const char **text, char *word, size_t room)
{
    const size_t length = strcspn(*text, ",");
    if (length == 0 || length >= room) {
        return false;
    }
    memcpy(word, *text, length);
    word[length] = '\0';
    *text = (*text)[length] == ',' ? *text + length + 1 : NULL;
    return true;
}

static bool parse_size(const char *word, size_t *out)
{
    const size_t digits = strspn(word, "0123456789");
    if (digits == 0 || digits > 12) {
        return false;
    }
    uint64_t value = strtoull(word, NULL, 10);
    const char *const unit = word + digits;
    if (strcmp(unit, "K") == 0) {
        value <<= 10;
    } else if (strcmp(unit, "M") == 0) {
        value <<= 20;
    } else if (*unit) {
        return false;
    }
    *out = value;
    return true;
}

hx_err_t bench_sizes_parse(const char *text, size_t min, size_t max, bench_sizes_t *out,
                           hx_fault_t *fault)
{
    *out = (bench_sizes_t){.count = 0};
    for (const char *at = text; at;) {
        char word[32];
        size_t size = 0;
        if (out->count == BENCH_SIZES_MAX) {
            return hx_fault(fault, HX_E_ARG, "at most %u sizes at once", BENCH_SIZES_MAX);
        }
        if (!next_word(&at, word, sizeof word) || !parse_size(word, &size)) {
            return hx_fault(fault, HX_E_ARG, "\"%s\" are no sizes: write 64K,1M or 65536,1048576",
                            text);
        }
        if (size < min || size > max) {
            return hx_fault(fault, HX_E_ARG, "size %s: it must be %zu to %zu bytes", word, min,
                            max);
        }
        out->bytes[out->count++] = size;
    }
    return HX_OK;
}

hx_err_t bench_transports_parse(const char *text, bench_transports_t *out, hx_fault_t *fault)
{
    static const char *const known[BENCH_TRANSPORTS_MAX] = {"tcp", "ipc"};
    *out = (bench_transports_t){.count = 0};
    for (const char *at = text; at;) {
        char word[8];
        const char *found = NULL;
        if (next_word(&at, word, sizeof word)) {
            for (size_t name = 0; name < BENCH_TRANSPORTS_MAX; name++) {
                found = strcmp(known[name], word) == 0 ? known[name] : found;
            }
        }
        if (!found || out->count == BENCH_TRANSPORTS_MAX) {
            return hx_fault(fault, HX_E_ARG, "\"%s\" are no transports: write tcp, ipc or tcp,ipc",
                            text);
        }
        out->names[out->count++] = found;
    }
    return HX_OK;
}
