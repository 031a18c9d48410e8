// Reads every block of a tensor once: decodes it, compares with llama.cpp's to_float bit by bit, and gathers statistics.
//
// Compiled once per format over the kernels' own format headers (-DFORMAT=… -DBLOCK_BYTES=…), so what is checked here is
// the very code that a kernel unpacks with. Rows are shared out to threads in pieces that stay within a core's cache.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "formats/all.cuh"

// The same layout as `Summary` in scan.py.
struct Summary {
    int64_t blocks;
    int64_t mismatched;      // blocks of which a value has other bits than llama.cpp's
    int64_t not_finite;      // blocks whose scale or minimum is infinite or NaN
    int64_t subnormal;       // blocks whose scale is a subnormal half
    int64_t zero;            // blocks of which every value is zero
    int64_t zero_scale;      // blocks whose scale is zero
    int64_t negative_scale;  // blocks whose scale is below zero
    int64_t with_lowest;     // blocks with a non-zero scale that hold the lowest code
    int64_t with_highest;    // likewise the highest
    int64_t with_both;       // likewise both
    int64_t codes[256];      // how often each code occurs, by its bits
    float d_min, d_max;      // of finite scales, by value
    float d_small;           // smallest magnitude of a non-zero finite scale
    float m_min, m_max;      // of finite minima
};

namespace {

constexpr int LOWEST = (int)(CODE_LOWEST), HIGHEST = (int)(CODE_HIGHEST);
constexpr int64_t PIECE = 128;  // blocks decoded at a time: 16 KiB of values, twice

using ToFloat = void (*)(const void*, float*, int64_t);

struct Worker {
    Summary s{};
    std::vector<int64_t> bad;
    int32_t counts[4][256] = {};  // four, so that equal codes in a row do not wait for each other
    int64_t counted = 0;

    Worker() {
        s.d_min = s.m_min = s.d_small = INFINITY;
        s.d_max = s.m_max = -INFINITY;
    }

    void flush() {
        for (int i = 0; i < 256; ++i)
            for (auto& table : counts) {
                s.codes[i] += table[i];
                table[i] = 0;
            }
        counted = 0;
    }

    void block(const FORMAT& w, const float* theirs, int64_t index) {
        int8_t q[QK];
        float ours[QK];
        w.unpack(q);
        const float d = w.scale(), m = w.minimum();
        int low = q[0], high = q[0];
        for (int i = 0; i < QK; ++i) {
            low = std::min<int>(low, q[i]);
            high = std::max<int>(high, q[i]);
        }
        for (int i = 0; i < QK; i += 4)
            for (int t = 0; t < 4; ++t) ++counts[t][(uint8_t)q[i + t]];
        uint32_t other = 0, any = 0;
        for (int i = 0; i < QK; ++i) {
            ours[i] = FORMAT::value(d, m, q[i]);
            uint32_t a, b;
            memcpy(&a, ours + i, 4);
            memcpy(&b, theirs + i, 4);
            other |= a ^ b;
            any |= a << 1;  // the sign of a zero does not count
        }
        ++s.blocks;
        const bool finite = std::isfinite(d) && std::isfinite(m);
        if (!finite) other = both_nan_or_same(ours, theirs) ? 0 : 1;
        if (other || !finite) {
            s.mismatched += other != 0;
            s.not_finite += !finite;
            bad.push_back(index);
        }
        if (finite) {
            s.d_min = std::min(s.d_min, d);
            s.d_max = std::max(s.d_max, d);
            if (d != 0) s.d_small = std::min(s.d_small, std::fabs(d));
            if (FORMAT::HAS_M) {
                s.m_min = std::min(s.m_min, m);
                s.m_max = std::max(s.m_max, m);
            }
        }
        s.subnormal += d != 0 && std::fabs(d) < 0x1p-14f;
        s.zero += any == 0;
        s.zero_scale += d == 0;
        s.negative_scale += d < 0;
        if (d != 0) {
            s.with_lowest += low <= LOWEST;
            s.with_highest += high >= HIGHEST;
            s.with_both += low <= LOWEST && high >= HIGHEST;
        }
        if ((counted += QK) > (int64_t)1 << 30) flush();
    }

    static bool both_nan_or_same(const float* a, const float* b) {
        for (int i = 0; i < QK; ++i)
            if (memcmp(a + i, b + i, 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
        return true;
    }
};

uint64_t hash(const uint8_t* bytes, size_t n) {  // equal rows have equal hashes; who trusts more compares the bytes
    uint64_t h = 0x9E3779B97F4A7C15ull ^ n;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        h = (h ^ word) * 0xFF51AFD7ED558CCDull;
        h ^= h >> 32;
    }
    for (; i < n; ++i) h = (h ^ bytes[i]) * 0x100000001B3ull;
    return h ^ h >> 29;
}

void merge(Summary& into, const Summary& from) {
    int64_t* a = &into.blocks;
    const int64_t* b = &from.blocks;
    for (size_t i = 0; i < offsetof(Summary, d_min) / sizeof(int64_t); ++i) a[i] += b[i];
    into.d_min = std::min(into.d_min, from.d_min);
    into.d_max = std::max(into.d_max, from.d_max);
    into.d_small = std::min(into.d_small, from.d_small);
    into.m_min = std::min(into.m_min, from.m_min);
    into.m_max = std::max(into.m_max, from.m_max);
}

}  // namespace

// rows: n_rows × blocks_per_row blocks. row_hashes: n_rows words. bad: room for most_bad block numbers, filled with the
// first ones that mismatch or are not finite; returns how many there are in all.
extern "C" int64_t scan(const uint8_t* rows, int64_t n_rows, int64_t blocks_per_row, ToFloat to_float, int threads,
                        Summary* out, uint64_t* row_hashes, int64_t* bad, int64_t most_bad) {
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    Worker total;
    const size_t row_bytes = (size_t)blocks_per_row * sizeof(FORMAT);
    const int64_t step = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, blocks_per_row));
    const auto work = [&] {
        Worker own;
        std::vector<float> theirs(PIECE * QK);
        for (int64_t first; (first = next.fetch_add(step)) < n_rows;) {
            for (int64_t r = first; r < std::min(first + step, n_rows); ++r) {
                const uint8_t* row = rows + (size_t)r * row_bytes;
                row_hashes[r] = hash(row, row_bytes);
                for (int64_t b = 0; b < blocks_per_row; b += PIECE) {
                    const int64_t n = std::min(PIECE, blocks_per_row - b);
                    const auto* blocks = (const FORMAT*)(row + (size_t)b * sizeof(FORMAT));
                    to_float(blocks, theirs.data(), n * QK);
                    for (int64_t i = 0; i < n; ++i) own.block(blocks[i], theirs.data() + i * QK, r * blocks_per_row + b + i);
                }
            }
        }
        own.flush();
        std::lock_guard<std::mutex> lock(mutex);
        merge(total.s, own.s);
        total.bad.insert(total.bad.end(), own.bad.begin(), own.bad.end());
    };
    std::vector<std::thread> pool;
    for (int i = 1; i < std::min<int64_t>(threads, n_rows / step + 1); ++i) pool.emplace_back(work);
    work();
    for (auto& t : pool) t.join();
    std::sort(total.bad.begin(), total.bad.end());
    std::copy_n(total.bad.begin(), std::min<int64_t>(most_bad, (int64_t)total.bad.size()), bad);
    *out = total.s;
    return (int64_t)total.bad.size();
}
