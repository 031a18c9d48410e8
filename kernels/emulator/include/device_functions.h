// What kernels take from CUDA's <device_functions.h> is what nvcc knows without it: the emulator's own.
#pragma once
#include "../cuda_on_cpu.hpp"
