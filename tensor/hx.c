// hx - texts of error codes, assertions, small allocations.

#include "tensor/hx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *hx_strerror(hx_err_t err)
{
    static const char *const texts[] = {
        [HX_OK] = "ok",
        [HX_E_NOMEM] = "out of memory",
        [HX_E_IO] = "input or output failed",
        [HX_E_NOSPC] = "no space left",
        [HX_E_ARG] = "unusable value",
        [HX_E_FORMAT] = "malformed bytes",
        [HX_E_TIMEOUT] = "waited too long",
        [HX_E_PEER] = "a peer refused or is gone",
        [HX_E_NONFINITE] = "a value is not finite",
        [HX_E_UNSUPPORTED] = "not supported here",
    };
    const size_t index = (size_t)err;
    return index < HX_COUNT(texts) && texts[index] ? texts[index] : "unknown error";
}

hx_err_t hx_fault(hx_fault_t *fault, hx_err_t err, const char *format, ...)
{
    if (fault) {
        va_list args;
        va_start(args, format);
        vsnprintf(fault->text, sizeof fault->text, format, args);
        va_end(args);
        for (char *at = fault->text; *at; at++) {
            if ((unsigned char)*at < 0x20 || *at == 0x7f) {
                *at = '?';
            }
        }
    }
    return err;
}

_Noreturn void hx_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
    fflush(stderr);
    abort();
}

void *hx_new(size_t count, size_t size)
{
    void *const memory = calloc(count ? count : 1, size ? size : 1);
    HX_ASSERT(memory);
    return memory;
}

void *hx_grow(void *old, size_t count, size_t size)
{
    HX_ASSERT(size > 0 && count <= SIZE_MAX / size);
    void *const memory = realloc(old, count > 0 ? count * size : 1);
    HX_ASSERT(memory);
    return memory;
}
