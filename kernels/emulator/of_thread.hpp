// What each operating-system thread that runs blocks has of its own.
//
// All libraries of kernels share one library with these variables (hosts/compiler.py). Checked builds do not: they run on
// one such thread. A kernel's own thread-local variables, its shared memory, may be large. The loader places them
// anywhere, and each access calls __tls_get_addr. These few lie at a fixed distance from the thread's pointer, so an
// access calls nothing: a kernel with barriers takes three quarters of the time.
#pragma once
#include "cuda_on_cpu.hpp"

OF_THREAD cuda_on_cpu::Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_cpu {
OF_THREAD BlockRunner* runner = nullptr;
}
