// rough - see the header.

#include "tests/support/rough.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tensor/hx.h"

#define HOSTS "/etc/hosts"

double rough_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void rough_nap(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

uint32_t rough_between(uint64_t *state, uint32_t first, uint32_t last)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return first + (uint32_t)((*state >> 16) % (last - first + 1));
}

// ---- runs

void rough_launch(run_t *run, const char *const *sets, double seconds, int status)
{
    const int got = run_wait(run_start(run, "harmony-launch", "launch.log", sets), seconds);
    char *const text = run_text(run, "launch.log");
    if (got != status) {
        rough_clear(run);
    }
    cr_assert_eq(got, status, "harmony-launch ended with %d, not %d:\n%s", got, status,
                 text ? text : "");
    free(text);
}

void rough_refused(run_t *run, const char *program, const char *const *sets, double seconds,
                   const char *const *words)
{
    const double start = rough_now();
    char log[64];
    snprintf(log, sizeof log, "%s.log", program);
    const int status = run_wait(run_start(run, program, log, sets), seconds + 30);
    const double took = rough_now() - start;
    char *const text = run_text(run, log);
    cr_expect_eq(status, 2, "%s: status %d: %s", program, status, text);
    cr_expect_leq(took, seconds, "%s: refused after %.1f s", program, took);
    cr_assert(text);
    for (; *words; words++) {
        cr_expect(strstr(text, *words), "%s: no \"%s\" in: %s", program, *words, text);
    }
    cr_expect_null(strstr(text, "assertion"), "%s", text);
    free(text);
    rough_clear(run);
}

bool rough_gone(run_t *run, double seconds)
{
    const double limit = rough_now() + seconds;
    while (run_processes(run) > 0) {
        if (rough_now() > limit) {
            return false;
        }
        rough_nap(0.02);
    }
    return true;
}

// The pids of all processes of this run.
static uint32_t pids_of(const run_t *run, pid_t *pids, uint32_t room)
{
    uint32_t count = 0;
    DIR *const proc = opendir("/proc");
    HX_ASSERT(proc);
    for (struct dirent *entry; count < room && (entry = readdir(proc));) {
        char path[64], line[4096];
        snprintf(path, sizeof path, "/proc/%.20s/cmdline", entry->d_name);
        FILE *const file = isdigit((unsigned char)entry->d_name[0]) ? fopen(path, "r") : NULL;
        if (!file) {
            continue;
        }
        const size_t size = fread(line, 1, sizeof line - 1, file);
        fclose(file);
        line[size] = '\0';
        if (memmem(line, size, run->conf, strlen(run->conf))) {
            pids[count++] = (pid_t)strtol(entry->d_name, NULL, 10);
        }
    }
    closedir(proc);
    return count;
}

void rough_clear(run_t *run)
{
    pid_t pids[64];
    for (int tries = 0; tries < 100; tries++) {
        const uint32_t count = pids_of(run, pids, 64);
        for (uint32_t at = 0; at < count; at++) {
            kill(pids[at], SIGKILL);
            waitpid(pids[at], NULL, WNOHANG);
        }
        if (count == 0) {
            return;
        }
        rough_nap(0.02);
    }
}

// ---- names

bool rough_hosts_add(const char *lines)
{
    FILE *const file = fopen(HOSTS, "a");
    if (!file || flock(fileno(file), LOCK_EX) != 0) {
        return false;
    }
    const bool added = fprintf(file, "%s", lines) > 0;
    return fclose(file) == 0 && added;
}

// The file is written in place: where it is mounted it cannot be renamed.
void rough_hosts_restore(const char *mark)
{
    FILE *const file = fopen(HOSTS, "r+");
    cr_assert(file && flock(fileno(file), LOCK_EX) == 0);
    char text[16384];
    char kept[16384] = {0};
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        if (!strstr(line, mark) && (rest || *line)) {
            strcat(kept, line);
            strcat(kept, "\n");
        }
    }
    rewind(file);
    cr_assert_eq(fwrite(kept, 1, strlen(kept), file), strlen(kept));
    cr_assert_eq(fflush(file), 0);
    cr_assert_eq(ftruncate(fileno(file), (off_t)strlen(kept)), 0);
    fclose(file);
}

// ---- ports

// Whether one of the process's descriptors is the socket with this inode.
static bool has_socket(pid_t pid, uint64_t inode)
{
    char path[64], wanted[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "socket:[%" PRIu64 "]", inode);
    DIR *const folder = opendir(path);
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        char target[64];
        const ssize_t size = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        target[HX_MAX(size, 0)] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

uint32_t rough_ports(pid_t pid, uint16_t *ports, uint32_t room)
{
    FILE *const table = fopen("/proc/net/tcp", "r");
    cr_assert(table);
    char line[512];
    uint32_t count = 0;
    while (count < room && fgets(line, sizeof line, table)) {
        unsigned port = 0, state = 0;
        uint64_t inode = 0;
        if (sscanf(line,
                   " %*d: %*8[0-9A-Fa-f]:%x %*8[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %" SCNu64,
                   &port, &state, &inode) == 3 &&
            state == 0x0a && has_socket(pid, inode)) {
            ports[count++] = (uint16_t)port;
        }
    }
    fclose(table);
    return count;
}

uint32_t rough_run_ports(run_t *run, uint16_t *ports, uint32_t room)
{
    pid_t pids[64];
    uint32_t count = 0;
    const uint32_t processes = pids_of(run, pids, 64);
    for (uint32_t at = 0; at < processes; at++) {
        count += rough_ports(pids[at], ports + count, room - count);
    }
    return count;
}

int rough_connect(uint16_t port)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HX_ASSERT(fd >= 0);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval limit = {.tv_sec = 2};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

// ---- files

static int open_file(const run_t *run, const char *path, off_t *size)
{
    char full[768];
    struct stat info;
    snprintf(full, sizeof full, "%s/%s", run->dir, path);
    const int fd = open(full, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0 && fstat(fd, &info) == 0, "%s: %s", full, strerror(errno));
    *size = info.st_size;
    return fd;
}

void rough_flip(run_t *run, const char *path, double where)
{
    off_t size = 0;
    const int fd = open_file(run, path, &size);
    const off_t at = (off_t)((double)(size - 1) * where);
    unsigned char byte = 0;
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

void rough_cut(run_t *run, const char *path, double where)
{
    off_t size = 0;
    const int fd = open_file(run, path, &size);
    cr_assert_eq(ftruncate(fd, (off_t)((double)size * where)), 0);
    close(fd);
}

uint32_t rough_count(run_t *run, const char *folder, const char *prefix, const char *suffix)
{
    char full[768];
    uint32_t count = 0;
    snprintf(full, sizeof full, "%s/%s", run->dir, folder);
    DIR *const open_folder = opendir(full);
    for (struct dirent *entry; open_folder && (entry = readdir(open_folder));) {
        const size_t length = strlen(entry->d_name);
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && length >= strlen(suffix) &&
                 strcmp(entry->d_name + length - strlen(suffix), suffix) == 0;
    }
    if (open_folder) {
        closedir(open_folder);
    }
    return count;
}

double rough_summary(run_t *run, const char *key)
{
    json_t *const summary = run_summary(run);
    const json_t *const value = json_object_get(summary, key);
    const double number = json_is_number(value) ? json_number_value(value) : -1;
    json_decref(summary);
    return number;
}

bool rough_status(run_t *run, const char *status)
{
    json_t *const summary = run_summary(run);
    const char *const text = json_string_value(json_object_get(summary, "status"));
    const bool same = text && strcmp(text, status) == 0;
    json_decref(summary);
    return same;
}
