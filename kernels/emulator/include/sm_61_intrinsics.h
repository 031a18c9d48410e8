// CUDA's <sm_61_intrinsics.h>: what nvcc knows without it.
#pragma once
#include "../cuda_on_cpu.hpp"
