// checkpoint_io - what writing and reading of checkpoints share: names, errors, digests, folders.
// [io]

#ifndef CHECKPOINT_IO_H
#define CHECKPOINT_IO_H

#include "server/checkpoint.h"
#include "server/manifest.h"

#define CHECKPOINT_PREFIX "checkpoint-"
#define CHECKPOINT_TMP ".tmp"
#define CHECKPOINT_WEIGHTS "model.safetensors"
#define CHECKPOINT_MOMENTS "optimizer.safetensors"
#define CHECKPOINT_CONF "config.json"
#define CHECKPOINT_MANIFEST "manifest.json"

// "folder/name" into `out` (CHECKPOINT_PATH_MAX bytes). HX_E_ARG: too long.
HX_MUST_USE hx_err_t checkpoint_path(const char *folder, const char *name, char *out,
                                     hx_fault_t *fault);
// The line and the code for a failed call on a file; `error` is its errno.
hx_err_t checkpoint_failed(const char *path, const char *what, int error, hx_fault_t *fault);

// Size and xxh3 of a whole file.
HX_MUST_USE hx_err_t checkpoint_digest(const char *path, uint64_t *size, uint64_t *digest,
                                       hx_fault_t *fault);
HX_MUST_USE hx_err_t checkpoint_sync(const char *path, hx_fault_t *fault);  // A file or a folder.
// Removes a folder of plain files; what cannot be removed stays.
void checkpoint_remove(const char *path);
HX_MUST_USE hx_err_t checkpoint_manifest(const char *folder, manifest_t *out, hx_fault_t *fault);

// A checkpoint folder of a run, whole or not.
typedef struct {
    uint64_t version;
    uint64_t history;
    bool readable;  // Its manifest is; else `why`.
    char why[HX_FAULT_MAX];
} checkpoint_entry_t;
// Those of a run, newest first by (history, version), unreadable ones last. To be given back with
// free().
HX_MUST_USE hx_err_t checkpoint_list(const char *run, checkpoint_entry_t **list_p, uint32_t *count,
                                     hx_fault_t *fault);

#endif
