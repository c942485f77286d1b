// hash_test - the hash of payloads is the portable XXH3, whatever instructions computed it.

#include <criterion/criterion.h>
#include <xxhash.h>

#include "net/hash.h"
#include "tensor/hx.h"

Test(hash, is_xxh3_at_every_length_and_alignment)
{
    enum { SIZE = 5000 };
    uint8_t bytes[SIZE];
    for (size_t at = 0; at < SIZE; at++) {
        bytes[at] = (uint8_t)(at * 167 + (at >> 7));
    }
    for (size_t first = 0; first < 5; first++) {
        for (size_t size = 0; first + size <= SIZE; size += size < 300 ? 1 : 97) {
            cr_assert_eq(hash_of(bytes + first, size), XXH3_64bits(bytes + first, size),
                         "%zu bytes from %zu", size, first);
        }
    }
    // The reference value of nothing with seed 0.
    cr_assert_eq(hash_of(NULL, 0), 0x2D06800538D394C2u);
}
