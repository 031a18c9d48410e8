"""A worker that multiplies and judges, and the counts of its outputs and failures."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.hosts.choice import make_host
from gguf_verify.kernels.by_name import on_host
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ELEMENT_KERNELS, ShippedKernel
from gguf_verify.llama.library import Llama
from gguf_verify.rungs.generated_inputs import with_least_codes
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import Order
from gguf_verify.semantics.sums import Product
from gguf_verify.support.errors import KernelFault

from ..inputs import Bytes, Floats, Matrix
from .jobs import (
    ENCODED,
    EXTREME,
    Job,
    activations_of_classes,
    blocks_of_activations,
    calls,
    definition_of,
    random_activations,
    real_activations,
    special_activations,
)

LISTED = 100
#: Properties by which outputs are counted.
_BY = ("kernel", "type", "weights", "activations", "K")


@dataclass
class Tally:
    """Counts of judged outputs and of failures. `cpu` has seconds of processor time."""

    outputs: int = 0
    quantized: int = 0
    by: dict[str, Counter[str]] = field(default_factory=lambda: {k: Counter() for k in _BY})
    n_alarms: int = 0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    utilisation: dict[str, float] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=lambda: {"exact products": 0.0, "judging": 0.0, "kernels": 0.0})

    def add(self, other: Tally) -> None:
        self.outputs += other.outputs
        self.quantized += other.quantized
        self.n_alarms += other.n_alarms
        self.alarms = sorted(self.alarms + other.alarms, key=lambda a: json.dumps(a, sort_keys=True))[:LISTED]
        for name, counts in other.by.items():
            self.by[name].update(counts)
        for mine, theirs in ((self.utilisation, other.utilisation), (self.score, other.score)):
            for who, value in theirs.items():
                mine[who] = max(mine.get(who, 0.0), value)
        for name, seconds in other.cpu.items():
            self.cpu[name] += seconds


class Worker:
    """Does jobs on one host.

    Args:
        host: its name.
        matrices: the matrices that jobs refer to by index.
    """

    def __init__(self, host: str, matrices: Sequence[Matrix]) -> None:
        self.host, self.matrices = make_host(host, 1), matrices

    @cached_property
    def llama(self) -> Llama:
        return Llama()

    def close(self) -> None:
        if "llama" in self.__dict__:
            self.llama.close()

    def kernel(self, name: str, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        found = FAMILIES.get(name) or KERNELS.get(name) or ELEMENT_KERNELS[fmt.name]
        return on_host(found, self.host).of(fmt, m, n, k)

    def runs(self, name: str, fmt: WeightFormat, m: int, n: int, k: int) -> bool:
        """Whether this GPU has the kernel's instructions; always true for a CPU."""
        kernel = self.kernel(name, fmt, m, n, k)
        return self.host.sm is None or kernel.spec.cards.target(self.host.sm) is not None

    def do(self, job: Job) -> Tally:
        """Multiply and judge. Raises EnvironmentFault."""
        matrix, tally = self.matrices[job.matrix], Tally()
        if job.kind == "real":
            x = real_activations(matrix.x, job.m, job.seed)
        elif job.kind == "special":
            x = special_activations(job.m, matrix.k, job.seed, job.semantics == "q8_1")
        elif job.kind == "classes of scales and sums":
            x = activations_of_classes(job.m, matrix.k, job.seed)
        else:
            x = random_activations(job.m, matrix.k, job.seed)
        if job.semantics == "llama.cpp":
            self._llama(job, matrix, x, tally)
        else:
            self._kernels(job, matrix, x, tally)
        return tally

    def _llama(self, job: Job, matrix: Matrix, x: Floats, tally: Tally) -> None:
        fmt = matrix.fmt
        semantics = llama_cpu_semantics(fmt)
        start = time.process_time()
        y = self.llama.multiply(fmt.type_id, matrix.rows, x)
        tally.cpu["kernels"] += time.process_time() - start
        taken = semantics.bytes_of(x)
        if semantics.activations is not None:
            theirs = self.llama.from_float(semantics.activations.type_id, x)
            self._bytes(job, matrix, "llama.cpp's quantizer", theirs.reshape(taken.shape), taken, tally)
        self._judged(job, matrix, "llama.cpp", y, self._product(semantics.name, matrix, taken, None, tally), 0, tally)

    def _kernels(self, job: Job, matrix: Matrix, x: Floats, tally: Tally) -> None:
        fmt, n, k = matrix.fmt, len(matrix.rows), matrix.k
        definition, given = definition_of(job.semantics, fmt), job.kind in ENCODED
        taken = definition.bytes_of(x)
        if job.kind == "codes of -128":
            taken = with_least_codes(taken)
        elif given:
            assert definition.activations is not None
            taken = blocks_of_activations(definition.activations, taken, job.seed)
        if job.kind in EXTREME or job.semantics == "f16":  # outputs may overflow the definition's range
            finite = np.isfinite(self._product(job.semantics, matrix, taken, None, tally).exact)
            rows = finite.any(axis=0)
            tokens = finite[:, rows].all(axis=1)
            matrix = replace(matrix, rows=matrix.rows[rows])
            x, taken, n = x[tokens], taken[tokens], len(matrix.rows)
            if not tokens.any() or not rows.any():
                return
        products: dict[Order | None, Product] = {}
        uploaded: dict[str, Weights] = {}
        checked: set[int] = set()
        for name, m in calls(job, fmt, self.host.name):
            if not self.runs(name, fmt, m, n, k):
                continue
            kernel = self.kernel(name, fmt, m, n, k)
            # a random window of few tokens
            m = min(m, len(x))
            at = int(np.random.default_rng((job.seed, m)).integers(len(x) - m + 1))
            start = time.process_time()
            try:
                if kernel.layout not in uploaded:
                    uploaded[kernel.layout] = kernel.upload(fmt, matrix.rows)
                if given:
                    y = kernel.gemm(uploaded[kernel.layout], taken[at : at + m])
                else:
                    y = kernel.product(uploaded[kernel.layout], x[at : at + m])
                if m not in checked and job.semantics == "q8_1" and not given:
                    self._bytes(job, matrix, name, kernel.quantize(x[at : at + m]), taken[at : at + m], tally)
                    checked.add(m)
            except KernelFault as fault:
                self._alarm(job, matrix, name, {"what": str(fault)}, 1, tally)
                continue
            tally.cpu["kernels"] += time.process_time() - start
            if kernel.order not in products:
                products[kernel.order] = self._product(job.semantics, matrix, taken, kernel.order, tally)
            expected = products[kernel.order]
            part = expected if m == len(x) else expected.rows(np.arange(at, at + m))
            self._judged(job, matrix, name, y, part, at, tally)

    def _product(self, semantics: str, matrix: Matrix, taken: Bytes, order: Order | None, tally: Tally) -> Product:
        start = time.process_time()
        found = product(definition_of(semantics, matrix.fmt), matrix.fmt, matrix.rows, taken, order)
        tally.cpu["exact products"] += time.process_time() - start
        return found

    def _judged(
        self, job: Job, matrix: Matrix, who: str, y: Floats, expected: Product, first: int, tally: Tally
    ) -> None:
        start = time.process_time()
        found = judge(y, expected)
        tally.outputs += y.size
        names = (who, matrix.fmt.name, matrix.source, job.kind, str(matrix.k))
        for what, name in zip(_BY, names, strict=True):
            tally.by[what][name] += y.size
        tally.utilisation[who] = found.utilisation
        tally.score[who] = found.score
        if not found.passed:
            m, n = (int(i) for i in np.argwhere(found.bad)[0])
            exact, bound = float(expected.exact[m, n]), float(expected.bound[m, n])
            shown = {
                "what": "output", "token": first + m, "row": n, "got": float(y[m, n]), "exact": exact,
                "utilisation": abs(float(y[m, n]) - exact) / bound if bound else None,
                "score": abs(float(y[m, n]) - exact) / float(expected.spread[m, n]) if expected.spread[m, n] else None,
                "bits of the order": None if expected.ordered is None else bool(y[m, n] == expected.ordered[m, n]),
            }  # fmt: skip
            self._alarm(job, matrix, who, shown, int(found.bad.sum()), tally)
        tally.cpu["judging"] += time.process_time() - start

    def _bytes(self, job: Job, matrix: Matrix, who: str, got: Bytes, expected: Bytes, tally: Tally) -> None:
        tally.quantized += len(got) * matrix.k
        wrong = (got != expected).any(axis=1)
        if wrong.any():
            shown = {"what": "bytes of the quantizer", "token": int(np.argmax(wrong))}
            self._alarm(job, matrix, who, shown, int(wrong.sum()), tally)

    @staticmethod
    def _alarm(job: Job, matrix: Matrix, who: str, shown: dict[str, Any], count: int, tally: Tally) -> None:
        tally.n_alarms += count
        tally.alarms.append(
            {"by": who, "type": matrix.fmt.name, "weights": f"{matrix.source} {matrix.tensor}".strip(),
             "shape": [job.m, len(matrix.rows), matrix.k], "activations": job.kind, "seed": job.seed,
             "count": count, **shown}
        )  # fmt: skip
