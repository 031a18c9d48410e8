"""Claims about time, compared with the tables of docs/benchmarks.md, which were measured on a GPU."""

from __future__ import annotations

import re

from ..markdown import listed, marked, table
from .common import Claim, Sources, figure

#: Relative tolerance for a measured ratio to match the claimed value or range.
SLACK = 0.1
#: The claimed gains, smallest and largest.
TILING, FLOAT4, DP4A, TENSOR_CORES, LLAMA = (1.76, 1.76), (1.14, 1.14), (5, 10), (2, 3), (87, 87)
Q5_COST = (16, 20)


def bench_table(page: str, name: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and rows of a table of the benchmarks. Raises ValueError if the page does not have it."""
    lines = [line for line in marked(page, "bench", name).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], cells[2:]


def card_of(page: str) -> str:
    return marked(page, "bench", "card").split(" (")[0]


def speeds(page: str, name: str) -> tuple[list[str], dict[str, list[float | None]]]:
    """Return the columns of a ladder, and the TFLOP/s of each of its steps."""
    head, rows = bench_table(page, name)
    speeds = {row[0].strip("`"): [float(cell.split()[0]) if cell else None for cell in row[1:]] for row in rows}
    return head[1:], speeds


def gains(s: Sources) -> Claim:
    """Compute ratios between the TFLOP/s of steps of the measured ladders."""
    columns, w4a8 = speeds(s.benchmarks, "ladder")
    more, w4a16 = speeds(s.benchmarks, "ladder of f32")
    shapes = [c for c in columns if c.startswith("N =")]
    if more != shapes:
        raise ValueError("the two ladders were measured for different shapes")
    steps = (
        ("tiles in shared memory, W4A8", TILING, w4a8, "q8_1_tiled", "q8_1_naive"),
        ("tiles in shared memory, W4A16", TILING, w4a16, "f32_tiled", "f32_naive"),
        ("loads of 16 bytes and tiles in registers, W4A8", FLOAT4, w4a8, "q8_1_vectorized", "q8_1_tiled"),
        ("loads of 16 bytes and tiles in registers, W4A16", FLOAT4, w4a16, "f32_vectorized", "f32_tiled"),
        ("dp4a, one thread per output", DP4A, w4a8, "q8_1_dp4a", "q8_1_naive"),
        ("dp4a, in tiles", DP4A, w4a8, "q8_1_dp4a_tiled", "q8_1_vectorized"),
        ("tensor cores, `mma`", TENSOR_CORES, w4a8, "q8_1_mma", "q8_1_dp4a_tiled"),
        ("tensor cores, `wgmma`, pipelined", TENSOR_CORES, w4a8, "q8_1_wgmma", "q8_1_dp4a_tiled"),
        ("llama.cpp over naive", LLAMA, w4a8, "llama.cpp", "q8_1_naive"),
    )
    rows, kinds = [], {}
    for what, (low, high), ladder, over, under in steps:
        pairs = list(zip(ladder.get(over, []), ladder.get(under, []), strict=False))
        ratios = [a / b if a and b else None for a, b in pairs]
        measured = [r for r in ratios[: len(shapes)] if r is not None]
        published = ratios[len(shapes)] if len(ratios) > len(shapes) else None
        alone = (low, high) != FLOAT4
        true = bool(measured) and all(low * (1 - SLACK) <= r <= high * (1 + SLACK) for r in measured)
        said = (
            "not measured here" if not measured else "not measured alone" if not alone else "true" if true else "false"
        )
        kinds[what] = said
        rows.append([
            what, f"{low:g}×" if low == high else f"{low:g} to {high:g}×",
            *(f"{figure(r)}×" if r else "" for r in ratios[: len(shapes)]),
            f"{figure(published)}×" if published else "", said, f"`{over}` over `{under}`",
        ])  # fmt: skip
    right = [w for w, said in kinds.items() if said == "true"]
    known = [w for w, said in kinds.items() if said in ("true", "false")]
    card = card_of(s.benchmarks)
    if not known:
        word = "not measured here"
    elif len(right) == len(known):
        word = f"true on one {card} for the measured steps; float4 not measured alone"
    elif right:
        word = f"true only for {listed(right)}, on one {card}; float4 not measured alone"
    else:
        word = f"false on one {card}; float4 not measured alone"
    return Claim(
        "Tiling gains 1.76×, float4 1.14×, DP4A 5 to 10×, tensor cores 2 to 3×; llama.cpp is 87× as fast as the naive "
        "kernel.",
        word,
        (
            f"Ratios of the TFLOP/s in the ladders of [benchmarks](benchmarks.md) ({card}; M = 512, Q4_0). They were "
            "measured by `python -m tools.measure bench kernels`, not for this page. The write-ups' own figures are "
            "for a laptop's GPU:",
            table(["step", "claimed", *shapes, "published, a laptop", "verdict here", "kernels"], rows),
            f"A figure counts as true if it is within {SLACK:.0%} of the claim for both shapes. Loads of 16 bytes are "
            "not measured alone: the kernel with these loads also keeps its outputs in registers. A gain depends on "
            "the GPU and on the kernel that is improved, not on the technique alone.",
        ),
        "`python -m tools.measure bench kernels` on a GPU",
    )


def against_llama(page: str) -> dict[tuple[str, str], dict[tuple[int, int], float]]:
    """("ours" or "llama.cpp", type) → (N, M) → µs, from the benchmarks' table."""
    head, rows = bench_table(page, "against llama.cpp")
    tokens = [int(column.removeprefix("M = ")) for column in head[2:]]
    times: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for kind, n, *cells in rows:
        for m, cell in zip(tokens, cells, strict=True):
            if found := re.fullmatch(r"([\d.]+)× \(([\d.]+)\)", cell):
                ours = float(found[2])
                times.setdefault(("ours", kind), {})[int(n), m] = ours
                times.setdefault(("llama.cpp", kind), {})[int(n), m] = ours * float(found[1])
    return times


def q5_cost(s: Sources) -> Claim:
    """Compute the ratio of the times of Q5_0 and Q5_1 to that of Q4_0 in the benchmarks' table."""
    times = against_llama(s.benchmarks)
    tokens, most = (1, 8, 64, 512, 4096), max(n for n, _ in times["ours", "Q4_0"])
    out, inside, total = [], 0, 0
    for who in ("ours", "llama.cpp"):
        for kind in ("Q5_0", "Q5_1", "Q4_1"):
            base = times[who, "Q4_0"]
            cost = {shape: 100 * (t / base[shape] - 1) for shape, t in times[who, kind].items() if shape in base}
            within = sum(Q5_COST[0] <= round(c) <= Q5_COST[1] for c in cost.values())
            if kind != "Q4_1":
                inside, total = inside + within, total + len(cost)
            cells = [f"{cost[most, m]:+.0f} %" if (most, m) in cost else "" for m in tokens]
            out.append([who, kind, *cells, span_of_percent(list(cost.values())), f"{within} of {len(cost)}"])
    card = card_of(s.benchmarks)
    word = f"true on one {card}" if inside == total else f"false on one {card}" if inside == 0 else ""
    return Claim(
        "The Q5 formats cost 16 to 20 % more time than Q4_0.",
        word or f"true only for {inside} of {total} cases measured on one {card}",
        (
            f"The additional time of these types relative to Q4_0, from the table of `q8_1` and llama.cpp in "
            f"[benchmarks](benchmarks.md) ({card}; K = 4096). llama.cpp's time is the ratio in that table times ours, "
            "which is accurate to half a percent:",
            table(["who", "type", *(f"N = {most}, M = {m}" for m in tokens), f"all {total // 4} shapes", "16 to 20 %"],
                  out),
            "A block has 22 bytes for Q5_0 and 24 for Q5_1, compared with 18 for Q4_0: 22 % and 33 % more to read. "
            "This matters if most time is spent on reading weights (few tokens). With many tokens arithmetic "
            "dominates: the cost of Q5_0 vanishes, and that of Q5_1 is mostly the cost of its minima, which Q4_1 "
            "(listed for comparison) has too.",
        ),
        "`python -m tools.measure bench kernels` on a GPU",
    )  # fmt: skip


def span_of_percent(values: list[float]) -> str:
    return f"{min(values):+.0f} to {max(values):+.0f} %"
