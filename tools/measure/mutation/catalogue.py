"""The catalogue of known faults (`gguf_verify.diagnosis.faults`), judged like in the layers rung and by other checks.

A fault only predicts outputs. As no summation order is declared for them, they are judged by the bound and the score
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gguf_verify.diagnosis.fault import Case
from gguf_verify.diagnosis.faults import FAULTS
from gguf_verify.diagnosis.operands import Parts
from gguf_verify.formats.block import BlockFormat
from gguf_verify.semantics.gates import judge

from ..results import encoded
from .kill import MutantJudge
from .recording import Call, Recording, Subject

#: One type of each kind of block, with both definitions that kernels declare.
SUBJECTS = tuple(
    Subject(kernel, fmt)
    for kernel in ("q8_1_naive", "f32_naive")
    for fmt in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
)
#: Tokens of the calls that are used: one, as in the layers rung, a few, and more than a tile has.
_TOKENS = (1, 8, 131)


def measured(folder: Path) -> dict[str, dict[str, str]]:
    """Return {subject: {fault: outcome as encoded in the results file}}, for the subjects' real matrices."""
    judge = MutantJudge(folder)
    return {str(subject): _of_subject(judge.recording(subject)) for subject in sorted(SUBJECTS, key=str)}


def _of_subject(recording: Recording) -> dict[str, str]:
    changed, killed = set[str](), set[str]()
    checks: dict[str, set[str]] = {}
    for call in recording.rungs.calls:
        if call.kind != "product" or len(call.x) not in _TOKENS or call.x.shape[1] == 32:
            continue
        for name, is_changed, is_killed, caught in _of_call(recording, call):
            checks.setdefault(name, set()).update(caught)
            changed |= {name} if is_changed else set()
            killed |= {name} if is_killed else set()
    return {
        name: encoded("killed" if name in killed else "passed" if name in changed else "same", checks[name])
        for name in sorted(checks)
    }


def _of_call(recording: Recording, call: Call) -> Iterator[tuple[str, bool, bool, set[str]]]:
    """Yield each fault's name, whether it changes a bit and is killed, and the other checks that catch it."""
    fmt, semantics = recording.subject.weights, recording.subject.definition
    assert isinstance(fmt, BlockFormat)
    assert call.expected is not None
    rows = recording.rungs.matrices[call.weights]
    quantized = semantics.activations is not None
    case = Case(semantics, fmt, rows, semantics.bytes_of(call.x), call.x if quantized else None)
    right = case.right.exact.astype(np.float32)
    expected = replace(call.expected, ordered=None)
    for fault in FAULTS:
        for which, wrong in fault.sample(case):
            predicted = wrong.predicted() if isinstance(wrong, Parts) else wrong
            with np.errstate(all="ignore"):
                y = predicted.exact.astype(np.float32)
            if predicted.known is not None:
                y = np.where(predicted.known, y, right)
            changed = bool((y != right).any())
            yield (
                f"{fault.id}: {which}", changed, changed and not judge(y, expected).passed,
                call.caught(y) if changed else set(),
            )  # fmt: skip
