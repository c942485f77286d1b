// hx_clock - see the header.

#include "tensor/hx_clock.h"

#include <errno.h>
#include <time.h>

hx_time_t hx_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return HX_SEC(time.tv_sec) + time.tv_nsec;
}

void hx_sleep(hx_time_t time)
{
    struct timespec left = {.tv_sec = time / HX_SEC(1), .tv_nsec = time % HX_SEC(1)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
