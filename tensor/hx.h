// hx - error codes, assertions, time: what every file uses.
//
// Three kinds of failure, three answers: a bug of ours aborts (HX_ASSERT), an operating failure is
// a returned hx_err_t, a user's input becomes one line of text (hx_fault_t) beside the code.

#ifndef HX_H
#define HX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    HX_OK = 0,
    HX_E_NOMEM,    // Memory of a device or of a large buffer.
    HX_E_IO,       // A file or a socket; errno tells more.
    HX_E_NOSPC,    // Disk or shared memory full.
    HX_E_ARG,      // A value that a user gave.
    HX_E_FORMAT,   // Bytes that are not what they should be.
    HX_E_TIMEOUT,  // A wait passed its limit.
    HX_E_PEER,     // Another node refused, or is gone.
    HX_E_NONFINITE,
    HX_E_UNSUPPORTED,
} hx_err_t;

#define HX_MUST_USE __attribute__((warn_unused_result))
#define HX_PRINTF(at, first) __attribute__((__format__(__printf__, at, first)))

// Nanoseconds. In the daemons since an arbitrary moment (monotonic); in the simulator since its
// start.
typedef int64_t hx_time_t;
#define HX_TIME_NEVER INT64_MAX
#define HX_US(n) ((hx_time_t)((n)*1000LL))
#define HX_MS(n) ((hx_time_t)((n)*1000000LL))
#define HX_SEC(n) ((hx_time_t)((n)*1000000000LL))

// A short lower-case text for a code: "out of memory". Never NULL.
const char *hx_strerror(hx_err_t err);

// One clear line for a person: what, where, how to mend it. Filled only when a function fails.
#define HX_FAULT_MAX 1024
typedef struct {
    char text[HX_FAULT_MAX];
} hx_fault_t;

// Writes the line (if `fault` is not NULL) and returns `err`, so that a caller can write
// `return hx_fault(fault, HX_E_ARG, "...")`. Control characters of arguments become '?'.
hx_err_t hx_fault(hx_fault_t *fault, hx_err_t err, const char *format, ...) HX_PRINTF(3, 4);

// Assertions stay on in release builds. They guard our own logic, never what a peer or a file said.
#define HX_ASSERT(condition) \
    ((condition) ? (void)0 : hx_assert_failed(#condition, __FILE__, __LINE__))
#define HX_TODO(what) hx_assert_failed("not handled yet: " what, __FILE__, __LINE__)
_Noreturn void hx_assert_failed(const char *condition, const char *file, int line);

// Passes a failure on to the caller.
#define HX_TRY(expression)                   \
    do {                                     \
        const hx_err_t hx_try_ = (expression); \
        if (hx_try_ != HX_OK) {              \
            return hx_try_;                  \
        }                                    \
    } while (0)

// calloc and realloc for small host objects: abort when there is no memory (nobody could do
// anything useful).
void *hx_new(size_t count, size_t size);
void *hx_grow(void *old, size_t count, size_t size);

#define HX_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define HX_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HX_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
