// Every weight format. A kernel is compiled once per format, with -DFORMAT=<one of these> and -DBLOCK_BYTES=<the size
// that the harness derives from its own description of the format>.
#pragma once
#include "q4_0.cuh"
#include "q4_1.cuh"
#include "q5_0.cuh"
#include "q5_1.cuh"
#include "q8_0.cuh"
#include "q4_k.cuh"
#include "q6_k.cuh"

static_assert(sizeof(FORMAT) == BLOCK_BYTES, "the harness and the kernels disagree about the size of a block");
