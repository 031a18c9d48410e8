// The codes in the blocks of a batch, and their frequencies. A part of scan.hpp, for types with codes.
#pragma once

namespace scan {

// The lowest code; `BlockFormat.low` and `bits` of gguf_verify.formats must agree.
#ifndef CODE_LOW
#error "compile with -DCODE_LOW and -DCODE_BITS"
#endif
constexpr int CODES = 1 << CODE_BITS;

constexpr int VALUES = FORMAT::VALUES, SLICES = VALUES / QK, BYTES = sizeof(FORMAT);
constexpr int BATCH = VALUES <= 256 ? 2048 / VALUES : 8;  // blocks: 2,048 values stay in the first-level cache

typedef uint8_t Lanes __attribute__((vector_size(QK)));

inline Lanes lanes_of(const int8_t* slice) {
    Lanes lanes;
    memcpy(&lanes, slice, QK);
    return lanes;
}

// Not 0 if one of the lanes, which are 0 or 255, is set.
inline uint32_t any(Lanes lanes) {
#ifdef __AVX2__
    return (uint32_t)_mm256_movemask_epi8((__m256i)lanes);
#else
    uint64_t words[4];
    memcpy(words, &lanes, QK);
    words[0] |= words[1] | words[2] | words[3];
    return (uint32_t)(words[0] | words[0] >> 32);
#endif
}

// The codes in `wanted` that each of n blocks holds. Bit c is code c, if there are at most 32 codes. For signed bytes:
// bit 0 is -128, bit 1 -127, bit 2 127, bit 3 any other.
inline void find_codes(const int8_t (*q)[VALUES], int64_t n, uint32_t wanted, uint32_t (&present)[BATCH]) {
    constexpr int8_t NAMED[3] = {-128, -127, 127};
    uint32_t found[BATCH];
    memset(present, 0, sizeof present);
    for (; wanted; wanted &= wanted - 1) {
        const int bit = __builtin_ctz(wanted);
        const bool other = CODES > 32 && bit > 2;
        const uint8_t code = CODES > 32 ? NAMED[other ? 0 : bit] : bit + CODE_LOW;
#pragma GCC unroll 4
        for (int64_t j = 0; j < n; ++j) {
            Lanes lanes = {};
            for (int s = 0; s < SLICES; ++s) {
                const Lanes slice = lanes_of(q[j] + s * QK);
                if (!other) lanes |= (Lanes)(slice == code);
                else lanes |= (Lanes)((Lanes)(slice - 127) > 2);  // 127, -128 and -127 are 127, 128 and 129
            }
            found[j] = any(lanes);
        }
        for (int64_t j = 0; j < n; ++j) present[j] |= (uint32_t)(found[j] != 0) << bit;
    }
}

// Counts of all codes from `C` on, as many at a time as keeps the counters in registers.
template <int C>
inline void count_lanes(const int8_t (*slice)[QK], int64_t slices, uint32_t* codes) {
    constexpr int SOME = CODES - C < 8 ? CODES - C : 8;
    Lanes found[SOME] = {};
    for (int64_t j = 0; j < slices; ++j) {
        const Lanes lanes = lanes_of(slice[j]);
#pragma GCC unroll 8
        for (int c = 0; c < SOME; ++c) found[c] -= (Lanes)(lanes == (uint8_t)(C + c + CODE_LOW));  // true is -1
    }
    for (int c = 0; c < SOME; ++c)
        for (int i = 0; i < QK; ++i) codes[C + c] += found[c][i];
    if constexpr (C + SOME < CODES) count_lanes<C + SOME>(slice, slices, codes);
}

#ifdef __AVX512VPOPCNTDQ__
constexpr bool COUNTS_BITS = CODE_BITS < 8 && BATCH * VALUES % 512 == 0;

typedef uint64_t Row __attribute__((vector_size(64)));

// Swaps, in rows i and i + S of 8, a bit with the one S above it.
template <int S>
inline void exchange(Row (&rows)[8]) {
    constexpr uint64_t MASK = S == 4 ? 0x0F0F0F0F0F0F0F0Fu : S == 2 ? 0x3333333333333333u : 0x5555555555555555u;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        if (i & S) continue;
        const Row moved = (rows[i] >> S ^ rows[i + S]) & MASK;
        rows[i + S] ^= moved;
        rows[i] ^= moved << S;
    }
}

// The codes of a batch as bit planes. Bit i of byte c of a plane's row belongs to code 64·i + c of 512.
struct Planes {
    static constexpr int GROUPS = BATCH * VALUES / 512;
    Row of_bit[8][GROUPS];

    explicit Planes(const int8_t (*q)[VALUES]) {  // a whole batch
        for (int g = 0; g < GROUPS; ++g) {
            Row rows[8];
            memcpy(rows, (const int8_t*)q + 512 * g, 512);
            exchange<4>(rows), exchange<2>(rows), exchange<1>(rows);
#pragma GCC unroll 8
            for (int b = 0; b < CODE_BITS; ++b) of_bit[b][g] = rows[b];
        }
    }
};

constexpr bool FINDS_HOLDERS = COUNTS_BITS && VALUES == QK && BATCH == 64;

// The blocks of a batch that hold a code, as a set: one bit per block, in the same order for all codes.
inline uint64_t holders(const Planes& planes, uint32_t code) {
    static_assert(!FINDS_HOLDERS || Planes::GROUPS == 4, "16 blocks of 32 codes in a group");
    __m512i of_all = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
        Row found = code & 1 ? planes.of_bit[0][g] : ~planes.of_bit[0][g];
        for (int b = 1; b < CODE_BITS; ++b) found &= code >> b & 1 ? planes.of_bit[b][g] : ~planes.of_bit[b][g];
        // Bytes 0 to 31 hold a bit for each of eight blocks, and bytes 32 to 63 for eight others: each half becomes a
        // byte.
        __m512i half = (__m512i)found;
        half = _mm512_or_si512(half, _mm512_shuffle_i64x2(half, half, 0xB1));
        half = _mm512_or_si512(half, _mm512_shuffle_epi32(half, (_MM_PERM_ENUM)0x4E));
        of_all = _mm512_mask_mov_epi64(of_all, (__mmask8)(0x11 << g), half);
    }
    of_all = _mm512_or_si512(of_all, _mm512_srli_epi64(of_all, 32));
    of_all = _mm512_or_si512(of_all, _mm512_srli_epi64(of_all, 16));
    of_all = _mm512_or_si512(of_all, _mm512_srli_epi64(of_all, 8));
    return (uint64_t)_mm_cvtsi128_si64(_mm512_cvtepi64_epi8(of_all));
}

// Codes counted by their bits: the number of positions set in all planes of a subset is the number of codes with all
// these bits, and the numbers for all subsets give the count of each code.
struct BitCounts {
    static constexpr int GROUPS = Planes::GROUPS;
    Row of_set[CODES] = {};
    int64_t codes = 0;

    template <int BIT, int SET>
    void count(const Row (&planes)[8][GROUPS], const Row (&held)[GROUPS]) {
        if constexpr (BIT < CODE_BITS) {
            Row both[GROUPS], sum = {};
#pragma GCC unroll 4
            for (int g = 0; g < GROUPS; ++g) {
                both[g] = SET ? held[g] & planes[BIT][g] : planes[BIT][g];
                sum += (Row)_mm512_popcnt_epi64((__m512i)both[g]);
            }
            of_set[SET | 1 << BIT] += sum;
            count<BIT + 1, (SET | 1 << BIT)>(planes, both);
            count<BIT + 1, SET>(planes, held);
        }
    }

    void add(const Planes& planes) {
        count<0, 0>(planes.of_bit, planes.of_bit[0]);
        codes += BATCH * VALUES;
    }

    void add_to(int64_t (&tally)[256]) const {
        int64_t n[CODES];
        for (int set = 1; set < CODES; ++set) {
            n[set] = 0;
            for (int i = 0; i < 8; ++i) n[set] += of_set[set][i];
        }
        n[0] = codes;
        for (int bit = 1; bit < CODES; bit *= 2)
            for (int set = 0; set < CODES; ++set)
                if (!(set & bit)) n[set] -= n[set | bit];
        for (int code = 0; code < CODES; ++code) tally[(code - CODE_LOW) & (CODES - 1)] += n[code];
    }
};
#else
constexpr bool COUNTS_BITS = false, FINDS_HOLDERS = false;

struct Planes {
    explicit Planes(const int8_t (*)[VALUES]) {}
};

inline uint64_t holders(const Planes&, uint32_t) { return 0; }

struct BitCounts {
    void add(const Planes&) {}
    void add_to(int64_t (&)[256]) const {}
};
#endif

struct Counts {
    uint32_t codes[4][256] = {};
    BitCounts bits;
    int64_t uncounted = 0;

    void add(const int8_t (*q)[VALUES], int64_t n, Tally& t) {
        const int64_t slices = n * SLICES;
        const int8_t(*slice)[QK] = (const int8_t(*)[QK])q;
        if constexpr (CODES > 32) {  // four tables, since increments of one counter are dependent
            for (int64_t j = 0; j < slices; ++j)
                for (int i = 0; i < QK; i += 4)
                    for (int k = 0; k < 4; ++k) ++codes[k][(uint8_t)(slice[j][i + k] - CODE_LOW)];
        } else {  // comparing 32 with each code is faster than counting one by one
            static_assert(BATCH * SLICES < 256, "a batch's counts fit in a byte");
            count_lanes<0>(slice, slices, codes[0]);
        }
        if ((uncounted += n * VALUES) > 1 << 30) add_to(t);  // before 32 bits could overflow
    }

    void add_to(Tally& t) {
        for (int c = 0; c < 256; ++c)
            for (auto& table : codes) t.codes[c] += table[c], table[c] = 0;
        bits.add_to(t.codes);
        bits = {};
        uncounted = 0;
    }
};

// The number of blocks of a whole batch that obey a rule; `holding` has the set of blocks that hold each code.
inline int64_t obeying(const Rule& rule, const uint64_t (&holding)[32]) {
    uint64_t all = ~(uint64_t)0, some = rule.any ? 0 : all, one = 0;
    for (uint32_t left = rule.all; left; left &= left - 1) all &= holding[__builtin_ctz(left)];
    for (uint32_t left = rule.any; left; left &= left - 1) some |= holding[__builtin_ctz(left)];
    for (uint32_t left = rule.none; left; left &= left - 1) one |= holding[__builtin_ctz(left)];
    return __builtin_popcountll(all & some & ~one);
}

}  // namespace scan
