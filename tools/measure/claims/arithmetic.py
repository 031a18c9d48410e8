"""Claims checked by counting or calculation: work per thread, reuse, operations per byte, peaks and memory."""

from __future__ import annotations

import re

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS

from ..markdown import listed, marked, table
from .common import FIVE, Claim, Sources, figure, verdict
from .speed import against_llama, card_of, speeds

#: The write-ups' values of `vdr`: words of codes per thread in MMVQ and in MMQ.
CLAIMED_VDR = (2, 4)
#: VDR_*_Q8_1_MMVQ and VDR_*_Q8_1_MMQ, and QR, the values whose codes share a byte (ggml-cuda/vecdotq.cuh and
#: ggml-common.h, llama.cpp v0.5.0).
VDR = {
    "Q4_0": (2, 4, 2), "Q4_1": (2, 4, 2), "Q5_0": (2, 4, 2), "Q5_1": (2, 4, 2), "Q8_0": (2, 8, 1), "Q2_K": (1, 4, 4),
    "Q3_K": (1, 2, 4), "Q4_K": (2, 8, 2), "Q5_K": (2, 8, 2), "Q6_K": (1, 8, 2), "IQ4_XS": (4, 4, 2), "MXFP4": (2, 4, 2),
}  # fmt: skip
#: Rows and maximum tokens of an MMQ tile on a GPU with tensor cores (mmq-config-ampere.cuh), and multiprocessors of an
#: H200. MMQ splits K if fewer than this share of the multiprocessors would work (mmq.cuh, launch_mul_mat_q).
MMQ_TILE, MULTIPROCESSORS, WHOLE_TILES = 128, 132, 0.9
#: A laptop GPU's multiprocessors, and the claimed operations of each per cycle.
LAPTOP = (36, 512)
#: Seven billion weights, and their claimed gigabytes as halves and in 4 bits.
WEIGHTS, GIGABYTES = 7e9, (14.0, 3.5)


def vec_dot_ratio(s: Sources) -> Claim:
    """Compare the claimed words of codes per thread with llama.cpp's source."""
    rows, holds = [], {}
    for name, (few, many, of_byte) in VDR.items():
        holds[name] = (few, many) == CLAIMED_VDR
        values = [4 * of_byte * words for words in (few, many)]
        block = FORMATS[name].block_size
        parts = [f"{v} of {block}" for v in values]
        rows.append([name, few, parts[0], many, parts[1], "yes" if holds[name] else "no"])
    few, many = CLAIMED_VDR
    return Claim(
        f"A thread of llama.cpp's MMVQ multiplies vdr = {few} words of codes at a time, and one of MMQ {many}.",
        verdict(holds) + ("" if all(holds.values()) else ", and in MMQ only without tensor cores"),
        (
            "`vdr` (vec dot ratio) is \"how many contiguous integers each thread processes when the vec dot kernel is "
            "called\" (ggml-cuda/vecdotq.cuh, v0.5.0). An integer holds four bytes of codes, and a byte the codes "
            "of one, two or four weights. From that source:",
            table(["type", "vdr in MMVQ", "weights, of a block", "vdr in MMQ", "weights, of a block", "as claimed"],
                  rows),
            "MMQ's numbers apply to its functions with `dp4a` (ggml-cuda/mmq-vec-dot.cuh). On a GPU with tensor cores "
            "MMQ multiplies the five legacy types with `mma`, whose functions do not use vdr: there it says nothing "
            "about the work of a thread. No callable function reveals the number, so it was read from the source, not "
            "measured.",
        ),
    )  # fmt: skip


def _tile(s: Sources, file: str) -> tuple[int, int]:
    """Return the tokens and rows of a shipped kernel's tile, from its source. Raises ValueError if it has none."""
    text = (s.kernels / file).read_text()
    found = {name: re.search(rf"\b{name} = (\d+)\b", text) for name in ("TOKENS", "ROWS")}
    if None in found.values():
        raise ValueError(f"{file} has no tile size")
    return tuple(int(m[1]) for m in found.values() if m)  # type: ignore[return-value]


def reuse(s: Sources) -> Claim:
    """Compare the bytes that a tile reads with the measured gain."""
    fmt = FORMATS["Q4_0"]
    columns, ladder = speeds(s.benchmarks, "ladder")
    tokens, rows_of = _tile(s, "gemm/q8_1/02_tiled.cu")
    naive = fmt.block_bytes + 36.0
    tiled = (rows_of * fmt.block_bytes + tokens * 36) / (rows_of * tokens)
    before, after = (ladder[f"q8_1_{step}"][0] or float("nan") for step in ("naive", "tiled"))
    copy = float(re.search(r"moves ([\d.]+) TB/s", marked(s.benchmarks, "bench", "card"))[1])  # type: ignore[index]
    rows = []
    for name, bytes_of, speed in (("q8_1_naive", naive, before), ("q8_1_tiled", tiled, after)):
        rate = speed / 64 * bytes_of
        share = f"{figure(rate)} TB/s ({100 * rate / copy:.0f} %)"
        rows.append([f"`{name}`", figure(bytes_of), f"{speed:g}", share])
    gain, factor = after / before, naive / tiled
    as_much = abs(gain / factor - 1) <= 0.1
    text = "true" if as_much else f"true only for the bytes that are read; the gain is {figure(gain)}× on one "
    return Claim(
        "In a tile of T × T outputs each loaded value is used T times, so the kernel is T times as fast.",
        text + ("" if as_much else card_of(s.benchmarks)),
        (
            f"The tile of `q8_1_tiled` has {tokens} tokens and {rows_of} rows. The table shows the bytes loaded for 32 "
            f"products of one Q4_0 output ({fmt.block_bytes} + 36 without a tile; in a tile, all its outputs share the "
            f"loads), the measured speed ([benchmarks](benchmarks.md); {columns[0]}, M = 512), and the resulting rate "
            "of loads, also as a share of a device copy's rate:",
            table(["kernel", "bytes for 32 products", "TFLOP/s", "loads"], rows),
            f"The tile reduces loads by a factor of {figure(factor)} and time by a factor of {figure(gain)}. DRAM "
            "bandwidth limits neither kernel: the naive one waits for its loads and unpacks every code for each token, "
            "and the tiled one executes two loads from shared memory for each product. A reuse factor counts bytes; it "
            "is a gain only where bytes are the limit.",
        ),
        "[the ladder](ladder.md)",
    )  # fmt: skip


def flop_per_byte(s: Sources) -> Claim:
    """Compute the operations per byte moved, by number of tokens."""
    tokens, (n, k) = (1, 8, 64, 512, 4096), (14336, 4096)
    types: list[BlockFormat | None] = [None, *FIVE]
    rows = []
    for fmt in types:
        of_weight = 2.0 if fmt is None else fmt.block_bytes / fmt.block_size
        cells = [2 * m * n * k / (n * k * of_weight + 4 * m * (n + k)) for m in tokens]
        rows.append(["halves" if fmt is None else fmt.name, *(figure(c, 3) for c in cells)])
    card = marked(s.benchmarks, "bench", "card")
    copy, peak = (float(re.search(pattern, card)[1]) for pattern in  # type: ignore[index]
                  (r"moves ([\d.]+) TB/s", r"int8 ([\d.]+) TFLOP/s"))  # fmt: skip
    alone = 2 / (FORMATS["Q4_0"].bits_per_weight / 8)
    exact = round(alone, 2) == 4.0
    return Claim(
        "With one token there are 4 operations per byte of 4-bit weights, and 1 per byte of halves: memory is the "
        "limit.",
        "true" if exact else f"true only for halves, and for the conclusion: it is {figure(alone, 3)} for Q4_0",
        (
            f"2·M·N·K operations divided by the bytes of weights, float32 activations and outputs, each moved once; "
            f"N = {n}, K = {k}:",
            table(["weights", *(f"M = {m}" for m in tokens)], rows),
            f"Four operations per byte would require half a byte per weight. A block of Q4_0 has 18 bytes for 32 "
            f"weights, which gives {figure(alone, 3)}. On the GPU of the [benchmarks](benchmarks.md) the limits of "
            f"memory and of tensor cores meet at {peak:g} ÷ {copy:g} = {figure(peak / copy, 3)} operations per byte. "
            "So one token is limited by memory for every type, and 512 tokens are not.",
        ),
        "the roofline of `python -m tools.measure bench kernels --plot`",
    )  # fmt: skip


def laptop_peak(s: Sources) -> Claim:
    """Check the unit of a product of multiprocessors and operations."""
    count, each = LAPTOP
    cycle = count * each
    _, ladder = speeds(s.benchmarks, "ladder")
    published = ladder["llama.cpp"][-1]
    clocks = (1.0, 1.5, 2.0, 2.5)
    rows = [["TFLOP/s", *(f"{cycle * ghz / 1e3:.1f}" for ghz in clocks)]]
    if published:
        rows.append([f"share, {published:g} TFLOP/s", *(f"{100e3 * published / cycle / ghz:.0f} %" for ghz in clocks)])
    return Claim(
        f"A laptop GPU's tensor cores reach {count} × {each} = {cycle / 1e3:.1f} TFLOP/s.",
        "false: the product counts operations per cycle; the clock is missing",
        (
            f"{count} multiprocessors with {each} operations per cycle perform {cycle:,} together. That is "
            f"{cycle / 1e3:.1f} TFLOP/s at a clock of 1 GHz. The peak at other clocks, and the write-ups' own figure "
            "for llama.cpp as a share of it:",
            table(["", *(f"{ghz:g} GHz" for ghz in clocks)], rows),
            f"If {each} counts multiply-adds, there are twice as many operations. So a share of the peak computed from "
            "this number means nothing.",
        ),
    )


def registers_and_stream_k(s: Sources) -> Claim:
    """Report the gain of tiles in registers, and the upper limit of the gain of stream-K."""
    _, w4a8 = speeds(s.benchmarks, "ladder")
    _, w4a16 = speeds(s.benchmarks, "ladder of f32")
    gains = [(over or 0) / (under or 1) for ladder, family in ((w4a8, "q8_1"), (w4a16, "f32")) for over, under in zip(
        ladder[f"{family}_vectorized"][:2], ladder[f"{family}_tiled"][:2], strict=True)]  # fmt: skip
    shapes = sorted(against_llama(s.benchmarks)["llama.cpp", "Q4_0"])
    rows, holds = [], {}
    for n, m in (shape for shape in shapes if shape[1] > 8):
        tiles = -(-n // MMQ_TILE) * -(-m // MMQ_TILE)
        rounds = -(-tiles // MULTIPROCESSORS)
        busy = tiles / (rounds * MULTIPROCESSORS)
        holds[f"N = {n}, M = {m}"] = busy < WHOLE_TILES
        least = min(m, MMQ_TILE)
        rows.append([n, m, f"{MMQ_TILE} × {least}", tiles, f"{100 * busy:.0f} %", f"{1 / busy:.2f}×",
                     "parts of K" if busy < WHOLE_TILES else "whole tiles"])  # fmt: skip
    right = [name for name, true in holds.items() if true]
    word = (
        "true"
        if len(right) == len(holds)
        else f"true only for {len(right)} of {len(holds)} shapes"
        if right
        else "false"
    )
    return Claim(
        "Outputs in registers and stream-K each make a kernel faster, whatever the shape.",
        f"{word} for stream-K; not measured alone for registers",
        (
            f"Registers: the step of our ladders that keeps outputs in registers gains {figure(min(gains))} to "
            f"{figure(max(gains))}× ([benchmarks](benchmarks.md); {card_of(s.benchmarks)}; M = 512, Q4_0). It also "
            "loads 16 bytes at a time, so the gain is not that of registers alone.",
            "Stream-K distributes parts of K if whole tiles would leave multiprocessors idle. So its gain is at most "
            f"the loss of whole tiles. The table shows the tiles of llama.cpp's MMQ on a GPU with {MULTIPROCESSORS} "
            f"multiprocessors (v0.5.0: {MMQ_TILE} rows, up to {MMQ_TILE} tokens; mmq-config-ampere.cuh) for the shapes "
            "of the benchmarks, and llama.cpp's choice (mmq.cuh, launch_mul_mat_q: whole tiles if at least "
            f"{100 * WHOLE_TILES:.0f} % of the multiprocessors work):",
            table(["N", "M", "tile", "tiles", "busy multiprocessors", "maximum gain", "llama.cpp uses"], rows),
            "Adding the parts costs time, which is not included in this table. It also changes the order of "
            "summation, which a kernel in this project must declare (`q8_1_split_k`).",
        ),
        "[the ladder](ladder.md)",
    )  # fmt: skip


def memory(s: Sources) -> Claim:
    """Compute the gigabytes of seven billion weights in each four-bit type."""
    halves, claimed = GIGABYTES
    rows, near = [["halves", "16", f"{2 * WEIGHTS / 1e9:.2f}", "yes" if halves == 2 * WEIGHTS / 1e9 else "no"]], []
    for fmt in (f for f in FORMATS.values() if f.weights and 4 <= f.bits_per_weight <= 5):
        size = WEIGHTS * fmt.bits_per_weight / 8e9
        if round(size, 1) == claimed:
            near.append(fmt.name)
        rows.append([fmt.name, f"{fmt.bits_per_weight:g}", f"{size:.2f}", "yes" if fmt.name in near else "no"])
    return Claim(
        f"Seven billion weights take {halves:g} GB as halves and {claimed:g} GB in 4 bits.",
        "true" if near == [r[0] for r in rows[1:]] else f"true only for {listed(['halves', *near])}",
        (
            "Bytes per block divided by weights per block, times seven billion; 1 GB is 10⁹ bytes:",
            table(["type", "bits per weight", "GB", "as claimed"], rows),
            f"{claimed:g} GB would be 4 bits per weight and nothing else, but a type also stores scales. A model's "
            "file differs further: embeddings and outputs often have another type, and norms are float32.",
        ),
        "[formats](formats.md)",
    )
