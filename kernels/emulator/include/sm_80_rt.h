// CUDA's <sm_80_rt.h>: what nvcc knows without it.
#pragma once
#include "../cuda_on_cpu.hpp"
