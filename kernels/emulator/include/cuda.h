// What kernels take from CUDA's <cuda.h> is what nvcc knows without it: the emulator's own.
#pragma once
#include "../cuda_on_cpu.hpp"
