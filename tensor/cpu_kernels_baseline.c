// cpu_kernels_baseline - the CPU kernels compiled for any processor of the architecture.

#define CPU_KERNELS_TABLE cpu_kernels_baseline
#define CPU_KERNELS_NAME "baseline"
#include "tensor/cpu_kernels_body.h"
