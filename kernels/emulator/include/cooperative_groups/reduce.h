// CUDA's <cooperative_groups/reduce.h>.
#pragma once
#include "../../cooperative_groups.hpp"
