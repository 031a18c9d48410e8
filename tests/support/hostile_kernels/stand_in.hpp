// What the hostile kernels name of CUDA, so that a library for the stand-in can be compiled of them.
struct { unsigned x; } static blockIdx, blockDim, threadIdx;
