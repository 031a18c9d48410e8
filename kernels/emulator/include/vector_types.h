// CUDA's <vector_types.h>: what kernels use from it is built into nvcc, and into the emulator.
#pragma once
#include "../cuda_on_cpu.hpp"
