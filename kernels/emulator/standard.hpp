// What the CPU host takes from the C++ standard library and the system, by itself: it is most of a kernel's source, so
// the harness has it compiled once for all kernels, where the compiler can.
#pragma once
#include <algorithm>
#include <atomic>
#include <cassert>
#include <cfenv>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// with the names of <cmath> and <cstdlib> in the global namespace
#include <math.h>
#include <stdlib.h>

#if defined(__linux__)
#include <link.h>
#endif
#include <signal.h>
#include <sys/mman.h>
#if defined(__SSE4_1__)
#include <smmintrin.h>
#endif
#include <ucontext.h>
