// Groups of Q4_K and Q5_K.
#pragma once

#include "museum.cuh"

// Scale and minimum of group g: six bits each, the upper two of groups 4 to 7 beside those of groups 0 to 3.
__device__ inline void scale_minimum(const u8* s, int g, int& scale, int& minimum) {
    scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
}
