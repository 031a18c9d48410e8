// Fills a block's dynamic shared memory, so that a later launch that reads shared memory before writing it finds these
// words. Volatile, since a compiler may remove stores that nothing reads.
extern "C" __global__ void gguf_verify_fill_shared(unsigned word, unsigned words) {
    extern __shared__ unsigned filled[];
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) ((volatile unsigned*)filled)[i] = word;
}
