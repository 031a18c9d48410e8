// CUDA's <cuda_runtime_api.h>: what kernels use from it is built into nvcc, and into the emulator.
#pragma once
#include "../cuda_on_cpu.hpp"
