// CUDA's <cooperative_groups.h>.
#pragma once
#include "../cooperative_groups.hpp"
