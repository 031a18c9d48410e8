"""Runs of `gguf-verify kernel` on the catalogue's kernels, and of the programs that repeat findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gguf_verify.support.paths import CHECKOUT

from .catalogue import FOLDER, Device, Engine, Finding, Kernel

#: Exit code → verdict.
VERDICTS = {0: "verified", 1: "mismatch", 5: "not all verified"}
NOT_RUN = "not run"
_MOST_TEXT = 600
_MOST_OUTPUT = 4000
#: Utilisations of a GEMM's record that are the kernel's.
_WORST = ("own", "shared", "other_m", "other_shapes")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a kernel with weights of one type.

    Args:
        engine, kernel, adapter, type: its identity.
        verdict: one of `VERDICTS`, or `NOT_RUN`.
        definition: a description of the declared definition.
        domain: a description of the declared domain.
        utilisation: the largest |error| / bound; None if nothing was compared or it is not finite.
        calls: the number of judged calls besides the random product.
        says: why it is not verified, in one line.
    """

    engine: str
    kernel: str
    adapter: str
    type: str
    verdict: str
    definition: str = ""
    domain: str = ""
    utilisation: float | None = None
    calls: int = 0
    says: str = ""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a repetition and its exit code."""

    text: str
    exit_code: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results for one device.

    Args:
        device: its description.
        versions: of the relevant packages.
        rows: in the catalogue's order.
        repetitions: finding → output of its program.
    """

    device: str
    date: str
    versions: dict[str, str]
    rows: tuple[Row, ...]
    repetitions: dict[str, Output]


def missing(kernel: Kernel, folder: Path = FOLDER) -> str:
    """Describe a missing requirement of a kernel; "" if there is none."""
    lacks = [name for name in kernel.needs if not (folder / "built" / name).exists()]
    return f"built/{lacks[0]} does not exist: see examples/engines/build.py" if lacks else ""


def run_kernel(engine: Engine, kernel: Kernel, device: Device, more: Sequence[str], folder: Path = FOLDER) -> list[Row]:
    """Return a row for each of the kernel's types. One process runs them all, for at most `kernel.seconds`."""
    base: dict[str, Any] = {"engine": engine.name, "kernel": kernel.name, "adapter": kernel.adapter}
    if lack := missing(kernel, folder):
        return [Row(**base, type=kind, verdict=NOT_RUN, says=lack) for kind in kernel.types]
    host = ["--host", "gpu" if device == "cuda" else "cpu"] if kernel.adapter.split(":")[0].endswith(".cu") else []
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "report.json")
        command = [sys.executable, "-m", "gguf_verify", "kernel", f"{folder / kernel.adapter}", "-o", str(file),
                   "--type", ",".join(kernel.types), "--seed", "0", *host, *kernel.options, *more]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=kernel.seconds, env=_environment())
            report = json.loads(file.read_text())
        except subprocess.TimeoutExpired:
            says = f"no answer within {kernel.seconds} s"
        except (OSError, ValueError):
            says = _line(done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"])
        else:
            return [Row(**base, **row_of(report, kind)) for kind in kernel.types]
    return [Row(**base, type=kind, verdict=NOT_RUN, says=says) for kind in kernel.types]


def row_of(report: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the results for one type in a report: the fields of `Row` that do not identify the kernel."""
    rungs = report["rungs"]
    marks = f".{kind}."
    failures = [f for rung in rungs for f in rung["failures"] if marks in f["tensor"] or f["block_type"] == kind]
    whole = [f for rung in rungs for f in rung["failures"] if not f["tensor"]]
    unverified = [u for rung in rungs for u in rung["unverified"] if marks in u["tensor"] or not u["tensor"]]
    details = [d for rung in rungs for d in rung["details"] if d.get("type") == kind]
    envelopes = [e for rung in rungs for e in rung["envelopes"] if e["type"] == kind and e["under_test"]]
    counted = sum(d.get("failures", 0) for d in details)
    faults = [rung["fault"] for rung in rungs if rung["fault"]]
    if failures or counted or whole:
        verdict, says = VERDICTS[1], _line([(failures or whole or [{"what": f"{counted} wrong outputs"}])[0]["what"]])
    elif faults or not details:
        verdict, says = NOT_RUN, _line(faults or ["nothing was computed"])
    elif unverified or report["exit_code"] not in VERDICTS:
        verdict, says = VERDICTS[5], _line([u["why"] for u in unverified[:1]])
    else:
        verdict, says = VERDICTS[0], ""
    sides = [w for rung in rungs for w in rung["worst"].values() if w["of_kernel"] and marks in w["where"]]
    worst = [*(w["utilisation"] for w in sides), *(d.get(name) for d in details for name in _WORST)]
    finite = [value for value in worst if isinstance(value, int | float)]  # in a report, other values are strings
    return {
        "type": kind, "verdict": verdict, "says": says, "definition": report["environment"]["kernel"]["definition"],
        "domain": envelopes[0]["domain"] if envelopes else "", "utilisation": max(finite, default=None),
        "calls": sum(e["calls"] for e in envelopes),
    }  # fmt: skip


def repeat(finding: Finding, seconds: int = 120, folder: Path = FOLDER) -> Output:
    """Run a finding's program in the folder of the catalogue."""
    command = [sys.executable, "-c", finding.repetition]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=folder, env=_environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Output(text=f"no answer within {seconds} s", exit_code=-1)
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    return Output(text="\n".join([done.stdout.strip(), *last]).strip()[:_MOST_OUTPUT], exit_code=done.returncode)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT / "harness"), os.environ.get("PYTHONPATH", "")])}


def _line(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())[:_MOST_TEXT]


def today() -> str:
    """Today's date in UTC, in the form 2026-11-23."""
    return time.strftime("%Y-%m-%d", time.gmtime())
