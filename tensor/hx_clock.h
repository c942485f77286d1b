// hx_clock - the time of this machine, for drivers and programs; roles are told it. [io]

#ifndef HX_CLOCK_H
#define HX_CLOCK_H

#include "tensor/hx.h"

hx_time_t hx_now(void);  // CLOCK_MONOTONIC.
void hx_sleep(hx_time_t time);

#endif
