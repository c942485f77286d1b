// cpu_kernels_avx2 - the CPU kernels compiled for AVX2 and FMA.

#if defined(__x86_64__)
#define CPU_KERNELS_TABLE cpu_kernels_avx2
#define CPU_KERNELS_NAME "avx2"
#include "tensor/cpu_kernels_body.h"
#endif
