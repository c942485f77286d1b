// ps_slots - counted memory for the arrays of blocks, in pools by size.
//
// A slot holds `arrays` arrays of `count` floats, each aligned to 64 bytes. Taking, and reading
// the counts, is of one thread; slots may be given back in any. Memory is reserved in whole
// pieces and stays until the last slot and the owner are gone, so it can come from a mapping that
// outlives the process.

#ifndef PS_SLOTS_H
#define PS_SLOTS_H

#include "net/blob.h"

// Where the memory comes from.
typedef struct {
    void *self;
    // `size` bytes aligned to 64; HX_E_NOMEM.
    hx_err_t (*reserve)(void *self, size_t size, void **memory_p);
    void (*release)(void *self, void *memory);
} ps_memory_t;

typedef struct ps_slots ps_slots_t;
typedef struct ps_slot ps_slot_t;

// `memory` NULL: of the process.
ps_slots_t *ps_slots_new(uint32_t arrays, const ps_memory_t *memory);
// The owner's end: memory goes when the last slot has come back.
void ps_slots_destroy(ps_slots_t **self_p);

// A slot for arrays of `count` floats, counted once; contents are not defined. HX_E_NOMEM.
HX_MUST_USE hx_err_t ps_slots_take(ps_slots_t *self, uint64_t count, ps_slot_t **slot_p);
void ps_slots_stats(const ps_slots_t *self, uint32_t *slots, uint64_t *bytes);  // Ever reserved.

float *ps_slot_array(const ps_slot_t *slot, uint32_t array);
ps_slot_t *ps_slot_retain(ps_slot_t *slot);
void ps_slot_release(ps_slot_t **slot_p);  // Nulls the pointer; NULL inside is accepted.
// An array as bytes to send, without a copy: it counts on the slot.
blob_t *ps_slot_blob(ps_slot_t *slot, uint32_t array);

#endif
