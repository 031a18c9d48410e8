// CUDA's <sm_61_intrinsics.h>, whose contents nvcc provides without it.
#pragma once
#include "../cuda_on_cpu.hpp"
