// journal - the append-only file of commit records.
//
// A round is decided at the moment at which its record is in this file and synced. The file:
//
//     8 bytes   "HXJRNL01"
//     records   u32 length | u32 check of offset and length | u64 xxh3 of the bytes | bytes
//
// all little-endian; the bytes are payload_record_encode's. Each append is synced before the next
// begins, so a crash can spoil the last record alone: that one was not decided; it is reported and
// cut off. A record that is damaged with whole ones behind it is an error that names the offset.
// [io]

#ifndef JOURNAL_H
#define JOURNAL_H

#include "net/payload.h"

#define JOURNAL_RECORD_MAX (4u << 20)  // Bytes of one record.

typedef struct journal journal_t;

typedef struct {
    uint64_t records;
    uint64_t history;  // Of the newest record, by (history, version); 0 without records.
    uint64_t version;
    uint64_t torn;  // Bytes behind the last whole record.
} journal_state_t;

// Called for each whole record, in order. `offset` is where it begins in the file.
typedef void journal_each_fn(void *each_self, uint64_t offset, const record_t *record);

// Reads all records of a journal's bytes. HX_E_FORMAT and a line that names `name` and the offset
// for damage; a torn tail is none. `each` may be NULL. For tools and for fuzzing: touches no file.
HX_MUST_USE hx_err_t journal_scan(const char *name, const uint8_t *bytes, size_t size,
                                  journal_each_fn *each, void *each_self, journal_state_t *state,
                                  hx_fault_t *fault);

// Reads a file from start to end, without changing or locking it.
HX_MUST_USE hx_err_t journal_each(const char *path, journal_each_fn *each, void *each_self,
                                  journal_state_t *state, hx_fault_t *fault);

// Opens or creates the file for appending, locks it against a second writer, and cuts off a torn
// tail (which `state`, if not NULL, reports). HX_E_IO, HX_E_FORMAT with a line.
HX_MUST_USE hx_err_t journal_open(const char *path, journal_t **journal_p, journal_state_t *state,
                                  hx_fault_t *fault);
void journal_destroy(journal_t **self_p);

// Appends one encoded record and syncs. After a failure what the disk has is not known: each later
// call fails likewise.
HX_MUST_USE hx_err_t journal_append(journal_t *self, const blob_t *record, hx_fault_t *fault);

#endif
