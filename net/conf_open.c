// conf_open - the file of a configuration; what it says is conf.c's to read.

#include "net/conf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// Reads at most CONF_FILE_MAX + 1 bytes, so that conf_read can tell a file that is too large.
static hx_err_t read_file(const char *path, char *text, size_t *size, hx_fault_t *fault)
{
    struct stat status;
    FILE *const file = fopen(path, "rb");
    if (!file) {
        return hx_fault(fault, HX_E_IO, "%s: %s", path, strerror(errno));
    }
    hx_err_t err = HX_OK;
    if (fstat(fileno(file), &status) == 0 && S_ISDIR(status.st_mode)) {
        err = hx_fault(fault, HX_E_IO, "%s: a folder; name a configuration file", path);
    } else {
        *size = fread(text, 1, CONF_FILE_MAX + 1, file);
        if (ferror(file)) {
            err = hx_fault(fault, HX_E_IO, "%s: %s", path, strerror(errno));
        }
    }
    fclose(file);
    return err;
}

hx_err_t conf_open(const char *path, const char *const *overrides, size_t overrides_count,
                   conf_t *out, hx_fault_t *fault)
{
    size_t size = 0;
    char *const text = hx_new(1, CONF_FILE_MAX + 1);
    hx_err_t err = read_file(path, text, &size, fault);
    if (err == HX_OK) {
        err = conf_read(path, text, size, overrides, overrides_count, out, fault);
    }
    free(text);
    return err;
}
