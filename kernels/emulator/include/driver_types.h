// CUDA's <driver_types.h>: what nvcc knows without it.
#pragma once
#include "../cuda_on_cpu.hpp"
