// CUDA's <sm_80_rt.h>, whose contents nvcc provides without it.
#pragma once
#include "../cuda_on_cpu.hpp"
