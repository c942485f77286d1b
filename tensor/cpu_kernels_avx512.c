// cpu_kernels_avx512 - the CPU kernels compiled for AVX-512 (F, BW, DQ, VL).

#if defined(__x86_64__)
#define CPU_KERNELS_TABLE cpu_kernels_avx512
#define CPU_KERNELS_NAME "avx512"
#include "tensor/cpu_kernels_body.h"
#endif
