// pack - writing and reading MessagePack with bounds on both sides.
//
// Writing goes through msgpack-c, which chooses the shortest form of every number and text. Reading
// takes nothing but that form, so each value has exactly one encoding, and it walks over the given
// bytes without allocating or recursing. A reader fails once and for all: after the first surprise
// every call gives 0 and `bad` stays set, so a decoder reads on and asks at the end.

#ifndef PACK_H
#define PACK_H

#include "tensor/hx.h"

typedef struct {
    uint8_t *bytes;
    size_t size;
    size_t room;
    bool grows;  // Else writing past `room` is a bug.
} pack_out_t;

// Into a buffer of the caller; into memory that grows, given back with free(out.bytes).
pack_out_t pack_fixed(uint8_t *bytes, size_t room);
pack_out_t pack_growing(size_t room_first);

void pack_array(pack_out_t *out, uint32_t count);
void pack_uint(pack_out_t *out, uint64_t value);
void pack_bool(pack_out_t *out, bool value);
void pack_double(pack_out_t *out, double value);
void pack_text(pack_out_t *out, const char *text);  // Control characters become '?'.
void pack_bytes(pack_out_t *out, const void *bytes, size_t size);

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    bool bad;
} pack_in_t;

pack_in_t unpack_from(const void *bytes, size_t size);
// All bytes were read, and nothing was wrong.
bool unpack_done(const pack_in_t *in);

// The count of an array: at most `max`, and no more than the bytes left could hold if each element
// takes at least `element_min` of them. So what is allocated for it is in proportion to the input.
uint32_t unpack_array(pack_in_t *in, uint32_t max, size_t element_min);
// An array of exactly `count`.
void unpack_exactly(pack_in_t *in, uint32_t count);
uint64_t unpack_uint(pack_in_t *in, uint64_t max);
bool unpack_bool(pack_in_t *in);
double unpack_double(pack_in_t *in);  // Any, infinite and not-a-number included.
double unpack_finite(pack_in_t *in);
// A text of less than `room` bytes, without control characters, is copied with a final 0.
void unpack_text(pack_in_t *in, char *out, size_t room);
// At most `max` bytes; the answer points into the input.
const uint8_t *unpack_bytes(pack_in_t *in, size_t max, size_t *size);

#endif
