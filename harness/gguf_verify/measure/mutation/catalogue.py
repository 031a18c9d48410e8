"""The catalogue of known faults (`gguf_verify.diagnosis.faults`), judged as the layers rung judges, and by other gates.

A fault predicts outputs; of a kernel that has it nothing else is known, so its outputs have no declared order: they are
judged by the bound and the score alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...diagnosis.faults import FAULTS, Case
from ...diagnosis.operands import Parts
from ...formats import BlockFormat
from ...semantics import SEMANTICS, judge
from .gate import GATES, Call, Gate, Subject, other_gates
from .kill import Bench
from .report import encoded

#: A type of each kind of block, and both definitions that kernels declare.
SUBJECTS = tuple(
    Subject(kernel, fmt)
    for kernel in ("q8_1_naive", "f32_naive")
    for fmt in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")
)
#: Tokens of the calls that are looked at: the layers rung's one, a few, and more than a tile has.
_TOKENS = (1, 8, 131)


def measure(folder: Path) -> dict[str, Any]:
    """{subject: {fault: outcome}}, as mutation_report encodes them, over the subjects' real matrices."""
    bench = Bench(folder)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for subject in SUBJECTS:
        gate = bench.gate(subject)
        for call in gate.rungs.calls:
            rows = gate.rungs.matrices[max(call.weights, 0)] if call.weights >= 0 else None
            if call.kind != "product" or len(call.x) not in _TOKENS or rows is None or call.x.shape[1] == 32:
                continue
            for name, one in _of_call(gate, call):
                known = found.setdefault(str(subject), {}).setdefault(
                    name, {"changed": False, "killed": False, "gates": []}
                )
                known["changed"] |= one["changed"]
                known["killed"] |= one["killed"]
                known["gates"] = [*known["gates"], *one["gates"]]
    return {
        of: {name: _code(one) for name, one in sorted(faults.items())} for of, faults in sorted(found.items())
    }  # fmt: skip


def _code(found: dict[str, Any]) -> str:
    outcome = "killed" if found["killed"] else "passed" if found["changed"] else "same"
    return encoded(outcome, set(found["gates"]))


def _of_call(gate: Gate, call: Call) -> Iterator[tuple[str, dict[str, Any]]]:
    fmt, semantics = gate.rungs.fmt, SEMANTICS[gate.subject.on_semantics]
    assert isinstance(fmt, BlockFormat)
    assert call.expected is not None
    rows = gate.rungs.matrices[call.weights]
    quantized = semantics.activations is not None
    case = Case(semantics, fmt, rows, semantics.bytes_of(call.x), call.x if quantized else None)
    right = case.right.exact.astype(np.float32)
    expected = replace(call.expected, ordered=None)
    for fault in FAULTS:
        for which, wrong in fault.of(case):
            predicted = wrong.predicted() if isinstance(wrong, Parts) else wrong
            with np.errstate(all="ignore"):
                y = predicted.exact.astype(np.float32)
            if predicted.known is not None:
                y = np.where(predicted.known, y, right)
            changed = bool((y != right).any())
            passed = other_gates(y, call)
            yield f"{fault.id}: {which}", {
                "changed": changed,
                "killed": changed and not judge(y, expected).passed,
                "gates": [g for g in GATES if changed and call.fair[g] and not passed[g]],
            }  # fmt: skip
