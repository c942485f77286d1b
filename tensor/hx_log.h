// hx_log - four levels, one line a record: time, level, node, text.
//
//   2026-01-31T12:34:56.789Z warn  shard-2: gradient of step 7 is not finite, dropped
//
// A record is one write(2) to each sink, so lines of several threads or processes do not mix.
// Control characters (a peer's name may hold some) are escaped. Levels: error (cannot go on), warn
// (unexpected, goes on), info (proportional to the number of nodes), debug (per decision).
//
// The sinks and the level are set by `main` before threads start; the name can differ by thread,
// since a process may host several roles. Before hx_log_open, records go to standard error at level
// info.

#ifndef HX_LOG_H
#define HX_LOG_H

#include "tensor/hx.h"

#define HX_LOG_LINE_MAX 4096  // Longer records are cut and end in "...".
#define HX_LOG_NAME_MAX 64

typedef enum { HX_LOG_ERROR, HX_LOG_WARN, HX_LOG_INFO, HX_LOG_DEBUG } hx_log_level_t;

typedef struct {
    const char *name;      // Of the node; borrowed for the call.
    hx_log_level_t level;  // Records above it are not written.
    bool quiet;            // Nothing to standard error, except errors.
    const char *file;      // Appended to, besides standard error; NULL for none.
} hx_log_conf_t;

// HX_E_IO: the file cannot be opened; `fault` (may be NULL) says why, and nothing has changed.
HX_MUST_USE hx_err_t hx_log_open(const hx_log_conf_t *conf, hx_fault_t *fault);
// Closes the file; standard error stays.
void hx_log_close(void);

// The level for -v (repeated) and -q: info + verbose - quiet, within the four.
hx_log_level_t hx_log_level_of(int verbose, int quiet);
void hx_log_set_level(hx_log_level_t level);
bool hx_log_wants(hx_log_level_t level);
// Names the calling thread's records; cut at HX_LOG_NAME_MAX - 1 bytes. NULL: the process's name
// again.
void hx_log_set_name(const char *name);

void hx_log(hx_log_level_t level, const char *format, ...) HX_PRINTF(2, 3);
#define hx_log_error(...) hx_log(HX_LOG_ERROR, __VA_ARGS__)
#define hx_log_warn(...) hx_log(HX_LOG_WARN, __VA_ARGS__)
#define hx_log_info(...) hx_log(HX_LOG_INFO, __VA_ARGS__)
#define hx_log_debug(...) hx_log(HX_LOG_DEBUG, __VA_ARGS__)

// Makes the line of a record into `line` (`size` bytes with the final 0): what hx_log writes.
// Returns its length. `wall` is nanoseconds since 1970.
size_t hx_log_format(char *line, size_t size, hx_time_t wall, hx_log_level_t level,
                     const char *name, const char *text);

#endif
