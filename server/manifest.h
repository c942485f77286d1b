// manifest - manifest.json of a checkpoint, as a struct and as text.
//
// It says which version of which model the folder holds, with the commit record (so model and
// data position are of the same step) and the size and digest of every file. Its last member is a
// digest of all the others, so damage in the manifest itself is noticed too.

#ifndef MANIFEST_H
#define MANIFEST_H

#include "model/model.h"
#include "net/payload.h"

#define MANIFEST_FILES_MAX 8u
#define MANIFEST_NAME_MAX 64u
#define MANIFEST_TEXT_MAX 32u
#define MANIFEST_SIZE_MAX ((size_t)64 << 20)  // Bytes of the text that are read at most.

typedef struct {
    char name[MANIFEST_NAME_MAX];
    uint64_t size;
    uint64_t digest;  // xxh3 of its bytes.
} manifest_file_t;

typedef struct {
    uint64_t version;
    uint64_t history;  // Of the record.
    uint64_t seed;
    model_conf_t model;
    uint32_t moments;
    char optimizer[MANIFEST_TEXT_MAX];
    char library[MANIFEST_TEXT_MAX];  // Version of the program that wrote it.
    char written[MANIFEST_TEXT_MAX];  // Time, for people.
    blob_t *record;                   // As encoded.
    manifest_file_t files[MANIFEST_FILES_MAX];
    uint32_t files_count;
} manifest_t;

void manifest_destroy(manifest_t *self);

// The text, with a final newline; to be given back with free().
char *manifest_encode(const manifest_t *self);

// HX_E_FORMAT with one line that begins with `name`: not a manifest, damaged, or of a later
// format.
HX_MUST_USE hx_err_t manifest_decode(const char *name, const char *text, size_t size,
                                     manifest_t *out, hx_fault_t *fault);

#endif
