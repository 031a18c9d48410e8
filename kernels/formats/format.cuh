// The weight type that a unit is compiled for. The harness derives the macros from the type's record: FORMAT_HEADER is
// its header in this folder ("q4_0.cuh"), FORMAT or, for a type without blocks, ELEMENT is the name of the struct, and
// BLOCK_BYTES its size. No `#pragma once`: a unit may redefine FORMAT and include this again.
#include FORMAT_HEADER

#ifdef FORMAT
static_assert(sizeof(FORMAT) == BLOCK_BYTES, "the harness and the kernels disagree about the size of a block");
#else
static_assert(sizeof(ELEMENT) == BLOCK_BYTES, "the harness and the kernels disagree about the size of an element");
#endif
