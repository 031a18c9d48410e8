// One pass over the blocks of a tensor on the CPU: whether every block decodes as in llama.cpp, and statistics of the
// blocks.
//
// Compiled once per type, with the macros of the type's record like the kernels (formats/format.cuh). The blocks go
// through the same `unpack` and `value` as in the kernels; llama.cpp's `to_float` is passed as a pointer. A batch stays
// in the first-level cache from llama.cpp's decode to ours: the file is read from memory once.
#pragma once
#include <cerrno>
#include <unistd.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "../formats/format.cuh"

namespace scan {

constexpr int MAX_RULES = 8;
constexpr int MAX_BAD = 21;  // positions kept of each kind of bad block: those a report lists, and one more
// Runs of zero bytes are reported from this length on: a page of memory, the smallest hole in a file. Whole rows of
// zeros count as no run up to this number: neurons that never fire, tokens that were never trained.
constexpr int64_t RUN_BYTES = 4096, DEAD_ROWS = 16;
// Bytes that repeat are found up to this period.
constexpr int MAX_PERIOD = 64;

// The totals of a scan. `harness/gguf_verify/llama/worker/tensor_scan.py` has the same struct.
struct Tally {
    int64_t blocks, zero_scales, zero_blocks, subnormal_scales, negative_scales;
    int64_t not_finite, differing;                                 // bad blocks
    int64_t first_not_finite[MAX_BAD], first_differing[MAX_BAD];   // their indices, counted from the first row
    int64_t first_subnormal;
    int64_t obeying[MAX_RULES];     // blocks with a scale that obey each rule
    int64_t codes[256];             // by code, signed ones from -128
    float least_scale, most_scale;  // of |d| that are finite and not zero
    float least_min, most_min;      // of finite m, where the file stores one
    int64_t zeros_at_start, zeros_at_end;  // bytes of the piece; all of them where it is zero throughout
    int64_t runs;                          // of zero bytes between those
    int64_t first_runs[MAX_BAD][2];        // start and stop, counted in bytes from the tensor's first
    int64_t repeats;                       // runs of bytes that repeat and are not zero; short ones only at buffers' ends
    int64_t first_repeats[MAX_BAD][2];     // start and stop, as above
};

// A rule for the codes in a block, as bits of its presence mask: all of these, one of these, none of these.
struct Rule {
    uint32_t all, any, none;
    bool obeyed(uint32_t present) const {
        return ((present & all) == all) & ((any == 0) | ((present & any) != 0)) & ((present & none) == 0);
    }
};

typedef void (*ToFloat)(const void*, float*, int64_t);

inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

inline bool is_finite(float f) { return (bits_of(f) & 0x7F800000) != 0x7F800000; }
inline bool is_nan(float f) { return (bits_of(f) & 0x7FFFFFFF) > 0x7F800000; }

inline void note(int64_t (&list)[MAX_BAD], int64_t& count, int64_t index) {
    if (count < MAX_BAD) list[count] = index;
    ++count;
}

inline void widen(float& least, float& most, float value) {
    if (value < least) least = value;
    if (value > most) most = value;
}

// Rows are distinguished by this hash; rows with equal hashes are compared byte for byte afterwards. (Multiply and
// fold, in independent lanes; not cryptographic.)
struct HashLane {
    uint64_t a, b;
    void take(uint64_t x, uint64_t y) {
        const unsigned __int128 wide = (unsigned __int128)(a ^ x) * (b ^ y);
        a = (uint64_t)wide ^ x;  // the factors stay: a product by zero must not forget the rest
        b = (uint64_t)(wide >> 64) + y + 0x2545F4914F6CDD1Du;
    }
    void take(const uint8_t* p) {
        uint64_t words[2];
        memcpy(words, p, 16);
        take(words[0], words[1]);
    }
};

inline uint64_t row_hash(const uint8_t* p, int64_t n) {
    HashLane lanes[4];
    for (uint64_t i = 0; i < 4; ++i) lanes[i] = {0x9E3779B97F4A7C15u ^ (uint64_t)n, 0xD1B54A32D192ED03u + i};
    for (; n >= 64; p += 64, n -= 64)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) lanes[i].take(p + 16 * i);
    for (; n >= 16; p += 16, n -= 16) lanes[0].take(p);
    uint8_t tail[16] = {};
    memcpy(tail, p, (size_t)n);
    lanes[0].take(tail);
    for (int i = 1; i < 4; ++i) lanes[0].take(lanes[i].a, lanes[i].b);
    lanes[0].take(0xA24BAED4963EE407u, 0x9FB21C651E98DF25u);
    return lanes[0].a ^ lanes[0].b;
}

inline bool zero_line(const uint8_t* p) {
    uint64_t words[8];
    memcpy(words, p, 64);
    return !(words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] | words[7]);
}

// The first non-zero byte from `i` on, or `n`; and the start of the zeros that end at `i`, at least `low`.
inline int64_t zeros_until(const uint8_t* p, int64_t i, int64_t n) {
    while (i + 64 <= n && zero_line(p + i)) i += 64;
    while (i < n && !p[i]) ++i;
    return i;
}

inline int64_t zeros_from(const uint8_t* p, int64_t low, int64_t i) {
    while (i - 64 >= low && zero_line(p + i - 64)) i -= 64;
    while (i > low && !p[i - 1]) --i;
    return i;
}

// Finds runs of zero bytes in a piece of a tensor that arrives in buffers, one after another. A run of RUN_BYTES
// contains a whole line of 64 bytes at a multiple of half its length: one line in 32 is checked.
struct ZeroRuns {
    Tally& tally;
    const int64_t row_bytes, first;  // offset of the piece in the tensor
    int64_t at, open;                // next byte, and start of the run that reaches it, or -1

    ZeroRuns(Tally& tally, int64_t row_bytes, int64_t first)
        : tally(tally), row_bytes(row_bytes), first(first), at(first), open(first) {}

    void close(int64_t stop) {
        const int64_t start = open, n = stop - start;
        open = -1;
        if (start == first) {
            tally.zeros_at_start = n;
            return;
        }
        if (n < RUN_BYTES) return;
        if (n <= DEAD_ROWS * row_bytes && start % row_bytes == 0 && stop % row_bytes == 0) return;
        if (tally.runs < MAX_BAD) tally.first_runs[tally.runs][0] = start, tally.first_runs[tally.runs][1] = stop;
        ++tally.runs;
    }

    void add(const uint8_t* p, int64_t n) {
        constexpr int64_t stride = RUN_BYTES / 2;
        int64_t i = 0;
        if (open >= 0) {
            i = zeros_until(p, 0, n);
            if (i < n) close(at + i);
        }
        for (int64_t probe = (i + stride - 1) / stride * stride; probe + 64 <= n;) {
            if (open >= 0 || !zero_line(p + probe)) {
                probe += stride;
                continue;
            }
            open = at + zeros_from(p, i, probe);
            i = zeros_until(p, probe + 64, n);
            if (i < n) close(at + i);
            probe = (i + stride - 1) / stride * stride;
        }
        if (open < 0) {
            const int64_t start = zeros_from(p, i, n);
            if (start < n) open = at + start;
        }
        at += n;
    }

    void end() {
        tally.zeros_at_end = open < 0 ? 0 : at - open;
        if (open == first) tally.zeros_at_start = at - first;
    }
};

// The smallest period of the 64 bytes at `p`, up to MAX_PERIOD; 0 if there is none. It reads 128 bytes.
inline int period_of(const uint8_t* p) {
    uint64_t word, later;
    memcpy(&word, p, 8);
    for (int period = 1; period <= MAX_PERIOD; ++period) {
        memcpy(&later, p + period, 8);
        if (word == later && !memcmp(p, p + period, 64)) return period;
    }
    return 0;
}

// Finds runs of bytes that repeat with a short period in a piece of a tensor. Lines are sampled as for zeros. A run
// that continues in the next buffer is found there again, and joined.
struct Repeats {
    Tally& tally;
    int64_t at;  // next byte

    void keep(int64_t start, int64_t stop) {
        int64_t (&last)[2] = tally.first_repeats[tally.repeats ? (tally.repeats < MAX_BAD ? tally.repeats : MAX_BAD) - 1 : 0];
        if (tally.repeats && last[1] == start) {
            last[1] = stop;
            return;
        }
        if (tally.repeats < MAX_BAD) {
            tally.first_repeats[tally.repeats][0] = start, tally.first_repeats[tally.repeats][1] = stop;
            ++tally.repeats;
        }
    }

    void add(const uint8_t* p, int64_t n) {
        constexpr int64_t stride = RUN_BYTES / 2;
        int64_t low = 0;
        for (int64_t probe = 0; probe + 64 + MAX_PERIOD <= n;) {
            const int period = zero_line(p + probe) ? 0 : period_of(p + probe);
            if (!period) {
                probe += stride;
                continue;
            }
            int64_t start = probe, stop = probe + period;
            while (start > low && p[start - 1] == p[start - 1 + period]) --start;
            while (stop < n && p[stop] == p[stop - period]) ++stop;
            const bool at_end = !start || stop == n;
            if (stop - start >= (at_end ? RUN_BYTES / 4 : RUN_BYTES)) keep(at + start, at + stop);
            low = stop;
            probe = (stop + stride - 1) / stride * stride;
        }
        at += n;
    }
};

}  // namespace scan

#ifdef FORMAT
#include "scan_codes.hpp"
#endif

namespace scan {

#ifdef FORMAT

constexpr int STEP = FORMAT::GROUP == 16 ? 16 : QK;  // values in a row with the same scale

// A batch of decoded blocks.
struct Batch {
    alignas(64) float theirs[BATCH][VALUES], ours[BATCH][VALUES];
    alignas(64) int8_t q[BATCH][VALUES];
    float stored[BATCH], stored_min[BATCH], d[BATCH][VALUES / STEP], m[BATCH][VALUES / STEP];
    uint32_t present[BATCH];
};

constexpr bool STORES_MIN = FORMAT::MINIMUM == Minimum::MEETS_CODES || FORMAT::STORES_M;

inline bool zero_block(const float* values, int n) {
    uint64_t set = 0, word;
    for (int i = 0; i < n; i += 2) memcpy(&word, values + i, 8), set |= word;
    return (set & 0x7FFFFFFF7FFFFFFFu) == 0;
}

// A batch with a block that differs, may be zero, or has a scale that is not a normal number.
inline void scan_special(const Batch& batch, int64_t first, int64_t n, const Rule* rules, int n_rules, Tally& t) {
    for (int64_t j = 0; j < n; ++j) {
        for (int i = 0; i < VALUES; ++i) {
            const float ours = batch.ours[j][i], their = batch.theirs[j][i];
            if (bits_of(ours) == bits_of(their) || (is_nan(ours) && is_nan(their))) continue;
            note(t.first_differing, t.differing, first + j);
            break;
        }
        const float d = batch.stored[j], m = batch.stored_min[j], size = std::fabs(d);
        t.zero_blocks += zero_block(batch.ours[j], VALUES);
        if (!is_finite(d) || !is_finite(m)) note(t.first_not_finite, t.not_finite, first + j);
        if (STORES_MIN && is_finite(m)) widen(t.least_min, t.most_min, m);
        if (size == 0) {
            ++t.zero_scales;
            continue;
        }
        t.negative_scales += d < 0;
        if (size < FORMAT::NORMAL && !t.subnormal_scales++) t.first_subnormal = first + j;
        if (is_finite(d)) widen(t.least_scale, t.most_scale, size);
        for (int r = 0; r < n_rules; ++r) t.obeying[r] += rules[r].obeyed(batch.present[j]);
    }
}

// Our values of n blocks.
inline void decode(Batch& batch, int64_t n) {
    for (int64_t j = 0; j < n; ++j)
        for (int g = 0; g < VALUES / STEP; ++g) {
            const float d = batch.d[j][g], m = batch.m[j][g];
            for (int i = g * STEP; i < (g + 1) * STEP; ++i) batch.ours[j][i] = FORMAT::value(d, m, batch.q[j][i]);
        }
}

#ifdef __AVX512F__
// `differing` for formats with few codes: the values of all codes are computed once for those that share a scale, and
// looked up.
inline uint32_t looked_up_differing(const Batch& batch, int64_t n) {
    __m512i differs = _mm512_setzero_si512();
    for (int64_t j = 0; j < n; ++j)
        for (int g = 0; g < VALUES / STEP; ++g) {
            alignas(64) float values[16];  // by the low 4 bits of a code
            for (int low = 0; low < 16; ++low)
                values[low] = FORMAT::value(batch.d[j][g], batch.m[j][g], CODE_LOW + ((low - CODE_LOW) & (CODES - 1)));
            const __m512 table = _mm512_load_ps(values);
#pragma GCC unroll 2
            for (int i = g * STEP; i < (g + 1) * STEP; i += 16) {
                const __m512i code = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)(batch.q[j] + i)));
                const __m512i ours = _mm512_castps_si512(_mm512_permutexvar_ps(code, table));
                const __m512i theirs = _mm512_load_si512(batch.theirs[j] + i);
                differs = _mm512_ternarylogic_epi32(differs, ours, theirs, 0xF6);  // differs | (ours ^ theirs)
            }
        }
    Lanes outside = {};  // bits that no code has: such a code would be read as another
#pragma GCC unroll 4
    for (int64_t s = 0; s < n * SLICES; ++s) outside |= lanes_of(batch.q[0] + s * QK) - (uint8_t)CODE_LOW;
    outside &= (uint8_t)-CODES;
    return any((Lanes)(outside != 0)) | (uint32_t)(_mm512_test_epi32_mask(differs, differs) != 0);
}
#endif

// Not 0 if a bit of n blocks' values differs, or if that must be checked.
inline uint32_t differing(Batch& batch, int64_t n) {
#ifdef __AVX512F__
    if constexpr (CODES <= 16) return looked_up_differing(batch, n);
#endif
    decode(batch, n);
    const float *ours = batch.ours[0], *theirs = batch.theirs[0];
    uint32_t differs = 0;  // memcmp takes longer
#pragma GCC unroll 4
    for (int64_t i = 0; i < n * VALUES; ++i) differs |= bits_of(ours[i]) ^ bits_of(theirs[i]);
    return differs;
}

// In phases over a batch, since a wide load stalls on narrow stores to the same place.
inline void scan_blocks(const uint8_t* p, int64_t n, int64_t first, ToFloat to_float, const Rule* rules, int n_rules,
                        Tally& t, Counts& counts) {
    const FORMAT* block = (const FORMAT*)p;
    Batch batch;
    if (to_float) to_float(p, batch.theirs[0], n * VALUES);
    for (int64_t j = 0; j < n; ++j) {
        for (int s = 0; s < SLICES; ++s) block[j].unpack(s, batch.q[j] + s * QK);
        batch.stored[j] = block[j].stored_scale();
        batch.stored_min[j] = block[j].stored_min();
        for (int g = 0; g < VALUES / STEP; ++g) {
            const int s = g * STEP / QK, h = g * STEP % QK / 16;
            batch.d[j][g] = block[j].scale(s, h), batch.m[j][g] = block[j].minimum(s, h);
        }
    }
    uint32_t special = 0;
    if (to_float) {
        special = differing(batch, n);
    } else {  // nothing to compare with
        decode(batch, n);
        memcpy(batch.theirs, batch.ours, (size_t)n * VALUES * 4);
    }
    uint32_t wanted = 0;
    for (int r = 0; r < n_rules; ++r) wanted |= rules[r].all | rules[r].any | rules[r].none;
    const bool in_sets = FINDS_HOLDERS && n == BATCH;
    uint64_t holding[32];  // by code, the blocks that hold it
    if (COUNTS_BITS && n == BATCH) {
        const Planes planes(batch.q);
        counts.bits.add(planes);
        for (uint32_t left = in_sets ? wanted : 0; left; left &= left - 1) {
            const int bit = __builtin_ctz(left);
            holding[bit] = holders(planes, (uint32_t)(bit + CODE_LOW));
        }
    } else {
        counts.add(batch.q, n, t);
    }
    if (wanted && !in_sets) find_codes(batch.q, n, wanted, batch.present);
    // Almost always all blocks are valid and have a normal scale: this case uses loops without branches.
    constexpr uint32_t INFINITE = 0x7F800000;
    const uint32_t normal = bits_of(FORMAT::NORMAL);
    uint32_t least = INFINITE, most = 0, negative = 0;
    float least_m = INFINITY, most_m = -INFINITY;
    for (int64_t j = 0; j < n; ++j) {
        const uint32_t bits = bits_of(batch.stored[j]), size = bits & 0x7FFFFFFF;
        const float m = batch.stored_min[j];
        special |= (size < normal) | (size >= INFINITE);
        special |= (bits_of(m) & INFINITE) == INFINITE;
        negative += bits >> 31;
        least = size < least ? size : least;
        most = size > most ? size : most;
        least_m = m < least_m ? m : least_m;
        most_m = m > most_m ? m : most_m;
    }
    for (int64_t j = 0; j < n; ++j) special |= zero_block(batch.theirs[j], 8);  // 8 zeros mean that it must be checked
    if (special) {
        decode(batch, n);
        if (wanted && in_sets) find_codes(batch.q, n, wanted, batch.present);
        return scan_special(batch, first, n, rules, n_rules, t);
    }
    t.negative_scales += negative;
    widen(t.least_scale, t.most_scale, float_of(least));
    widen(t.least_scale, t.most_scale, float_of(most));
    if (STORES_MIN) widen(t.least_min, t.most_min, least_m), widen(t.least_min, t.most_min, most_m);
    for (int r = 0; r < n_rules; ++r) {
        if (in_sets) {
            t.obeying[r] += obeying(rules[r], holding);
            continue;
        }
        uint32_t sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += rules[r].obeyed(batch.present[j]);
        t.obeying[r] += sum;
    }
}

#else

// An element is a block of one value, which is its own scale.
#ifndef SMALLEST_NORMAL
#error "compile with -DSMALLEST_NORMAL"
#endif
constexpr int BATCH = 1024, BYTES = sizeof(ELEMENT);

struct Counts {  // elements have no codes
    void add_to(Tally&) {}
};

inline void scan_blocks(const uint8_t* p, int64_t n, int64_t first, ToFloat to_float, const Rule*, int, Tally& t,
                        Counts&) {
    float theirs[BATCH], ours[BATCH];
    if (to_float) to_float(p, theirs, n);
    for (int64_t j = 0; j < n; ++j) {
        ELEMENT e;
        memcpy(&e, p + j * sizeof(ELEMENT), sizeof(ELEMENT));
        ours[j] = e.value();
    }
    if (!to_float) memcpy(theirs, ours, (size_t)n * 4);
    // The common case first, in loops without branches.
    uint32_t differs = 0, most = 0;
    int64_t zeros = 0, negative = 0, small = 0;
    float least = 0x1.fffffep127f, largest = 0;
    for (int64_t j = 0; j < n; ++j) {
        const uint32_t u = bits_of(ours[j]), size = u & 0x7FFFFFFF;
        differs |= u ^ bits_of(theirs[j]);
        most = size > most ? size : most;
    }
    const bool finite = most < 0x7F800000;
    for (int64_t j = 0; j < n; ++j) {
        const float size = std::fabs(ours[j]);
        zeros += size == 0;
        small += size > 0 && size < SMALLEST_NORMAL;
        negative += ours[j] < 0;
        least = size > 0 && size < least ? size : least;
    }
    if (finite) memcpy(&largest, &most, 4);
    if (differs || !finite || (small && !t.subnormal_scales)) {
        for (int64_t j = 0; j < n; ++j) {
            if (bits_of(ours[j]) != bits_of(theirs[j]) && !(is_nan(ours[j]) && is_nan(theirs[j])))
                note(t.first_differing, t.differing, first + j);
            if (!is_finite(ours[j])) {
                note(t.first_not_finite, t.not_finite, first + j);
                continue;
            }
            const float size = std::fabs(ours[j]);
            if (size > largest) largest = size;
            if (size > 0 && size < SMALLEST_NORMAL && t.first_subnormal < 0) t.first_subnormal = first + j;
        }
    }
    t.zero_scales += zeros;
    t.zero_blocks += zeros;
    t.negative_scales += negative;
    t.subnormal_scales += small;
    if (least < t.least_scale) t.least_scale = least;
    if (largest > t.most_scale) t.most_scale = largest;
}

#endif

}  // namespace scan

// Adds `n` blocks to the tally; the first of them is block number `first` of the tensor. `to_float` may be null for a
// type without one.
extern "C" void scan_tensor(const uint8_t* p, int64_t n, int64_t first, scan::ToFloat to_float,
                            const scan::Rule* rules, int n_rules, scan::Tally* tally) {
    using namespace scan;
    Counts counts;
    for (int64_t at = 0; at < n; at += BATCH) {
        const int64_t some = n - at < BATCH ? n - at : BATCH;
        scan_blocks(p + at * BYTES, some, first + at, to_float, rules, n_rules, *tally, counts);
    }
    counts.add_to(*tally);
    tally->blocks += n;
}

extern "C" void hash_rows(const uint8_t* rows, int64_t n_rows, int64_t row_bytes, uint64_t* hashes) {
    for (int64_t r = 0; r < n_rows; ++r) hashes[r] = scan::row_hash(rows + r * row_bytes, row_bytes);
}

// Runs `scan_tensor` over `nbytes` of a file from `offset` on, in pieces of `step` bytes that stay in the second-level
// cache. Also stores the row hashes of each piece, if it consists of whole rows and `hashes` is not null; the blocks
// with the numbers `drawn`, at their places in `blocks`; and runs of bytes that are zero or repeat. Returns 0, an
// errno, or -1 if the file has shrunk.
extern "C" int scan_file(int fd, int64_t offset, int64_t nbytes, int64_t first, uint8_t* buffer, int64_t step,
                         scan::ToFloat to_float, const scan::Rule* rules, int n_rules, scan::Tally* tally,
                         int64_t row_bytes, uint64_t* hashes, const int64_t* drawn, int64_t n_drawn, uint8_t* blocks) {
    scan::ZeroRuns zeros(*tally, row_bytes, first * scan::BYTES);
    scan::Repeats repeats{*tally, first * scan::BYTES};
    for (int64_t at = 0; at < nbytes; at += step) {
        const int64_t some = nbytes - at < step ? nbytes - at : step, n = some / scan::BYTES;
        ssize_t got;
        do got = pread(fd, buffer, (size_t)some, offset + at);
        while (got < 0 && errno == EINTR);
        if (got < 0) return errno;
        if (got != some) return -1;
        scan_tensor(buffer, n, first, to_float, rules, n_rules, tally);
        zeros.add(buffer, some);
        repeats.add(buffer, some);
        if (hashes) {
            hash_rows(buffer, some / row_bytes, row_bytes, hashes);
            hashes += some / row_bytes;
        }
        for (int64_t i = 0; i < n_drawn; ++i)
            if (drawn[i] >= first && drawn[i] < first + n)
                memcpy(blocks + i * scan::BYTES, buffer + (drawn[i] - first) * scan::BYTES, scan::BYTES);
        first += n;
    }
    zeros.end();
    return 0;
}

// The number of rows that equal an earlier one. `order` sorts the rows by (hash, number). The first such row and the
// one that it equals are stored in `pair`.
extern "C" int64_t count_duplicates(const uint8_t* rows, int64_t n_rows, int64_t row_bytes, const uint64_t* hashes,
                                    const int64_t* order, int64_t* pair) {
    int64_t found = 0, first = 0;
    for (int64_t i = 1; i < n_rows; ++i) {
        if (hashes[order[i]] != hashes[order[first]]) {
            first = i;
            continue;
        }
        if (memcmp(rows + order[i] * row_bytes, rows + order[first] * row_bytes, (size_t)row_bytes)) continue;
        if (!found++ || order[i] < pair[0]) pair[0] = order[i], pair[1] = order[first];
    }
    return found;
}
