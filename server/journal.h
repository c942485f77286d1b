// journal - the append-only file of commit records.
//
// A round is decided at the moment at which its record is in this file and synced. The file:
//
//     8 bytes   magic "HXJRNL" and two digits of the format's version
//     records   u32 length | u32 zero | u64 xxh3 of length and bytes | bytes as payload_record_encode made them
//
// all little-endian. A file that ends within a record was cut by a crash: the record was not decided, the
// tail is reported and cut off. Damage anywhere else is an error that names the offset. [io]

#ifndef JOURNAL_H
#define JOURNAL_H

#include "net/payload.h"

#define JOURNAL_RECORD_MAX (4u << 20)  // Bytes of one record.

typedef struct journal journal_t;

typedef struct {
    uint64_t records;
    uint64_t history;  // Of the newest record, by (history, version); 0 without records.
    uint64_t version;
    uint64_t torn;  // Bytes that were cut off at the end.
} journal_state_t;

// Called for each whole record, in order.
typedef void journal_each_fn(void *each_self, uint64_t offset, const record_t *record);

// Reads all records of `size` bytes that are a journal's. `*whole` is set to where the last whole record
// ends (also on failure). HX_E_FORMAT and a line naming `name` and the offset for damage; a torn tail is
// none. `each` may be NULL. Pure: for tools and for fuzzing.
HX_MUST_USE hx_err_t journal_scan(const char *name, const uint8_t *bytes, size_t size,
                                  journal_each_fn *each, void *each_self, journal_state_t *state,
                                  size_t *whole, hx_fault_t *fault);

// Opens or creates the file for appending, locks it against a second writer, and cuts off a torn tail (which
// `state` reports). `state` may be NULL.
HX_MUST_USE hx_err_t journal_open(const char *path, journal_t **journal_p, journal_state_t *state,
                                  hx_fault_t *fault);
void journal_destroy(journal_t **self_p);

// Appends one encoded record and syncs. On failure nothing more can be appended (what is on the disk is not
// known): each later call fails likewise.
HX_MUST_USE hx_err_t journal_append(journal_t *self, const blob_t *record, hx_fault_t *fault);

// Reads a file from start to end without changing or locking it.
HX_MUST_USE hx_err_t journal_each(const char *path, journal_each_fn *each, void *each_self,
                                  journal_state_t *state, hx_fault_t *fault);

#endif
