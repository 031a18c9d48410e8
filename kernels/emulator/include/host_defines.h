// CUDA's <host_defines.h>, whose contents nvcc provides without it.
#pragma once
#include "../cuda_on_cpu.hpp"
