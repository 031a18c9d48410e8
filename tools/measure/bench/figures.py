"""The tables and the plot of `python -m tools.measure bench kernels`.

A record has who, type, M, N, K, us, "TFLOP/s", "TB/s of weights", "weight bytes", and by: the kernel that a family
chose, or how a rival does it. A roof has who, by, type, M, what `sass` counted for each output and slice of 32 weights,
and the TFLOP/s that this allows. A record of `terms` is one of that module's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.support.errors import EnvironmentFault, UsageError

from ..markdown import listed, table
from . import terms

Data = dict[str, Any]
Record = dict[str, Any]

LLAMA, FAMILY, DEQUANTIZED = "llama.cpp", "q8_1", "dequantize + cuBLAS"
#: Tokens for which every rival is listed; largest number of types that are listed one by one.
SOME_TOKENS, NAMED = (1, 8, 64, 512, 4096), 6
#: The ladder's table: M, and the TFLOP/s that a write-up of such kernels reports for a laptop GPU.
LADDER_M = 512
PUBLISHED = {
    "q8_1_naive": 0.15, "q8_1_tiled": 0.26, "q8_1_vectorized": 0.17, "q8_1_dp4a": 1.3, "q8_1_mma": 2.6, LLAMA: 13.0,
}  # fmt: skip
#: A choice counts as slower from this share on; two runs of one kernel may differ by less.
NOISE = 0.05


def load(paths: Sequence[Path]) -> Data:
    """Merge measurements of one GPU from several files. Of records for the same product, the last one counts.

    Raises UsageError if a file has no measurements, or the GPUs differ.
    """
    header: Data = {}
    records: dict[tuple[Any, ...], Record] = {}
    roofs: dict[tuple[Any, ...], Record] = {}
    of_terms: list[Record] = []
    for path in paths:
        try:
            data = json.loads(path.read_text())
            for r in data["results"]:
                records[r["who"], r["type"], r["M"], r["N"], r["K"]] = r
            of_terms = data.get("terms") or of_terms
            roofs |= {(r["who"], r["type"]): r for r in data.get("roofs", [])}
            if header and header["host"] != data["header"]["host"]:
                raise UsageError(f"{path}: measured on {data['header']['host']}, others on {header['host']}")
            said = header.get("families", {}) | data["header"].get("families", {})
            header = {**header, **{k: v for k, v in data["header"].items() if v is not None}}
            header |= {"families": said} if said else {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no measurements: {error!r}") from None
    found = {"header": header, "roofs": list(roofs.values()), "terms": of_terms}
    return {**found, "results": list(records.values())}


def _at(data: Data) -> dict[tuple[Any, ...], Record]:
    return {(r["who"], r["type"], r["M"], r["N"], r["K"]): r for r in data["results"]}


def _values(data: Data, key: str, who: str | None = None) -> list[Any]:
    return sorted({r[key] for r in data["results"] if who in (None, r["who"])})


def _types(data: Data, who: str | None = None) -> list[str]:
    """Return the measured types, in the order of the measurements."""
    return list(dict.fromkeys(r["type"] for r in data["results"] if r["type"] != "-" and who in (None, r["who"])))


def ladder(data: Data, family: str = FAMILY) -> str:
    """Format the TFLOP/s of each step of the ladder for Q4_0 at M = 512, and its gain over the previous step; "" if not
    measured."""
    chosen = [{**r, "who": r["by"]} for r in data["results"] if r["who"] == family and "by" in r]
    found = {**_at({"results": chosen}), **_at(data)}
    shapes = [(n, k) for k in (4096, 14336) for n in (4096,) if (f"{family}_naive", "Q4_0", LADDER_M, n, k) in found]
    if not shapes:
        return ""
    steps = [name for name in KERNELS if name.startswith(f"{family}_")]
    names = [name for name in steps if (name, "Q4_0", LADDER_M, *shapes[0]) in found]
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


def against(data: Data, family: str, rival: str) -> str:
    """Format a rival's time divided by that of a family's choice for each type and shape, and ours in µs; "" if not
    measured."""
    found, tokens, columns = _at(data), _values(data, "M", family), _values(data, "K", family)
    several = len(columns) > 1
    rows = []
    for kind in _types(data, family):
        for n in _values(data, "N", family):
            for k in columns:
                cells = []
                for m in tokens:
                    ours, theirs = (found.get((who, kind, m, n, k)) for who in (family, rival))
                    cells.append(f"{theirs['us'] / ours['us']:.2f}× ({ours['us']:.4g})" if ours and theirs else "")
                if any(cells):
                    rows.append([kind, str(n), *[str(k)] * several, *cells])
    return table(["type", "N", *["K"] * several, *(f"M = {m}" for m in tokens)], rows) if rows else ""


def _titled(data: Data, rival: str, families: Sequence[str]) -> str:
    parts = [(name, against(data, name, rival)) for name in families]
    return "\n\n".join(f"{rival} ÷ `{name}`:\n\n{text}" for name, text in parts if text)


def rivals(data: Data) -> str:
    """Format the microseconds of all kernels for the largest N, with a table for each of a few M; "" if only the
    families and llama.cpp were measured."""
    names = [w for w in dict.fromkeys(r["who"] for r in data["results"] if r["type"] != "-") if not _is_member(data, w)]
    if not set(names) - {*families(data), LLAMA}:
        return ""
    found, n = _at(data), max(r["N"] for r in data["results"] if r["who"] not in (*families(data), LLAMA))
    names = [who for who in names if any((r["who"], r["N"]) == (who, n) for r in data["results"])]
    parts = []
    for m in (m for m in SOME_TOKENS if any(r["M"] == m for r in data["results"])):
        rows = []
        for kind in _types(data):
            at = {w: r for w in names for k in _values(data, "K") if (r := found.get((w, kind, m, n, k)))}
            fastest = min((r["us"] for r in at.values()), default=0.0)
            cells = [f"**{r['us']:.4g}**" if r["us"] == fastest else f"{r['us']:.4g}" for r in at.values()]
            if cells:
                text = dict(zip(at, cells, strict=True))
                rows.append([kind, *(text.get(w, "") for w in names)])
        halves = {r["who"]: r["us"] for r in data["results"] if r["type"] == "-" and (r["M"], r["N"]) == (m, n)}
        beside = "".join(f"; {who} {us:.4g} µs" for who, us in halves.items())
        parts.append(f"M = {m}, N = {n}, in µs{beside}:\n\n{table(['type', *names], rows)}")
    return "\n\n".join(parts)


def wins(data: Data) -> str:
    """Format the fastest kernel for each N and M; "" if only one was measured."""
    found: dict[tuple[int, int], dict[str, list[str]]] = {}
    ours, all_of = 0, 0
    for (kind, m, n, _), of in _products(data).items():
        if len(of) > 1:
            best = min(of, key=lambda who: of[who])
            found.setdefault((n, m), {}).setdefault(best, []).append(kind)
            ours, all_of = ours + (best in families(data)), all_of + 1
    rows = [
        [n, m, "; ".join(f"{who}: {_listed_types(kinds)}" for who, kinds in sorted(of.items(), key=_most_first))]
        for (n, m), of in sorted(found.items())
    ]
    if not rows:
        return ""
    head = f"One of this project's kernels is the fastest for {ours} of {all_of} products.\n\n"
    return head + table(["N", "M", "fastest, for which types"], rows)


def _most_first(of: tuple[str, list[str]]) -> int:
    return -len(of[1])


def _listed_types(kinds: Sequence[str]) -> str:
    return listed(kinds) if len(kinds) <= NAMED else f"{len(kinds)} types"


def _products(data: Data) -> dict[tuple[Any, ...], dict[str, float]]:
    """Return (type, M, N, K) → family or rival → microseconds, without members of families."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in data["results"]:
        if r["type"] != "-" and not _is_member(data, r["who"]):
            found.setdefault((r["type"], r["M"], r["N"], r["K"]), {})[r["who"]] = r["us"]
    return found


def decode(data: Data, family: str = FAMILY) -> str:
    """Format products of one token: bytes of weights, our time, the least time (of an empty kernel and a copy of the
    same bytes), and the rate at which weights are read; "" if not measured."""
    found, copy, empty = _at(data), data["header"]["copy TB/s"], data["header"].get("empty us")
    rows = []
    for kind in _types(data, family):
        for n in _values(data, "N", family):
            for k in _values(data, "K", family):
                ours, theirs = (found.get((who, kind, 1, n, k)) for who in (family, LLAMA))
                if ours is None:
                    continue
                least = None if empty is None else empty + ours["weight bytes"] / copy / 1e6
                rows.append([
                    kind, n, f"{ours['weight bytes'] / 1e6:.1f}", f"{ours['us']:.4g}",
                    f"{least:.4g}" if least else "", f"{ours['us'] / least:.2f}×" if least else "",
                    *(_rate(r, copy) for r in (ours, theirs)),
                ])  # fmt: skip
    head = ["type", "N", "MB", "µs", "least µs", "ours ÷ least", "TB/s (of a copy)", "llama.cpp, TB/s"]
    return table(head, rows) if rows else ""


def _rate(r: Record | None, copy: float) -> str:
    return f"{r['TB/s of weights']:.2f} ({100 * r['TB/s of weights'] / copy:.0f} %)" if r else ""


def roofs(data: Data) -> str:
    """Format the instructions of each family's kernel for the most tokens, the resulting roof, and the measured speed;
    "" if none were counted."""
    found, rows = _at(data), []
    for r in data.get("roofs", []):
        most = [
            record for n in _values(data, "N", r["who"]) for k in _values(data, "K", r["who"])
            if (record := found.get((r["who"], r["type"], r["M"], n, k)))
        ]  # fmt: skip
        speed = max((record["TFLOP/s"] for record in most), default=0.0)
        rows.append([
            f"`{r['by']}`", r["type"], f"{r['instructions']:.2f}", f"{r['float instructions']:.2f}", r["registers"],
            r["local bytes"], f"{r['TFLOP/s']:.0f}", f"{speed:.0f} ({100 * speed / r['TFLOP/s']:.0f} %)",
        ])  # fmt: skip
    head = ["kernel", "type", "instructions", "of them float32", "registers", "local bytes", "roof, TFLOP/s"]
    head.append("measured, TFLOP/s")
    return table(head, rows) if rows else ""


def definitions(data: Data) -> str:
    """Format the definition of each family's kernels; "" if not recorded."""
    said = data["header"].get("families", {})
    return table(["family", "definition"], [[f"`{name}`", text] for name, text in said.items()]) if said else ""


def tables(data: Data) -> dict[str, str]:
    """Return the content of each marker."""
    header = data["header"]
    copy, int8, empty = header["copy TB/s"], header.get("int8 TFLOP/s"), header.get("empty us")
    ceilings = f"A device copy moves {copy:.2f} TB/s" + (f", cuBLAS int8 {int8:.0f} TFLOP/s." if int8 else ".")
    if empty is not None:
        ceilings += f" An empty kernel takes {empty:.2f} µs in such a graph."
    many = _but_for_the_ladder(data)
    others = [name for name in families(many) if name != FAMILY]
    made = {
        "card": f"{header['host'].removeprefix('gpu: ')}; medians of {header['repeat']}. {ceilings}",
        "definitions": definitions(data), "ladder": ladder(data), "ladder of f32": ladder(data, "f32"),
        "against llama.cpp": against(many, FAMILY, LLAMA), "other families": _titled(many, LLAMA, others),
        "against dequantize + cuBLAS": _titled(many, DEQUANTIZED, families(many)), "rivals": rivals(many),
        "fastest": wins(many), "decode": decode(data), "roofs": roofs(data), "terms": terms.shown(data, FAMILY),
        "choices": choices(data),
    }  # fmt: skip
    return {name: text for name, text in made.items() if text}


def _but_for_the_ladder(data: Data) -> Data:
    """Return the data without products that were only timed for the ladder: those of its M alone, if others have
    several M."""
    tokens: dict[tuple[Any, ...], set[int]] = {}
    for r in data["results"]:
        tokens.setdefault((r["who"], r["N"], r["K"]), set()).add(r["M"])
    if max(map(len, tokens.values()), default=1) == 1:
        return data
    kept = [r for r in data["results"] if r["type"] == "-" or tokens[r["who"], r["N"], r["K"]] != {LADDER_M}]
    return {**data, "results": kept}


def families(data: Data) -> list[str]:
    """Return the measured families, the default first."""
    found = dict.fromkeys(r["who"] for r in data["results"] if "by" in r and r["by"].startswith(f"{r['who']}_"))
    return sorted(found, key=lambda name: (name != FAMILY, name))


def _is_member(data: Data, who: str) -> bool:
    return any(who.startswith(f"{name}_") for name in (*families(data), FAMILY, "f32"))


def slower_choices(data: Data) -> Iterator[str]:
    """Yield a line for each shape at which another measured kernel of a family is faster than its choice."""
    for r, others in _compared(data):
        best = min(others, key=lambda w: others[w])
        if others[best] < (1 - NOISE) * r["us"]:
            shape = "{} M {} N {} K {}".format(*(r[key] for key in ("type", "M", "N", "K")))
            yield f"{shape}: {r['who']} takes {r['by']}, {r['us']:.1f} us; {best} {others[best]:.1f} us"


def choices(data: Data) -> str:
    """Describe the shapes for which a family chose a slower kernel than another measured one; "" if none was
    measured."""
    count, slower = sum(len(others) for _, others in _compared(data)), list(slower_choices(data))
    if not count:
        return ""
    said = f"{count} times another kernel of a family was timed beside the choice. "
    if not slower:
        return said + f"None was faster by more than {100 * NOISE:.0f} %."
    lines = "\n".join(f"- {line}" for line in slower)
    return f"{said}It was faster by more than {100 * NOISE:.0f} % here:\n\n{lines}"


def _compared(data: Data) -> Iterator[tuple[Record, dict[str, float]]]:
    """Yield the record of a family's choice for a product, and other members → microseconds, if any was timed."""
    members: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in data["results"]:
        if "by" not in r:
            members.setdefault((r["type"], r["M"], r["N"], r["K"]), {})[r["who"]] = r["us"]
    for r in data["results"]:
        if r["who"] in families(data):
            others = members.get((r["type"], r["M"], r["N"], r["K"]), {})
            others = {who: us for who, us in others.items() if who.startswith(f"{r['who']}_")}
            if others:
                yield r, others


def intensity(r: Record) -> float:
    """Return the FLOP per byte that must be moved: weights, float32 activations and outputs, once each."""
    return float(2 * r["M"] * r["N"] * r["K"] / (r["weight bytes"] + 4 * r["M"] * (r["N"] + r["K"])))


def roofline(data: Data, path: Path) -> None:
    """Plot every product of the families, of llama.cpp and of dequantization with cuBLAS under the two ceilings, each
    in its own colour. Raises EnvironmentFault without matplotlib, and UsageError if there is no product."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentFault("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    plotted = [*families(data), LLAMA, DEQUANTIZED]
    points = [(r, intensity(r)) for r in data["results"] if r["who"] in plotted and r["type"] != "-"]
    if not points:
        raise UsageError("no product of a family or of llama.cpp was measured: nothing can be plotted")
    for i, who in enumerate(plotted):
        of = sorted((x, r["TFLOP/s"]) for r, x in points if r["who"] == who)
        if of:
            x, y = zip(*of, strict=True)
            ours = who in families(data)
            title = f"this project, {who}" if ours else who
            axes.scatter(x, y, marker="o" if ours else "x", color=f"C{i}", s=14, lw=0.8, label=title)
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
    axes.legend(fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "roofline"}):  # text as text, the same ids each time
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
