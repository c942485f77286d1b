// hx_log - see the header. [io]: writes to standard error and to a file, and reads the clock.

#include "tensor/hx_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NO_FILE (-1)

static atomic_int level_now = HX_LOG_INFO;
static bool quiet_now;
static int file_now = NO_FILE;
static char process_name[HX_LOG_NAME_MAX] = "-";
static _Thread_local char thread_name[HX_LOG_NAME_MAX];

static void set_name(char *to, const char *name)
{
    snprintf(to, HX_LOG_NAME_MAX, "%s", name);
}

hx_err_t hx_log_open(const hx_log_conf_t *conf, hx_fault_t *fault)
{
    HX_ASSERT(conf && conf->level <= HX_LOG_DEBUG);
    int file = NO_FILE;
    if (conf->file) {
        file = open(conf->file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (file < 0) {
            return hx_fault(fault, HX_E_IO, "log file %s: cannot be opened: %s", conf->file,
                            strerror(errno));
        }
    }
    hx_log_close();
    file_now = file;
    quiet_now = conf->quiet;
    set_name(process_name, conf->name ? conf->name : "-");
    hx_log_set_level(conf->level);
    return HX_OK;
}

void hx_log_close(void)
{
    if (file_now != NO_FILE) {
        close(file_now);
        file_now = NO_FILE;
    }
}

hx_log_level_t hx_log_level_of(int verbose, int quiet)
{
    const int level = HX_LOG_INFO + verbose - quiet;
    return (hx_log_level_t)HX_MAX((int)HX_LOG_ERROR, HX_MIN((int)HX_LOG_DEBUG, level));
}

void hx_log_set_level(hx_log_level_t level)
{
    HX_ASSERT(level <= HX_LOG_DEBUG);
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool hx_log_wants(hx_log_level_t level)
{
    return (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

void hx_log_set_name(const char *name)
{
    set_name(thread_name, name ? name : "");
}

// How many bytes at `text` are a control character: 1 below space and for DEL, 2 for the controls
// from U+0080 to U+009F in UTF-8, else 0.
static size_t control_size(const unsigned char *text)
{
    if (text[0] < 0x20 || text[0] == 0x7f) {
        return 1;
    }
    return text[0] == 0xc2 && text[1] >= 0x80 && text[1] <= 0x9f ? 2 : 0;
}

// Appends `text` with control characters as \xNN. Returns false when it did not fit whole.
static bool append(char *line, size_t size, size_t *length, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        const size_t control = control_size(at);
        const size_t wanted = control > 0 ? 4 * control : 1;
        if (*length + wanted >= size) {
            return false;
        }
        for (size_t byte = 0; byte < control; byte++) {
            *length += (size_t)snprintf(line + *length, size - *length, "\\x%02x", at[byte]);
        }
        if (control == 0) {
            line[(*length)++] = (char)*at;
        }
        at += control > 0 ? control : 1;
    }
    line[*length] = '\0';
    return true;
}

size_t hx_log_format(char *line, size_t size, hx_time_t wall, hx_log_level_t level,
                     const char *name, const char *text)
{
    static const char *const words[] = {"error", "warn ", "info ", "debug"};
    static const char cut[] = "...";
    HX_ASSERT(line && size >= 128 && name && text && (size_t)level < HX_COUNT(words));
    const time_t seconds = (time_t)(wall / HX_SEC(1));
    struct tm date;
    gmtime_r(&seconds, &date);
    size_t length = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &date);
    length += (size_t)snprintf(line + length, size - length, ".%03" PRId64 "Z %s ",
                               wall % HX_SEC(1) / HX_MS(1), words[level]);
    // Room is kept for the mark of a cut line, the newline and the final 0.
    const size_t room = size - sizeof cut - 1;
    const bool whole = append(line, room, &length, name) && append(line, room, &length, ": ") &&
                       append(line, room, &length, text);
    length += (size_t)snprintf(line + length, size - length, "%s\n", whole ? "" : cut);
    return length;
}

static void write_line(int file, const char *line, size_t length)
{
    ssize_t written = 0;
    do {
        written = write(file, line, length);
    } while (written < 0 && errno == EINTR);
    // A log that cannot be written has nowhere to say so.
}

void hx_log(hx_log_level_t level, const char *format, ...)
{
    if (!hx_log_wants(level)) {
        return;
    }
    char text[HX_LOG_LINE_MAX];
    char line[HX_LOG_LINE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const hx_time_t wall = HX_SEC(now.tv_sec) + now.tv_nsec;
    const size_t length = hx_log_format(line, sizeof line, wall, level,
                                        thread_name[0] ? thread_name : process_name, text);
    if (!quiet_now || level == HX_LOG_ERROR) {
        write_line(STDERR_FILENO, line, length);
    }
    if (file_now != NO_FILE) {
        write_line(file_now, line, length);
    }
}
