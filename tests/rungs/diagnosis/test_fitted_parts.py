"""Factors of a part of the outputs, of a class of blocks, of bits of scales; names that other operands contradict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gguf_verify.diagnosis.diagnose import Diagnosis, diagnose
from gguf_verify.diagnosis.experiments import Experiments
from gguf_verify.diagnosis.fault import Case, Explanation
from gguf_verify.diagnosis.observed import observed
from gguf_verify.diagnosis.operands import Parts, Predicted
from gguf_verify.formats.tensor_types import FORMATS, WeightFormat
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.semantics.definitions import SEMANTICS

Q8_1 = SEMANTICS["q8_1"]


def case_of(kind: str, n: int = 40, m: int = 12, seed: int = 0) -> Case:
    """Random blocks with scales, and minima, of about 0.01."""
    fmt, rng = FORMATS[kind], np.random.default_rng(seed)
    structs = fmt.view(rng.integers(0, 256, (n, 512 // fmt.block_size, fmt.block_bytes), dtype=np.uint8))
    for field in fmt.fields:
        if field.dtype == "<f2":
            structs[field.name] = rng.uniform(0.01, 0.02, structs.shape)
    rows = structs.view(np.uint8).reshape(n, -1)
    x = rng.standard_normal((m, 512)).astype(np.float32)
    return Case(Q8_1, fmt, rows, Q8_1.bytes_of(x), x)


def diagnosed(case: Case, wrong: Parts, of: np.ndarray | bool = True) -> Diagnosis:
    y = np.where(of, wrong.predicted().exact, case.right.exact).astype(np.float32)
    assert case.values is not None
    return diagnose(y, case.fmt, Q8_1, case.rows, case.values)


def test_a_term_of_a_class_of_blocks() -> None:
    case = case_of("Q5_1")
    p = case.parts
    found = diagnosed(case, replace(p, s=np.where(p.s < 0, p.s / 4, p.s)))
    assert [f.id for f in found.faults] == ["term-factor"]
    assert "in blocks of activations whose s is negative, the minimum's term is a quarter" in found.faults[0].words
    random = np.random.default_rng(0).random(p.s.shape) < 0.5
    assert not diagnosed(case, replace(p, s=np.where(random, p.s / 4, p.s))).faults


def test_a_bit_of_the_scales_of_groups() -> None:
    case = case_of("Q4_K")
    p = case.parts
    d = np.repeat(case.fmt.view(case.rows.reshape(40, -1, 144))["d"].astype(np.float64), 8, axis=1)
    scales, first = np.rint(p.d / d).astype(int), np.arange(p.d.shape[1]) % 8 < 4
    found = diagnosed(case, replace(p, d=d * np.where(first, scales & ~8, scales)))
    assert [f.id for f in found.faults] == ["scale-bits"]
    assert "bit 3 of the scale of groups in the first half of a block counts 0, not 8" in found.faults[0].words


def test_a_factor_of_some_rows() -> None:
    case = case_of("Q8_0")
    rows = np.arange(40) % 8 == 3
    found = diagnosed(case, replace(case.parts, d=1.25 * case.parts.d), rows)
    assert [(f.id, f.everywhere) for f in found.faults] == [("constant-factor", False)]
    assert any("in part of the outputs" in line for line in found.lines)
    assert not diagnosed(case, replace(case.parts, d=1.25 * case.parts.d), np.arange(40) % 20 == 3).faults
    noise = np.random.default_rng(0).uniform(1, 2, case.parts.d.shape)
    assert not diagnosed(case, replace(case.parts, d=noise * case.parts.d), rows).faults


class Remembering(ShippedKernel):
    """A kernel whose outputs are twice what they should be if its first row begins with these bytes."""

    def __init__(self, first: np.ndarray) -> None:
        super().__init__(KERNELS["q8_1_naive"], CpuHost(1))
        self.first, self.by = first, 1.0

    def upload(self, fmt: WeightFormat, rows: np.ndarray) -> Weights:
        self.by = 2.0 if rows[0].tobytes()[: len(self.first)] == self.first[: rows.shape[1]].tobytes() else 1.0
        return super().upload(fmt, rows)

    def under(self, schedule: Schedule) -> None:  # which would be the correct kernel
        return None

    def product(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        return np.asarray(super().product(weights, x) * np.float32(self.by))


def test_a_fitted_name_that_other_operands_contradict_is_discarded() -> None:
    case = case_of("Q4_0")
    assert case.values is not None
    twice = Explanation(
        observed("term-factor", "", explained=1.0),
        lambda other: Predicted(2 * other.right.exact, 2 * other.right.bound),
    )
    for first, named in ((case.rows[0], []), (case.rows[0, :0], ["term-factor"])):
        tried = Experiments(Remembering(first), case.fmt, Q8_1, case.rows, case.values)
        assert [f.id for f in tried.beside([twice])] == named
