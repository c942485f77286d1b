// run_folder - see the header.

#include "net/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_ROOM 1024

static hx_err_t refuse_path(const char *path, hx_fault_t *fault)
{
    return hx_fault(fault, HX_E_IO, "%.200s...: the path is too long (run.directory, run.name)",
                    path);
}

static hx_err_t make_one(const char *path, hx_fault_t *fault)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) {
        return HX_OK;
    }
    const int error = errno;
    return hx_fault(fault, error == ENOSPC ? HX_E_NOSPC : HX_E_IO,
                    "%s: the folder cannot be made: %s (run.directory)", path, strerror(error));
}

// Only the kernel knows whether files can be made there (rights, read-only mounts, quotas): try
// it.
static hx_err_t try_file(const char *path, hx_fault_t *fault)
{
    char file[PATH_ROOM + 32];
    snprintf(file, sizeof file, "%s/.try-%ld", path, (long)getpid());
    const int descriptor = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        const int error = errno;
        return hx_fault(fault, error == ENOSPC ? HX_E_NOSPC : HX_E_IO,
                        "%s: no file can be made in this folder: %s (run.directory)", path,
                        strerror(error));
    }
    close(descriptor);
    unlink(file);
    return HX_OK;
}

hx_err_t run_folder_make(const char *path, hx_fault_t *fault)
{
    char part[PATH_ROOM];
    const size_t size = strlen(path);
    if (size == 0 || size >= sizeof part) {
        return refuse_path(path, fault);
    }
    memcpy(part, path, size + 1);
    for (size_t at = 1; at < size; at++) {
        if (part[at] == '/') {
            part[at] = '\0';
            HX_TRY(make_one(part, fault));
            part[at] = '/';
        }
    }
    HX_TRY(make_one(part, fault));
    return try_file(path, fault);
}

hx_err_t run_folder_lock(const char *path, const char *name, int *lock, hx_fault_t *fault)
{
    char file[PATH_ROOM];
    if (snprintf(file, sizeof file, "%s/%s", path, name) >= (int)sizeof file) {
        return refuse_path(path, fault);
    }
    const int descriptor = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return hx_fault(fault, HX_E_IO, "%s: cannot be opened: %s", file, strerror(errno));
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        const int error = errno;
        char holder[64] = {0};
        const ssize_t got = pread(descriptor, holder, sizeof holder - 1, 0);
        close(descriptor);
        if (error != EWOULDBLOCK) {
            return hx_fault(fault, HX_E_IO, "%s: cannot be locked: %s", file, strerror(error));
        }
        holder[strcspn(holder, "\n")] = '\0';
        return hx_fault(fault, HX_E_PEER,
                        "%s: another run writes to this folder (process %s): stop it, or choose "
                        "another run.name",
                        path, got > 0 ? holder : "unknown");
    }
    char text[64];
    const int size =
        snprintf(text, sizeof text, "%ld, %.40s\n", (long)getpid(), program_invocation_short_name);
    if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, text, (size_t)size, 0) != size) {
        // The lock is what counts; the number only helps people.
    }
    *lock = descriptor;
    return HX_OK;
}

void run_folder_unlock(int *lock)
{
    if (*lock >= 0) {
        close(*lock);
        *lock = -1;
    }
}
