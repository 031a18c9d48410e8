"""Tables of verifications and planted faults in docs/benchmarks.md, and the plot of time and memory by model size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import CHECKOUT

from ..markdown import BENCHMARKS, fill, percent, table
from .records import Planted, Results, Run

PLOT = CHECKOUT / "docs" / "growth.svg"
#: Axis of the plot → fields that depend on it.
AXES = {"layers": (), "width": ("ff", "heads", "kv_heads"), "tokens": (), "gpus": ()}
_TITLES = {"layers": "layers", "width": "width", "tokens": "tokens of the prompt", "gpus": "GPUs"}


def tables(results: Results[Run], planted: Results[Planted]) -> dict[str, str]:
    """Return the content of each marker."""
    of_runs = [f"{device}:\n\n{_table(runs)}" for device, runs in results.items()]
    of_faults = [f"{device}:\n\n{_table_of_faults(faults)}" for device, faults in planted.items()]
    return {"verifications": "\n\n".join(of_runs), "planted": "\n\n".join(of_faults)}


def _table_of_faults(records: Sequence[Planted]) -> str:
    rows = [
        [
            f"{of.type}, {_bytes(of.file_bytes)}", f"{of.layers} × {of.width}", of.tokens, f"`{of.kernel}`",
            f"{of.planted}, seed {of.seed}", of.seen, f"{of.found} ({percent(of.found, of.seen)})",
            f"{of.thorough} ({percent(of.thorough, of.seen)})", f"{of.smallest:.2g}",
            f"{of.promised_found} of {of.promised}", "verified" if of.right else "**not verified**",
        ]
        for of in records
    ]  # fmt: skip
    head = ["weights", "layers × width", "prompt", "kernel", "planted", "changed an output", "found",
            "found by `--thorough`", "promised above", "found above that", "without a fault"]  # fmt: skip
    return table(head, rows)


def _table(runs: Sequence[Run]) -> str:
    rungs = list(dict.fromkeys(name for run in runs for name in run.rungs))
    rows = [
        [
            f"{run.type}, {_bytes(run.file_bytes)}", f"{run.layers} × {run.width}", run.tokens, run.predicted,
            _how(run), _seconds(run.seconds), *(_seconds(run.rungs.get(name)) for name in rungs),
            _gibibytes(run.above), *map(_share, (run.processor, run.gpu, run.disk)),
            _seconds(run.llama.seconds if run.llama else None), run.llama.backend if run.llama else "",
            f"{run.seconds / run.llama.seconds:.0f}×" if run.llama else "",
        ]
        for run in runs
    ]  # fmt: skip
    head = ["weights", "layers × width", "prompt", "predicted", "how", "time", *rungs, "memory above the file's size",
            "cores busy", "GPU busy", "disk busy", "llama.cpp", "where", "time over llama.cpp's"]  # fmt: skip
    filled = [i for i in range(len(head)) if any(row[i] != "" for row in rows)]
    return table([head[i] for i in filled], [[row[i] for i in filled] for row in rows])


def line(run: Run) -> str:
    """Describe a run for the terminal."""
    rungs = " · ".join(f"{name} {_seconds(seconds)}" for name, seconds in run.rungs.items())
    shares = {"cores": run.processor, "GPU": run.gpu, "disk": run.disk}
    busy = ", ".join(f"{name} {_share(share)}" for name, share in shares.items() if share is not None)
    llama = f"; llama.cpp's prompt {run.llama.seconds:.3g} s ({run.llama.backend})" if run.llama else ""
    return (
        f"{run.layers} layers, width {run.width}, {run.type}, {_bytes(run.file_bytes)}, {run.tokens} tokens, "
        f"{_how(run).replace('`', '')}: {run.verdict} in {_seconds(run.seconds)} ({rungs}); "
        f"{_gibibytes(run.above)} above the file's size; busy: {busy}{llama}"
    )


def _how(run: Run) -> str:
    gpus = [f"{run.gpus} GPU{'s' if run.gpus > 1 else ''}"] if run.gpus else []
    words = ["`--thorough`"] * run.thorough + ["`--ray`"] * run.ray + gpus + [f"`{run.options}`"] * bool(run.options)
    verdict = [] if run.verdict == "verified" else [f"**{run.verdict}**"]
    return ", ".join([f"`{run.kernel}`", *words, *verdict])


def _bytes(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def _gibibytes(n: int | None) -> str:
    return "" if n is None else f"{n / 2**30:.2f} GiB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _share(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


# ---- the plot --------------------------------------------------------------------------------------------------------


def series(results: Results[Run]) -> dict[str, dict[str, list[Run]]]:
    """Return the lines of the plot for each axis: title → runs in ascending order, at least two that differ in nothing
    else."""
    found = dict[str, dict[str, list[Run]]]()
    for axis, following in AXES.items():
        lines = dict[tuple[Any, ...], list[Run]]()
        for device, runs in results.items():
            for run in runs:
                same = tuple(value for name, value in run.key.items() if name not in (axis, *following))
                if getattr(run, axis):
                    lines.setdefault((device, *same), []).append(run)
        named = dict[str, list[Run]]()
        for (device, *_), of in lines.items():
            if len(of) > 1:
                named[_unlike(f"{device}: {_words(of[0], axis)}", named)] = sorted(of, key=lambda r: getattr(r, axis))
        if named:
            found[axis] = named
    return found


def _words(run: Run, axis: str) -> str:
    parts = {"layers": f"{run.layers} layers", "width": f"width {run.width}", "tokens": f"{run.tokens} tokens"}
    others = ", ".join(words for name, words in parts.items() if name != axis)
    more = [word for word, is_so in (("thorough", run.thorough), ("Ray", run.ray)) if is_so]
    gpus = [f"{run.gpus} GPUs"] if run.gpus and axis != "gpus" else []
    return ", ".join([run.type, others, run.kernel, *more, *gpus])


def _unlike(name: str, others: dict[str, Any]) -> str:
    """Return the name, with a number if it is already used."""
    numbered = (f"{name} ({i})" for i in range(2, len(others) + 3))
    return next(each for each in (name, *numbered) if each not in others)


def write_page(results: Results[Run], planted: Results[Planted]) -> None:
    """Write the tables and the plot. Raises EnvironmentFault without matplotlib."""
    fill(BENCHMARKS, tables(results, planted), "bench")
    plot(results)


def need_matplotlib() -> None:
    """Raise EnvironmentFault where it is not installed."""
    if find_spec("matplotlib") is None:
        raise EnvironmentFault("the plot needs matplotlib: pip install matplotlib; --no-page draws none")


def plot(results: Results[Run], path: Path = PLOT) -> None:
    """Draw time and memory over each axis that has a line. Raises EnvironmentFault without matplotlib."""
    need_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    found = series(results)
    if not found:
        return
    figure = Figure(figsize=(4.5 * len(found), 8), layout="constrained")
    columns = figure.subplots(2, len(found), squeeze=False).T
    for (axis, lines), (of_time, of_memory) in zip(found.items(), columns, strict=True):
        for name, runs in lines.items():
            x = [getattr(run, axis) for run in runs]
            of_time.plot(x, [run.seconds for run in runs], "o-", label=name)
            memory = [math.nan if run.above is None else run.above / 2**30 for run in runs]
            of_memory.plot(x, memory, "o-", label=name)
        of_time.set(xlabel=_TITLES[axis], ylabel="seconds", ylim=(0, None), title=f"by {_TITLES[axis]}")
        of_memory.set(xlabel=_TITLES[axis], ylabel="GiB above the file's size")
        of_memory.set_ylim(bottom=min(0, of_memory.get_ylim()[0]))
        for axes in (of_time, of_memory):
            axes.grid(True, alpha=0.3)
        of_time.legend(fontsize=6)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth"}):  # text as text, the same ids each time
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
