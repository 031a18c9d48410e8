"""What becomes of a mutant that gets the recorded calls.

Its outputs are judged by `gguf_verify.semantics.judge` against the exact product of the declared definition, its
quantizer's bytes and packed weights are compared as the rungs compare them, and the host's guards show what it wrote
outside its output and what it left unwritten.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from ...formats import BlockFormat
from ...hosts import CpuHost
from ...hosts.base import GUARD_BYTES, POISON, outside
from ...kernels import packed as packing
from ...kernels.interface import Weights
from ...semantics import judge
from ...support.errors import KernelFault
from ..inputs import Bytes
from ..results import OTHER_CHECKS
from .recording import Call, Calls, Recording, Subject
from .units import Unit


class MutantHost(CpuHost):
    """A CPU that takes the functions of changed units from a mutant's libraries. Writes outside an output are noted,
    and the run goes on, so that the other checks see the output too."""

    def __init__(self, changed: Sequence[tuple[Unit, Path, str]]) -> None:
        super().__init__(1)
        self._changed = {unit: (ctypes.CDLL(str(path)), name) for unit, path, name in changed}
        self.changed = frozenset(self._changed)
        self.noted: list[str] = []
        #: Whether inputs end where readable memory does, so that a read past the end is a crash.
        self.walled = False

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        unit = Unit(file, tuple(defines.items()))
        if unit not in self._changed:
            return super().load(root, file, entry, defines, target)
        library, name = self._changed[unit]
        function = getattr(library, f"{name}_{entry}_launch")
        function.restype = ctypes.c_int
        return function

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Any:
        if not self.walled:
            return super().upload(array, what)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return super().upload(_before_a_wall(raw), what)

    def _outside_shared(self, said: str) -> None:
        self.noted.append(said)

    def download(self, output: Any) -> Bytes:
        whole = self._read(output)
        if touched := outside(whole):
            self.noted.append(touched)
        return whole[GUARD_BYTES:-GUARD_BYTES]


def _before_a_wall(raw: Bytes) -> Bytes:
    """A copy that begins at a multiple of 16 and ends less than 16 bytes before a page that cannot be read. The memory
    is never freed: a mutant's process is short."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    room, page = -(-raw.size // 16) * 16, mmap.PAGESIZE
    size = -(-room // page) * page
    start = libc.mmap(None, size + page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.mprotect(start + size, page, 0)
    copy = np.ctypeslib.as_array((ctypes.c_uint8 * raw.size).from_address(start + size - room))
    copy[:] = raw
    return copy


def _differs(y: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Whether any bit differs. All NaN count as equal, since hosts differ in the NaN that they make, except for the
    poison of an element that was never written."""
    if y.dtype != np.float32:
        return not np.array_equal(y, expected)
    bits, wanted = y.view(np.uint32), expected.view(np.uint32)
    same = (bits == wanted) | (np.isnan(y) & np.isnan(expected) & (bits != POISON))
    return not same.all()


def _outputs(subject: Subject, host: MutantHost, calls: Calls) -> Iterator[tuple[Call, npt.NDArray[Any], str | None]]:
    """Each call that runs a changed unit, with what the mutant gave, and what the host or the packing noted."""
    kernel = subject.on(host)
    uploaded: dict[int, Weights] = {}
    original = packing.unpacked
    rows = np.zeros((0, 0), np.uint8)  # those that the kernel's own check of its packing has not compared yet

    def noting(fmt: BlockFormat, packed: Bytes, n: int, k: int, strips: bool = False) -> tuple[Bytes, bool]:
        nonlocal rows
        some, rows = rows[:n], rows[n:]
        again, clean = original(fmt, packed, n, k, strips)
        if not clean or not np.array_equal(again, some):
            host.noted.append("the packed weights do not hold the file's bytes")
        return some, True

    with mock.patch.object(packing, "unpacked", noting):
        for call in calls.calls:
            if call.units.isdisjoint(host.changed):
                continue
            host.noted.clear()
            if call.kind == "quantize":
                y: npt.NDArray[Any] = kernel.quantize(call.x)
            else:
                if call.weights not in uploaded:
                    rows = calls.matrices[call.weights]
                    uploaded[call.weights] = kernel.upload(subject.weights, rows)
                ask = kernel.gemm if call.kind == "gemm" else kernel.product
                y = ask(uploaded[call.weights], call.x)
            yield call, y, host.noted[0] if host.noted else None


def judged(
    recording: Recording, host: MutantHost, phase: Callable[[str], None] = lambda _: None,
    which: Sequence[str] = ("rungs", "walls", "probes"),
) -> dict[str, Any]:  # fmt: skip
    """What becomes of a mutant.

    `outcome` is "killed" (`by` says by what, `checks` which other checks also catch it), "passed" (a rung saw a changed
    bit and let it pass), "missed" (a bit changes on a valid input, but not where a rung looks) or "same".

    Args:
        phase: is told what is asked next.
        which: the rungs' calls; the probes with inputs that end where readable memory does ("walls"); the probes.
    """
    for name in which:
        phase(name)
        host.walled = name == "walls"
        try:
            found = _by_rungs(recording, host) if name == "rungs" else _by_probes(recording, host)
        except KernelFault as error:  # stuck at a barrier: no output comes, which any test notices
            if name == "rungs":
                return {"outcome": "killed", "by": str(error), "checks": OTHER_CHECKS}
            return {"outcome": "missed", "by": str(error)}
        if found is not None:
            return found
    return {"outcome": "same", "by": ""}


def _by_rungs(recording: Recording, host: MutantHost) -> dict[str, Any] | None:
    """What the rungs make of it; None where they see no change."""
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
    """By which of the rungs' checks a differing output fails; "" where it passes them."""
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
