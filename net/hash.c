// hash - see the header.

#include "net/hash.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // XXH3_64bits chooses its instructions at run time.
#else
#include <xxhash.h>
#endif

uint64_t hash_of(const void *bytes, size_t size)
{
    return XXH3_64bits(bytes, size);
}
