// device - the devices that tests of the backend run on, and short ways to move numbers to them.
//
// Each CPU variant with one thread and with three is a device of its own. A test says what holds on
// one device and is run on all; a device that this machine lacks is passed over aloud.

#ifndef DEVICE_H
#define DEVICE_H

#include "tensor/hx_backend.h"
#include "tensor/hx_rng.h"

typedef void (*device_check_fn)(hx_backend_t *backend, hx_rng_t *rng);

// Runs the check on each device with the seed of `name` (tests/support/seed.h).
void device_each(const char *name, device_check_fn check);

// Reserves memory with these bytes in it; NULL `host` leaves them undefined. Fails the program.
void *device_put(hx_backend_t *backend, const void *host, size_t size);
// Waits, and reads the bytes back.
void device_get(hx_backend_t *backend, void *host, const void *memory, size_t size);
// Reads `count` floats back and releases the memory.
void device_take(hx_backend_t *backend, float *host, float *memory, size_t count);
void device_drop(hx_backend_t *backend, void *memory);

// Normal numbers; a whole number in first .. last.
void device_random(hx_rng_t *rng, float *x, size_t count);
size_t device_between(hx_rng_t *rng, size_t first, size_t last);
// Norm of the difference over the norm of `wanted`; the norm alone if that is 0. NaN if any is NaN.
double device_distance(const float *got, const double *wanted, size_t count);

#endif
