// seed - see the header.

#include "tests/support/seed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t seed_of(const char *test_name)
{
    const char *const text = getenv("HX_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : UINT64_C(20260101);
    fprintf(stderr, "%s: seed %" PRIu64 " (set HX_SEED to try another)\n", test_name, seed);
    return seed;
}
