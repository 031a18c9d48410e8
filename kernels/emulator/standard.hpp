// What the CPU host takes from the C++ standard library and the system, by itself: it is most of a kernel's source, so
// the harness has it compiled once for all kernels, where the compiler can.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <link.h>
#endif
#include <signal.h>
#include <sys/mman.h>
#if defined(__SSE4_1__)
#include <smmintrin.h>
#endif
#include <ucontext.h>
