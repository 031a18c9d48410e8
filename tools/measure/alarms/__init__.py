"""False alarms: the number of correct outputs that the verifier rejects. It should be zero.

Outputs of every shipped kernel and of llama.cpp, on real and random weights and activations, are judged like in the
rungs, including their bits. The bytes of the activation quantizer are compared with those of the encoder. The inputs
include the values of the probe plan (zeros of both signs, blocks of zeros, subnormal scales, outliers, codes of -128,
random blocks, each field at each class of its number format) and odd numbers of tokens, rows and blocks. Jobs and
values depend on the requested seeds, models and numbers, not on the number of processes. A run resumes where an earlier
one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.hosts.choice import HOSTS, make_host
from gguf_verify.rungs.plan import PLAN
from gguf_verify.semantics.accumulation import LANES_LIMIT
from gguf_verify.support import scratch
from gguf_verify.support.errors import UsageError
from gguf_verify.support.output import write_lines

from .. import results
from ..inputs import QUANTIZED, UNQUANTIZED, WEIGHTS, Matrix
from ..measure import Measure
from ..workers import workers
from .jobs import Job, filling, jobs_for, prepared
from .worker import Tally, Worker

#: The number of the first job that replaces outputs that could not be judged.
MORE = 100_000


def save(matrices: Sequence[Matrix], folder: Path) -> None:
    """Write matrices for `load` to array files; activations shared by several matrices are written once."""
    first = {id(matrix.x): i for i, matrix in reversed(list(enumerate(matrices)))}
    for i, matrix in enumerate(matrices):
        np.save(folder / f"rows{i}.npy", matrix.rows)
    for i in first.values():
        np.save(folder / f"x{i}.npy", matrices[i].x)
    named = [(m.source, m.tensor, m.fmt.name, m.own, first[id(m.x)]) for m in matrices]
    (folder / "matrices.json").write_text(json.dumps(named))


def load(folder: Path) -> list[Matrix]:
    """Read the output of `save` as memory maps, which the processes share."""
    found = []
    for i, (source, tensor, kind, own, of_x) in enumerate(json.loads((folder / "matrices.json").read_text())):
        rows, x = (np.load(folder / name, mmap_mode="r") for name in (f"rows{i}.npy", f"x{of_x}.npy"))
        found.append(Matrix(source, tensor, WEIGHTS[kind], rows, x, own))
    return found


_worker: Worker | None = None


def kept(path: Path, what: str) -> tuple[int, Tally]:
    """Return the number of jobs done by an earlier run, and their tally. Raises UsageError if its options differ."""
    if not path.exists():
        return 0, Tally()
    try:
        whole = json.loads(path.read_text())
        tally = Tally(**whole["tally"])
        tally.by = {name: Counter(counts) for name, counts in tally.by.items()}
        if whole["run"] != what:
            raise UsageError(f"{path} is of another run: {whole['run']}; this one is: {what}")
        return int(whole["done"]), tally
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} holds no checkpoint: {error!r}") from None


def keep(path: Path, what: str, done: int, tally: Tally) -> None:
    """Write the checkpoint for `kept`, atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"run": what, "done": done, "tally": vars(tally)}))
    part.replace(path)


def _start(host: str, folder: Path) -> None:
    global _worker
    _worker = Worker(host, load(folder))


def _do(job: Job) -> Tally:
    assert _worker is not None
    return _worker.do(job)


def done(host: str, matrices: Sequence[Matrix], jobs: Sequence[Job], processes: int) -> Iterator[Tally]:
    """Yield a tally for each job. Raises EnvironmentFault."""
    try:
        with scratch.temporary("measure") as folder:
            save(matrices, folder)
            with workers(processes, _start, host, folder) as over:
                yield from over(_do, jobs)
    finally:
        if _worker is not None:  # with one process, the worker is in this process
            _worker.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("models", nargs="*", type=Path, help="also use the matrices of these GGUF files")
    add("--host", choices=list(HOSTS), default="cpu", help="host that runs the kernels (%(default)s)")
    add(
        "--outputs",
        dest="at_least",
        type=lambda s: int(float(s)),
        default=10**9,
        help="minimum number of outputs to judge (1e9)",
    )
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of texts and random values")
    add("-j", "--jobs", type=int, default=0, help="number of processes (default: one per core)")
    add("--time-limit", type=float, default=0, metavar="S", help="stop after S seconds")
    add("--types", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS), metavar="TYPE", help="weight types to use")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save the progress here; a later run with the same options resumes from it",
    )
    add("--small", action="store_true", help="only use short rows and texts, for a quick trial")
    results.add_argument(parser)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures for JSON. Raises EnvironmentFault if the host or llama.cpp is missing."""
    host = make_host(options.host, 1)
    began = time.perf_counter()
    matrices = prepared([*QUANTIZED, UNQUANTIZED, *options.models], options.seeds, options.types, options.small)
    jobs = jobs_for(matrices, options.seeds, options.at_least, options.host)
    processes = options.jobs or len(os.sched_getaffinity(0))
    what = f"plan {PLAN}, {options.host}, seeds {options.seeds}, {len(jobs)} jobs, {len(matrices)} matrices"
    first, total = kept(options.checkpoint, what) if options.checkpoint else (0, Tally())
    start, before = time.perf_counter(), total.outputs
    shown_at = start
    print(f"prepared in {start - began:.0f} s: {len(jobs)} jobs", file=sys.stderr)
    for number, tally in enumerate(done(options.host, matrices, jobs[first:], processes), first + 1):
        total.add(tally)
        now = time.perf_counter()
        late = options.time_limit and now - start > options.time_limit
        if options.checkpoint and (late or number == len(jobs) or now - shown_at > 20):
            keep(options.checkpoint, what, number, total)
        if late:
            break
        if now - shown_at > 20:
            shown_at = now
            rate = (total.outputs - before) / (now - start)
            print(f"{total.outputs:.3g} outputs, {rate:.3g} per second, {total.n_alarms} alarms", file=sys.stderr)
    else:  # some planned outputs overflowed and were not judged
        missing = options.at_least - total.outputs
        for tally in done(options.host, matrices, filling(matrices, missing, options.host, MORE), processes):
            total.add(tally)
    seconds = time.perf_counter() - start
    return {
        "plan": PLAN, "host": options.host, "device": host.describe(), "outputs": total.outputs,
        "alarms": total.n_alarms, "listed": total.alarms, "activations quantized": total.quantized,
        "seeds": list(options.seeds), "processes": processes, "seconds": round(seconds, 1),
        "seconds of preparation": round(start - began, 1),
        "cpu seconds": {name: round(value, 1) for name, value in total.cpu.items()},
        "by": {name: dict(sorted(counts.items())) for name, counts in total.by.items()},
        "utilisation": dict(sorted(total.utilisation.items())), "score": dict(sorted(total.score.items())),
    }  # fmt: skip


def rows(figures: dict[str, Any]) -> list[list[str]]:
    """Return table rows: quantity, measured, goal."""

    def highest(name: str) -> str:
        of_kernels = [value for who, value in figures[name].items() if who != "llama.cpp"]
        return f"kernels {max(of_kernels, default=0):.2g}, llama.cpp {figures[name].get('llama.cpp', 0):.2g}"

    where = f"host {figures['host']}"
    return [
        [
            f"false alarms, {where}, probe plan {figures['plan']}" if "plan" in figures else f"false alarms, {where}",
            f"{figures['alarms']:,} of {figures['outputs']:,} correct outputs",
            "0 of ≥ 10⁹",
        ],
        [f"of which llama.cpp's outputs, {where}", f"{figures['by']['kernel'].get('llama.cpp', 0):,}", ""],
        [f"highest utilisation of the bound, {where}", highest("utilisation"), "≤ 1"],
        [f"highest score, {where}", highest("score"), f"≤ {LANES_LIMIT:g}; higher ones are judged by lanes"],
    ]


def _run(options: argparse.Namespace) -> int:
    of_hosts = results.load(options.results).get("alarms", {})
    figures = measured(options)
    results.update(options.results, alarms=of_hosts | {options.host: figures})
    alarms = [f"ALARM {json.dumps(alarm)}" for alarm in figures["listed"]]
    write_lines("\n".join([*(" | ".join(row) for row in rows(figures)), *alarms]))
    return 1 if alarms else 0


MEASURE = Measure("alarms", "whether correct outputs fail", __doc__ or "", add_arguments, _run)
