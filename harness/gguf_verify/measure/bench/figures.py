"""The tables and the plot of `gguf-verify measure bench kernels`.

A record has who, type, M, N, K, us, "TFLOP/s", "TB/s of weights", "weight bytes", and by: the kernel that a family
chose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...support.errors import EnvironmentFault, UsageError
from ..markdown import table

Data = dict[str, Any]
Record = dict[str, Any]

LLAMA, FAMILY = "llama.cpp", "q8_1"
#: The ladder's table: M, and TFLOP/s that a write-up of such kernels gives for a laptop card.
LADDER_M = 512
PUBLISHED = {
    "q8_1_naive": 0.15, "q8_1_tiled": 0.26, "q8_1_vectorized": 0.17, "q8_1_dp4a": 1.3, "q8_1_mma": 2.6, LLAMA: 13.0,
}  # fmt: skip
#: A choice counts as slower from this share on, by which two runs of one kernel may differ.
NOISE = 0.05


def load(paths: Sequence[Path]) -> Data:
    """Measurements of one GPU from several files. Of records for the same product, the last one counts.

    Raises UsageError where a file holds no measurements, or the GPUs differ.
    """
    header: Data = {}
    records: dict[tuple[Any, ...], Record] = {}
    for path in paths:
        try:
            data = json.loads(path.read_text())
            for r in data["results"]:
                records[r["who"], r["type"], r["M"], r["N"], r["K"]] = r
            if header and header["host"] != data["header"]["host"]:
                raise UsageError(f"{path}: measured on {data['header']['host']}, others on {header['host']}")
            header = {**header, **{k: v for k, v in data["header"].items() if v is not None}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no measurements: {error!r}") from None
    return {"header": header, "results": list(records.values())}


def _at(data: Data) -> dict[tuple[Any, ...], Record]:
    return {(r["who"], r["type"], r["M"], r["N"], r["K"]): r for r in data["results"]}


def _values(data: Data, key: str, who: str) -> list[Any]:
    return sorted({r[key] for r in data["results"] if r["who"] == who})


def ladder(data: Data, family: str = FAMILY) -> str:
    """TFLOP/s of each step of the ladder for Q4_0 at M = 512, and its gain on the step before; "" where it was not
    measured."""
    found = _at(data)
    shapes = [(n, k) for k in (4096, 14336) for n in (4096,) if (f"{family}_naive", "Q4_0", LADDER_M, n, k) in found]
    if not shapes:
        return ""
    names = list(dict.fromkeys(r["who"] for r in data["results"] if r["who"].startswith(f"{family}_")))
    names = [n for n in names if (n, "Q4_0", LADDER_M, *shapes[0]) in found]
    before: dict[tuple[int, int], float] = {}
    rows = []
    for name in [*names, *([LLAMA] if family == FAMILY else [])]:
        row = [f"`{name}`" if name != LLAMA else name]
        for shape in shapes:
            record = found.get((name, "Q4_0", LADDER_M, *shape))
            speed = record["TFLOP/s"] if record else None
            gain = f" ({speed / before[shape]:.2g}×)" if speed and shape in before and name != LLAMA else ""
            row.append(f"{speed:.3g}{gain}" if speed else "")
            if speed and name != LLAMA:
                before[shape] = speed
        if family == FAMILY:
            row.append(f"{PUBLISHED[name]:g}" if name in PUBLISHED else "")
        rows.append(row)
    head = ["", *(f"N = {n}, K = {k}" for n, k in shapes), *(["published, a laptop"] if family == FAMILY else [])]
    return table(head, rows)


def against_llama(data: Data) -> str:
    """llama.cpp's time over ours for each type and shape, and ours in µs; "" where it was not measured."""
    found = _at(data)
    types = [t for t in _values(data, "type", FAMILY) if t != "-"]
    rows = []
    for k in _values(data, "K", FAMILY):
        for n in _values(data, "N", FAMILY):
            for m in _values(data, "M", FAMILY):
                cells = []
                for kind in types:
                    ours, theirs = (found.get((who, kind, m, n, k)) for who in (FAMILY, LLAMA))
                    cells.append(f"{theirs['us'] / ours['us']:.2f}× ({ours['us']:.4g})" if ours and theirs else "")
                if any(cells):
                    rows.append([str(n), str(m), *cells])
    return table(["N", "M", *types], rows) if rows else ""


def decode(data: Data) -> str:
    """TB/s of weights at M = 1, and its share of a copy's rate; beside it our time over the least: that of an empty
    kernel and of copying as many bytes. "" where it was not measured."""
    found, copy, empty = _at(data), data["header"]["copy TB/s"], data["header"].get("empty us")
    types = [t for t in _values(data, "type", FAMILY) if t != "-"]
    rows = []
    for n in _values(data, "N", FAMILY):
        for who in (FAMILY, LLAMA):
            at = [found.get((who, kind, 1, n, 4096)) for kind in types]
            cells = [f"{r['TB/s of weights']:.2f} ({100 * r['TB/s of weights'] / copy:.0f} %)" if r else "" for r in at]
            if any(cells):
                rows.append([str(n), "ours" if who == FAMILY else who, *cells])
            if any(at) and who == FAMILY and empty is not None:
                least = [empty + r["weight bytes"] / copy / 1e6 if r else None for r in at]
                times = [f"{r['us'] / t:.2f}×" if r and t else "" for r, t in zip(at, least, strict=True)]
                rows.append([str(n), "ours, of the least time", *times])
    return table(["N", "", *types], rows) if rows else ""


def tables(data: Data) -> dict[str, str]:
    """Marker → what stands between it and its end."""
    header = data["header"]
    copy, int8, empty = header["copy TB/s"], header.get("int8 TFLOP/s"), header.get("empty us")
    ceilings = f"A device copy moves {copy:.2f} TB/s" + (f", cuBLAS int8 {int8:.0f} TFLOP/s." if int8 else ".")
    if empty is not None:
        ceilings += f" An empty kernel takes {empty:.2f} µs in such a graph."
    made = {
        "card": f"{header['host'].removeprefix('gpu: ')}; medians of {header['repeat']}. {ceilings}",
        "ladder": ladder(data), "ladder of f32": ladder(data, "f32"), "against llama.cpp": against_llama(data),
        "decode": decode(data),
    }  # fmt: skip
    return {name: text for name, text in made.items() if text}


def slower_choices(data: Data) -> Iterator[str]:
    """A line for each shape at which a measured kernel of a family is faster than the one that the family chose."""
    found = _at(data)
    for r in data["results"]:
        if "by" not in r:
            continue
        key = (r["type"], r["M"], r["N"], r["K"])
        others = {w: o["us"] for (w, *rest), o in found.items() if tuple(rest) == key and w.startswith(r["who"] + "_")}
        best = min(others, key=lambda w: others[w], default=None)
        if best is not None and others[best] < (1 - NOISE) * r["us"]:
            shape = "{} M {} N {} K {}".format(*key)
            yield f"{shape}: {r['who']} takes {r['by']}, {r['us']:.1f} us; {best} {others[best]:.1f} us"


def intensity(r: Record) -> float:
    """FLOP for each byte that must be moved: weights, float32 activations and outputs, once each."""
    return float(2 * r["M"] * r["N"] * r["K"] / (r["weight bytes"] + 4 * r["M"] * (r["N"] + r["K"])))


def roofline(data: Data, path: Path) -> None:
    """Plot every shape of ours and llama.cpp's under the two ceilings. Raises EnvironmentFault without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentFault("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    marks = {FAMILY: ("o", "this project"), LLAMA: ("x", LLAMA)}
    types = [t for t in _values(data, "type", FAMILY) if t != "-"]
    points = [(r, intensity(r)) for r in data["results"] if r["who"] in marks and r["type"] in types]
    for who, (marker, title) in marks.items():
        for i, kind in enumerate(types):
            of = sorted((x, r["TFLOP/s"]) for r, x in points if (r["who"], r["type"]) == (who, kind))
            if of:
                x, y = zip(*of, strict=True)
                axes.scatter(x, y, marker=marker, color=f"C{i}", s=28, label=f"{title}, {kind}")
    copy, int8 = data["header"]["copy TB/s"], data["header"].get("int8 TFLOP/s")
    low, high = (f(x for _, x in points) for f in (min, max))
    ends = [low / 1.5, high * 1.5]
    if int8:
        ridge = int8 / copy
        axes.plot([ends[0], ridge, ends[1]], [ends[0] * copy, int8, int8], "k-", lw=1, zorder=0)
        axes.annotate(f"cuBLAS int8, {int8:.0f} TFLOP/s", (ridge, int8), (0, 4), textcoords="offset points", fontsize=8)
    else:
        axes.plot(ends, [x * copy for x in ends], "k-", lw=1, zorder=0)
    middle = (low * 12, low * 12 * copy)
    axes.annotate(f"device copy, {copy:.2f} TB/s", middle, (-6, 2), textcoords="offset points", ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte of weights, activations and outputs", ylabel="TFLOP/s",
             title=f"{data['header']['host'].removeprefix('gpu: ').split(',')[0]}: quantizer and GEMM")  # fmt: skip
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "roofline"}):  # text as text, the same ids each time
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
