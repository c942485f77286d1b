// hash - the 64-bit hash that a PUSH carries of its payload.
//
// XXH3 with the widest vectors that the machine has: the same value everywhere.

#ifndef HASH_H
#define HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_of(const void *bytes, size_t size);

#endif
