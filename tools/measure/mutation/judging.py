"""The outcome of a mutant that gets the recorded calls.

Its outputs are judged by `gguf_verify.semantics.judge` against the exact product of the declared definition. Its
quantizer's bytes and packed weights are compared like in the rungs. The host's guards detect writes outside the output,
and elements that were not written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from gguf_verify.hosts.base import Host, outside
from gguf_verify.hosts.compiler import load_of_thread
from gguf_verify.hosts.cpu_host import ORDINARY, CheckedHost, CpuHost
from gguf_verify.hosts.launch_limits import LaunchLimits
from gguf_verify.hosts.memory import GUARD_BYTES, POISON
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels import packed as packing
from gguf_verify.kernels.interface import Weights
from gguf_verify.results.options import Options
from gguf_verify.rungs.schedules import difference, run_under, schedules, under_schedule
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import KernelFault, KernelFinding

from ..inputs import Bytes
from ..results import OTHER_CHECKS
from .recording import OLDER, SEED, Call, Calls, Recording, Subject
from .units import Unit


class _Changed(CpuHost):
    """A CPU host that loads the functions of changed units from a mutant's libraries."""

    changed: Mapping[Unit, tuple[Path, str]]

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        unit = Unit(file, tuple(defines.items()))
        if unit not in self.changed:
            return super().load(root, file, entry, defines, target)
        path, name = self.changed[unit]
        load_of_thread()
        function = getattr(ctypes.CDLL(str(path)), f"{name}_{entry}_launch")
        function.restype = ctypes.c_int
        function.library, function.limits = path, LaunchLimits()
        return function


class _Scheduled(_Changed):
    """Runs mutants under a schedule."""


class _Checked(_Changed, CheckedHost):
    """Runs mutants compiled with instrumentation."""


class MutantHost(_Changed):
    """Runs a mutant. Writes outside an output are noted and the run continues, so that other checks see the output.

    Args:
        changed: a mutant's units: the library, and the mutant's name in it.
        walled: whether each buffer is surrounded by inaccessible memory.
    """

    def __init__(self, changed: Mapping[Unit, tuple[Path, str]], walled: bool = False) -> None:
        super().__init__(1, schedule=ORDINARY if walled else None)
        self.changed = changed
        self.noted: list[str] = []

    def under(self, schedule: Schedule) -> Host:
        """Return a host for a schedule. If the schedule is checked, the libraries must be checked builds."""
        host = _Checked(schedule) if schedule.checked else _Scheduled(1, schedule=schedule)
        host.changed = self.changed
        return host

    def _outside_shared(self, said: str) -> None:
        self.noted.append(said)

    def download(self, output: Any) -> Bytes:
        whole = self._read(output)
        if touched := outside(whole):
            self.noted.append(touched)
        return whole[GUARD_BYTES:-GUARD_BYTES]


def _differs(y: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Whether any bit differs. All NaN count as equal, because hosts produce different NaN, except for the poison of an
    element that was never written."""
    if y.dtype != np.float32:
        return not np.array_equal(y, expected)
    bits, wanted = y.view(np.uint32), expected.view(np.uint32)
    same = (bits == wanted) | (np.isnan(y) & np.isnan(expected) & (bits != POISON))
    return not same.all()


def _outputs(subject: Subject, host: MutantHost, calls: Calls) -> Iterator[tuple[Call, npt.NDArray[Any], str | None]]:
    """Yield each call that runs a changed unit, the mutant's output, and the problem noted by the host or packing."""
    kernel = subject.on(host)
    uploaded: dict[int, Weights] = {}
    original = packing.check_contents

    def noting(*args: Any) -> None:
        try:
            original(*args)
        except KernelFault as fault:
            host.noted.append(str(fault))

    with mock.patch.object(packing, "check_contents", noting):
        for call in calls.calls:
            if call.units.isdisjoint(host.changed.keys()):
                continue
            host.noted.clear()
            if call.kind == "quantize":
                y: npt.NDArray[Any] = kernel.quantize(call.x)
            else:
                if call.weights not in uploaded:
                    uploaded[call.weights] = kernel.upload(subject.weights, calls.matrices[call.weights])
                ask = kernel.gemm if call.kind == "gemm" else kernel.product
                y = ask(uploaded[call.weights], call.x)
            yield call, y, host.noted[0] if host.noted else None


#: The phases of judging a mutant, cheap ones first: the calls of the blocks and layers rungs; products with other
#: thread orders and slow copies; the same in a checked build; and further valid inputs that no rung uses, with and
#: without inaccessible memory around the buffers.
ORDERS, CHECKED, WALLS, PROBES = "orders", "checked", "walls", "probes"
RUNGS = "rungs"


def judged(
    recording: Recording, changed: Mapping[Unit, tuple[Path, str]], which: Sequence[str],
    phase: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Return the outcome of a mutant.

    `outcome` is "killed" (`by` is the check that killed it, `checks` the other checks that also catch it), "passed" (a
    rung saw a changed bit and accepted it), "missed" (a bit changes for a valid input that no rung uses) or "same".

    Args:
        changed: its units; checked builds if `which` is CHECKED alone.
        which: the phases: RUNGS, ORDERS, CHECKED, WALLS, PROBES.
        phase: called with each phase that begins.
    """
    kept = {"outcome": "same", "by": ""}
    for name in which:
        phase(name)
        host = MutantHost(changed, name == WALLS)
        try:
            if name in (ORDERS, CHECKED):
                found = _by_schedules(recording, host, name == CHECKED)
            else:
                found = _by_rungs(recording, host) if name == RUNGS else _by_probes(recording, host)
        except KernelFault as error:
            if name == RUNGS:
                # Every test detects a kernel without output (stuck at a barrier). Only walls detect reads outside.
                seen = not (isinstance(error, KernelFinding) and error.kind == "outside")
                return {"outcome": "killed", "by": str(error), "checks": OTHER_CHECKS if seen else []}
            return {"outcome": "missed", "by": str(error)}
        if found is not None and found["outcome"] != "passed":
            return found
        kept = found or kept
    return kept


def _by_schedules(recording: Recording, host: MutantHost, checked: bool) -> dict[str, Any] | None:
    """Return the outcome under other schedules or in a checked build; None if nothing differs."""
    ordinary = recording.subject.on(host)
    for schedule in schedules(Options(seed=SEED)):
        kernel = ordinary.under(schedule) if schedule.checked == checked else None
        if kernel is None:
            continue
        for call in recording.scheduled.calls:
            rows = recording.scheduled.matrices[call.weights]
            if (call.kind == OLDER) == schedule.older and not call.units.isdisjoint(host.changed.keys()):
                y, said = run_under(kernel, recording.subject.weights, rows, call.x, schedule)
                said = said if y is None else difference(y, call.y, under_schedule(schedule))
                if said is not None:
                    return {"outcome": "killed", "by": str(said), "checks": []}
    return None


def _by_rungs(recording: Recording, host: MutantHost) -> dict[str, Any] | None:
    """Return the outcome in the rungs; None if they see no change."""
    by, caught = "", set[str]()
    changed = False  # a bit of an output, not only a byte outside
    for call, y, noted in _outputs(recording.subject, host, recording.rungs):
        differs = _differs(y, call.y)
        changed |= differs
        if not differs and not noted:
            continue
        by = by or noted or _verdict(call, y)
        if call.expected is not None and len(caught) < len(OTHER_CHECKS):
            caught |= call.caught(y)
        if by and len(caught) == len(OTHER_CHECKS):
            break
    if not by and not changed:
        return None
    return {"outcome": "killed" if by else "passed", "by": by, "checks": [c for c in OTHER_CHECKS if c in caught]}


def _by_probes(recording: Recording, host: MutantHost) -> dict[str, Any] | None:
    for call, y, noted in _outputs(recording.subject, host, recording.probes):
        if noted or _differs(y, call.y):
            return {"outcome": "missed", "by": f"{call.kind} {call.what}" + (f": {noted}" if noted else "")}
    return None


def _verdict(call: Call, y: npt.NDArray[Any]) -> str:
    """Return the rungs' check that a differing output fails; "" if it passes all."""
    if call.kind == "quantize":
        return "quantizer's bytes"
    assert call.expected is not None
    judgement = judge(y, call.expected)
    if judgement.passed:
        return ""
    bad = y[judgement.bad]
    if (bad.view(np.uint32) == POISON).any():
        return "never written"
    within = np.abs(y.astype(np.float64) - call.expected.exact)[judgement.bad] <= call.expected.bound[judgement.bad]
    return "bits of the declared order" if within.all() else "bound"
