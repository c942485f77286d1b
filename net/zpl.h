// zpl - strict reading of ZPL text (ZeroMQ RFC 4) through CZMQ's zconfig.
//
// zconfig is lenient: it cuts an unquoted value at any '#', reads a key without a value as a
// section, shortens long lines, and reports trouble only on the console. So every raw line is
// checked here first, with its number; zconfig then parses what passed, and both must find the same
// items. What a key may be called or hold is conf's business.
//
//     section
//         key = value        # four blanks a level, never tabs
//         key = "any text"   # quotes (either kind) where a value has '#', '=' or quotes

#ifndef ZPL_H
#define ZPL_H

#include "tensor/hx.h"

#define ZPL_LINE_MAX 1000  // Bytes; zconfig itself would cut at 1024.
#define ZPL_LEVELS_MAX 8

typedef struct {
    char *name;
    char *value;  // "" for a section and for an empty text in quotes.
    bool section;
    uint32_t level;  // 0: not indented.
    uint32_t line;   // From 1.
} zpl_item_t;

typedef struct {
    zpl_item_t *items;  // In the order of the text; an item's children follow it, one level deeper.
    uint32_t items_count;
} zpl_t;

// Reads `size` bytes. HX_E_FORMAT and "PATH:LINE: ..." in `fault` at the first bad line.
HX_MUST_USE hx_err_t zpl_read(const char *path, const char *text, size_t size, zpl_t *out,
                              hx_fault_t *fault);
void zpl_destroy(zpl_t *self);

#endif
