// seed - the seed of a property test: HX_SEED from the environment, else a fixed one; printed, so
// that a failing case can be run again.

#ifndef SEED_H
#define SEED_H

#include <stdint.h>

uint64_t seed_of(const char *test_name);

#endif
