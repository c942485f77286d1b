// held_out - see the header.

#include "server/held_out.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define HEADER_SIZE 1024u

static bool is_binary(const char *path)
{
    const size_t size = strlen(path);
    return size >= 4 && strcmp(path + size - 4, ".bin") == 0;
}

static hx_err_t tokens_of(const char *path, const char *key, uint64_t *tokens, hx_fault_t *fault)
{
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) {
        return hx_fault(fault, HX_E_IO,
                        "%s: %s (%s; servers look at its length to know how much is held out)",
                        path, errno != 0 ? strerror(errno) : "not a file", key);
    }
    const uint64_t size = (uint64_t)status.st_size;
    if (is_binary(path)) {
        *tokens = size > HEADER_SIZE ? (size - HEADER_SIZE) / 2 : 0;
    } else {
        *tokens = size;
    }
    return HX_OK;
}

hx_err_t held_out_rows(const held_out_conf_t *conf, uint64_t *rows, hx_fault_t *fault)
{
    HX_ASSERT(conf->context > 0);
    uint64_t tokens = 0;
    errno = 0;
    if (conf->valid_path[0] != '\0') {
        HX_TRY(tokens_of(conf->valid_path, "train.valid", &tokens, fault));
    } else {
        uint64_t all = 0;
        HX_TRY(tokens_of(conf->path, "train.data", &all, fault));
        tokens = HX_MIN((uint64_t)((double)all * conf->valid), all);
    }
    *rows = tokens > 0 ? (tokens - 1) / conf->context : 0;
    return HX_OK;
}
