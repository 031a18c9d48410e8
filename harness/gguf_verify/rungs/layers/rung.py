"""Rung 3, layers: does each GEMM of the real graph, on the real activations, give llama.cpp's output?

For each matrix of weights that llama.cpp multiplies for the prompt (MUL_MAT; each expert of a MUL_MAT_ID, with the rows
routed to it), with y_l its output, y_k the kernel's, and o_k, o_l the exact results of the two declared semantics:

    y_k - y_l = (y_k - o_k) + (o_k - o_l) + (o_l - y_l)

The outer two must be within their bounds; the middle one is exactly known and is reported. The kernel also runs on
llama.cpp's own activation bytes, where the two outputs are compared directly. Weights that are not quantized are
multiplied by a kernel of their own and have one definition, so that the middle term is zero; "llama.cpp's activation
bytes" are then its rounded activations, widened to float32, which the kernel's own rounding leaves as they are.

With llama.cpp on a GPU the graph is evaluated for the prompt in one batch (MMQ), and then for its first tokens one by
one (MMVQ): two definitions of each product. llama.cpp is judged on its own activation bytes, which products with unit
weights give away, and these bytes against the definition of its quantizer: see `semantics.fast_math`.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...diagnosis.diagnose import Diagnosis
from ...diagnosis.localisation import Blame, along_k, blame
from ...diagnosis.pattern import Map, pattern, utilisation
from ...diagnosis.replay import diagnose_kernel
from ...formats import Q8_0, Q8_1, Q8_1_D4, Q8_K, SLICE, BlockFormat, ElementFormat, WeightFormat
from ...gguf import Tensor
from ...kernels.interface import Kernel, Weights
from ...llama import Evaluation, Gemm, LlamaRefused
from ...results import Failure, RungResult
from ...semantics import Order, Product, Semantics, judge, product
from ...semantics.elements import round_to
from ...semantics.fast_math import as_q8_1
from ...support.errors import KernelFault
from ..author_oracle import Nearness
from ..generated_inputs import any_blocks, drawn, every_size, ties_of_codes
from ..graph_uses import not_multiplied, why_not_checked
from ..judging import CHUNK_OUTPUTS, judge_output
from ..llama_quantizers import PATHS, Quantizers
from ..run import Run, label, matrix_of, may_be_matrix, where

#: Once a shape, the kernel also runs with so many tokens: the prompt's and then drawn ones, all different. Kernels
#: choose their code by M, so small M one by one, whole tiles, and an M past tiles of 128 that is no multiple of any.
OTHER_M = (1, 2, 3, 4, 5, 6, 7, 8, 64, 128, 131)
#: And, where it promises any shape, with a row and a block fewer and so many tokens: models have round N and K, behind
#: which the bounds of a last tile, of a quantizer's last warp or of an odd number of blocks hide. M·(N - 1) is then one
#: and three more than a multiple of 4.
CUT_M = (3, 5)
#: And once a type with its blocks laid out anew: tokens, rows, and slices of 32 a row. One output; a little more than a
#: tile in one direction and less in the others; rows so long that rings of stages turn, activations are taken in parts
#: and sums are split; more rows than thread blocks take at a time; with 1 to 7 blocks of activations past a multiple of
#: eight; and whole rounds and tiles, as large models have.
SHAPES = (
    (1, 1, 1), (2, 7, 9), (5, 129, 1), (33, 257, 2), (131, 33, 2), (1, 34, 200), (2, 40, 90), (3, 65, 300),
    (4, 33, 128), (7, 71, 40), (12, 33, 100), (20, 66, 100), (34, 40, 70), (66, 2100, 1), (1, 4300, 7), (300, 65, 3),
    (1, 4300, 32), (64, 2100, 1), (33, 890, 1), (33, 5500, 1),
)  # fmt: skip
#: And with blocks of any bits; rows of one block show scales that vanish in a sum with larger ones.
ANY_BITS = ((6, 70, 24), (6, 1700, 1))

#: The verdict on outputs that are within the bound and do not have the bits of the declared order.
ORDER = "another order"
_OF_ORDER = (
    "the outputs are within the bound, but do not have the bits of the declared order: the block terms are added in "
    "another order, or rounded otherwise. Fix: declare no order, or add them in it with the same fused multiply-adds "
    "(kernels/common.cuh)"
)

ACTIVATIONS = (Q8_0.type_id, Q8_1.type_id, Q8_K.type_id)


def llama_bytes(fmt: WeightFormat, gemm: Gemm, llama: Semantics) -> npt.NDArray[np.uint8]:
    """llama.cpp's own activation bytes as `product` takes them for its semantics."""
    if isinstance(fmt, ElementFormat):
        rounded = gemm.x if fmt.type_id not in gemm.quantized else fmt.decode(gemm.quantized[fmt.type_id])
        return rounded.view(np.uint8)
    assert llama.activations is not None
    return gemm.quantized[llama.activations.type_id]


def llama_activations(semantics: Semantics, fmt: WeightFormat, gemm: Gemm, llama: Semantics) -> npt.NDArray[np.uint8]:
    """llama.cpp's own activation bytes in the layout that a kernel of this semantics takes.

    One that quantizes itself gets the float32 values of the blocks that one of blocks gets: quantized again they have
    the same codes and scale, since the largest code of a block is 127.
    """
    if isinstance(fmt, ElementFormat):
        return llama_bytes(fmt, gemm, llama)
    if semantics.inside is not None:
        blocks = llama_activations(semantics.inside, fmt, gemm, llama).reshape(len(gemm.x), -1, Q8_1.block_bytes)
        return Q8_1.decode(blocks).reshape(gemm.x.shape).view(np.uint8)
    if semantics.activations is Q8_1:
        if llama.activations is Q8_1_D4:
            return as_q8_1(gemm.quantized[Q8_1_D4.type_id], gemm.x)
        return gemm.quantized[Q8_1.type_id]
    assert llama.activations is not None
    own = llama.activations
    blocks = gemm.quantized[own.type_id].reshape(len(gemm.x), -1, own.block_bytes)
    return own.decode(blocks).reshape(gemm.x.shape).view(np.uint8)


def layers_rung(run: Run) -> RungResult:
    """Judge every GEMM with weights. Raises EnvironmentFault where llama.cpp dies."""
    result = RungResult("layers")
    with result.timed():
        matrices = {t.name: t for t in run.selected() if may_be_matrix(t) and t.nbytes}
        seen: set[str] = set()
        try:
            if matrices:
                _check(run, result, matrices, seen)
        except LlamaRefused as error:
            result.leave("all GEMMs", str(error))
        result.skip("vectors", run.vectors(seen))
    return result


def _check(run: Run, result: RungResult, matrices: dict[str, Tensor], seen: set[str]) -> None:
    """Judge the GEMMs; `seen` gets the names of the tensors in them."""
    session = run.session
    if session.note:
        result.notes.append(session.note)
    tally = _Tally(Nearness(run, result))
    shapes: set[tuple[str, int, int]] = set()
    covered = {name: np.zeros(t.n_rows, bool) for name, t in matrices.items()}
    idle = 0
    for number, (tokens, position) in enumerate(session.passes()):
        first = number == 0
        capture = session.llama.capture(tokens, ACTIVATIONS, checksum=first, idle=first, position=position)
        what = "layers" if first else f"layers, token {number}"
        for gemm in run.progress(what, capture, total=run.n_matrices(), unit="GEMM"):
            if isinstance(gemm, Evaluation):
                if first:
                    _leftovers(run, result, matrices, seen, gemm)
                else:
                    _unsupported(run, result, gemm)
                continue
            if not run.wants(gemm.tensor):
                continue
            seen.add(gemm.tensor)
            if gemm.tensor in covered:
                covered[gemm.tensor][gemm.first_row : gemm.first_row + gemm.y.shape[1]] = True
            idle += gemm.idle
            _one_gemm(run, result, gemm, shapes, tally, first)
    tally.near.report()
    for name, rows in covered.items():
        if name in seen and rows.any() and not rows.all():
            result.leave(name, f"no product of this graph uses {int((~rows).sum())} of its {len(rows)} rows")
    if idle:
        result.notes.append(
            f"{idle} matrices (experts) got no token: judged on activations of others, against llama.cpp's product of "
            "these outside the graph"
        )
    tally.report(run, result)


class _Tally:
    """What is counted over all GEMMs: the gap between the definitions, by llama.cpp's, and its quantizers on a GPU."""

    def __init__(self, near: Nearness) -> None:
        self.near = near
        self.gaps: dict[str, list[float]] = {}
        self.quantizers = Quantizers()
        #: How often a diagnosis may still be tried: each takes seconds, and one of errors of order alone says nothing.
        self.diagnoses = 3
        #: Name → the kernels of llama.cpp's CUDA backend that were judged with it.
        self.paths: dict[str, set[str]] = {}

    def report(self, run: Run, result: RungResult) -> None:
        for name, paths in self.paths.items():
            for missing in sorted({"MMVQ", "MMQ"} - paths):
                result.leave(name, f"{missing} was not judged: no product of these graphs takes it there")
        for name, gaps in self.gaps.items():
            of = "" if run.gpu is None else f" as {name}"
            if run.gpu is not None:
                result.figures[f"llama.cpp's GEMMs by {PATHS[name]}, {name}"] = len(gaps)
            result.figures[f"gap to llama.cpp{of}, worst NMSE"] = max(gaps)
            result.figures[f"gap to llama.cpp{of}, median NMSE"] = float(np.median(gaps))
        self.quantizers.report(run, result)


def _unsupported(run: Run, result: RungResult, done: Evaluation) -> set[str]:
    """Say which products of a pass could not be tapped; the names of their weights."""
    for name, why in done.unsupported.items():
        if run.wants(name):
            result.leave(name, why)
    return set(done.unsupported)


def _leftovers(run: Run, result: RungResult, matrices: dict[str, Tensor], seen: set[str], done: Evaluation) -> None:
    seen |= _unsupported(run, result, done)
    for name, tensor in matrices.items():
        if name in seen:
            continue
        kind = not_multiplied(tensor, done)
        if kind is not None:
            result.skip(kind)
        else:
            result.leave(name, why_not_checked(tensor, done))


def _one_gemm(
    run: Run, result: RungResult, gemm: Gemm, shapes: set[tuple[str, int, int]], tally: _Tally, checksum: bool
) -> None:
    """Judge one GEMM.

    Args:
        shapes: format, N and K of the GEMMs that were already run with OTHER_M.
        checksum: whether that of llama.cpp's weights was asked for.
    """
    if gemm.idle and run.gpu is not None:  # it is computed outside the graph
        gemm = replace(gemm, tokens=len(gemm.x), experts=False, on_gpu=True)
    found = run.matrix(result, gemm)
    if found is None:
        return
    tensor, fmt, rows = found
    if not np.isfinite(gemm.x).all():
        result.leave(gemm.tensor, "its activations are not finite")
        return
    llama = run.llama_semantics(fmt, gemm.tokens, gemm.experts)
    if gemm.idle:
        on_gpu = run.gpu is not None
        gemm = replace(gemm, y=run.library.multiply(gemm.type_id, rows, gemm.x, run.options.threads, on_gpu))
        if on_gpu and llama.activations is not None:
            theirs = run.library.activations(llama.name, gemm.x)
            gemm = replace(gemm, quantized={llama.activations.type_id: theirs})
    name, matrix = label(tensor, gemm.first_row), matrix_of(tensor, gemm.first_row)
    if gemm.crc32 is None and checksum:
        note = "llama.cpp repacked weights: that it holds the file's bytes could not be checked"
        if note not in result.notes:
            result.notes.append(note)
    elif checksum and zlib.crc32(rows.data) != gemm.crc32:
        result.fail(Failure(f"{name}: llama.cpp holds other bytes than the file", tensor.name, matrix=matrix))
    failed = result.n_failures
    judged = _Judged(run, result, tensor, fmt, rows, gemm, llama)
    try:
        new_type = all(name != fmt.name for name, _, _ in shapes)
        new_shape = (fmt.name, len(rows), tensor.k) not in shapes
        shapes.add((fmt.name, len(rows), tensor.k))
        judged.kernel_outputs(OTHER_M if new_shape else (1,))
        if run.gpu is not None:
            tally.paths.setdefault(tensor.name, set()).add(PATHS[llama.name])
            tally.quantizers.check(result, llama, gemm.x, judged.llama_bytes, tensor, gemm.first_row)
        judged.judge(tally.near)
        if new_shape and run.kernel.any_shape and result.n_failures == failed:  # what is wrong has a place by now
            judged.cut_shape()
            if new_type:
                judged.other_shapes()
        if judged.wrong is not None:
            if result.heat_map is None:
                result.heat_map = judged.heat_map()
            if (result.diagnosis is None or result.diagnosis["verdict"] == ORDER) and tally.diagnoses:
                tally.diagnoses -= 1
                diagnosis = judged.diagnosis()
                if result.diagnosis is None or (diagnosis is not None and diagnosis["verdict"] != ORDER):
                    result.diagnosis = diagnosis
    except KernelFault as error:  # also of its author's oracle
        tally.near.forget()
        result.fail(Failure(f"{name}: {error}", tensor.name, matrix=matrix))
        return
    if judged.kernel.name != run.kernel.name and not isinstance(fmt, ElementFormat):  # one of a family
        chosen = f"GEMMs by {judged.kernel.name}"
        result.figures[chosen] = result.figures.get(chosen, 0) + 1
    if not gemm.x.any():
        result.leave(name, "its activations are all zero")
    result.count("GEMMs")
    result.count("outputs", gemm.y.size)
    result.count("outputs at other shapes", sum(y.size for y in judged.y_other.values()) + judged.n_cut)
    result.details.append(
        {"tensor": tensor.name, **({} if matrix is None else {"matrix": matrix}), "node": gemm.node, "type": fmt.name,
         "M": len(gemm.x), "N": len(rows), "K": tensor.k, "by": judged.kernel.name,
         "llama.cpp as": llama.name,
         "kernel": judged.utilisation["kernel"], "llama.cpp": judged.utilisation[judged.llama_name],
         "same activations": judged.utilisation["kernel on llama.cpp's activations"],
         "other M": judged.utilisation["kernel at other M"], "gap NMSE": judged.gap,
         "failures": result.n_failures - failed}
    )  # fmt: skip
    if not isinstance(fmt, ElementFormat):
        tally.gaps.setdefault("" if run.gpu is None else llama.name, []).append(judged.gap)


class _Wrong(NamedTuple):
    """An output that is wrong.

    Args:
        who: whose, at which M where it is not the prompt's.
        y: float32[M, N].
        x, bytes: the activations that the kernel took, and as its definition takes them.
        order: the order whose bits are required, if any.
        m, n: token and row of the first wrong element, the first row's.
    """

    who: str
    y: npt.NDArray[np.float32]
    x: npt.NDArray[Any]
    bytes: npt.NDArray[np.uint8]
    order: Order | None
    m: int
    n: int


class _Judged:
    """One GEMM: the kernel's outputs on its own and on llama.cpp's activation bytes, against three exact products."""

    def __init__(
        self, run: Run, result: RungResult, tensor: Tensor, fmt: WeightFormat, rows: npt.NDArray[np.uint8], gemm: Gemm,
        llama: Semantics,
    ) -> None:  # fmt: skip
        self.run, self.result, self.tensor, self.fmt, self.rows, self.gemm = run, result, tensor, fmt, rows, gemm
        self._uploaded: dict[str, Weights] = {}
        self.semantics, self.llama = run.semantics(fmt), llama
        self.llama_name = "llama.cpp" if run.gpu is None else f"llama.cpp as {llama.name}"
        self.llama_bytes = llama_bytes(fmt, gemm, self.llama)
        self.own_bytes = self.semantics.bytes_of(gemm.x)
        self.shared_bytes = llama_activations(self.semantics, fmt, gemm, self.llama)
        self.utilisation: dict[str, float] = {}
        #: The kernel's first wrong output, and what is to blame for its elements that were looked at.
        self.wrong: _Wrong | None = None
        self.blames: list[Blame] = []
        self.bad = self.outside = np.zeros((0, 0), bool)
        self.gap = 0.0
        self.n_cut = 0
        ours = round_to(fmt.name, gemm.x) if isinstance(fmt, ElementFormat) else gemm.x
        differing = self.differing = int((self.llama.bytes_of(ours) != self.llama_bytes).any(axis=1).sum())
        if differing and run.gpu is None:
            note = "llama.cpp's quantizer differs from the harness's encoder; its own bytes were used"
            if note not in result.notes:
                result.notes.append(note)

    def kernel_outputs(self, other_m: tuple[int, ...]) -> None:
        """Run the kernel, also on `other_m` rows of activations. Raises KernelFault."""
        self.kernel, self.weights = self._kernel_for(len(self.gemm.x))
        self._check_quantizer(self.gemm.x, self.own_bytes)
        self.y_own = self.kernel.product(self.weights, self.gemm.x)
        self.y_shared = self.kernel.gemm(self.weights, self.shared_bytes)
        x = self.gemm.x[: max(other_m)]
        if len(x) < max(other_m):
            more = drawn((max(other_m) - len(x), self.tensor.k), x, self.run.options.seed)
            x = np.concatenate([x, more])
        self.other_x, self.other_bytes = x, self.semantics.bytes_of(x)
        self.y_other = {}
        for m in other_m:
            self._check_quantizer(x[:m], self.other_bytes[:m])
            kernel, weights = self._kernel_for(m)
            self.y_other[m] = kernel.product(weights, x[:m])

    def cut_shape(self) -> None:
        """Run and judge the kernel with a row and a block fewer, where there are more. Raises KernelFault."""
        n, k = max(1, len(self.rows) - 1), self.tensor.k
        k -= self.fmt.unit if k > self.fmt.unit else 0
        rows = np.ascontiguousarray(self.rows[:n, : self.rows.shape[1] * k // self.tensor.k])
        for m in CUT_M:
            self._other_shape(rows, k, self.other_x[: m - 1, :k])

    def other_shapes(self) -> None:
        """Run and judge the kernel on SHAPES, and its quantizer on activations of every size. Raises KernelFault."""
        fmt = self.fmt
        size = fmt.unit // fmt.block_size * fmt.block_bytes
        units = self.rows[:, : self.rows.shape[1] // size * size].reshape(-1, size)
        for m, n, slices in SHAPES if len(units) else ():
            wide = -(-slices * SLICE // fmt.unit)
            there = len(units) - (len(units) % wide == 0 and len(units) > 1)  # rows repeat late
            rows = np.resize(units[:there], (n, wide * size))
            x = drawn((m - 1, wide * fmt.unit), self.gemm.x, self.run.options.seed)
            self._other_shape(rows, wide * fmt.unit, x)
        if isinstance(fmt, BlockFormat):
            for m, n, slices in ANY_BITS:
                wide = -(-slices * SLICE // fmt.unit)
                blocks = any_blocks(fmt, n * wide * fmt.unit // fmt.block_size, self.run.options.seed)
                x = drawn((m - 1, wide * fmt.unit), self.gemm.x, self.run.options.seed)
                self._other_shape(blocks.reshape(n, -1), wide * fmt.unit, x, " of any bits")
        x = every_size(self.tensor.k)
        self._check_quantizer(x, self.semantics.bytes_of(x))

    def _other_shape(
        self, rows: npt.NDArray[np.uint8], k: int, x: npt.NDArray[np.float32], which: str = ""
    ) -> None:  # fmt: skip
        """Judge the kernel on rows of k values, and tokens x[M - 1, k] and one more, whose codes are ties."""
        x = np.concatenate([x, ties_of_codes(k)])
        m, n = len(x), len(rows)
        taken = self.semantics.bytes_of(x)
        kernel = self.run.kernel.of(self.fmt, m, n, k)
        self._check_quantizer(x, taken)
        weights = kernel.upload(self.fmt, rows)
        expected = product(self.semantics, self.fmt, rows, taken, kernel.order, self.run.options.threads)
        for y, how in ((kernel.product(weights, x), ""), (kernel.gemm(weights, taken), ", on their bytes")):
            judgement = judge_output(
                self.result, "kernel at other N and K", self.tensor, y, expected, self.semantics, taken, None,
                self.gemm.first_row, None, f" of {n} rows{which} and K = {k}, {m} tokens{how}",
            )  # fmt: skip
            self.utilisation["kernel"] = max(self.utilisation.get("kernel", 0.0), judgement.utilisation)
            self.n_cut += y.size

    def _kernel_for(self, m: int) -> tuple[Kernel, Weights]:
        """What multiplies m tokens, and the weights as it takes them. Raises KernelFault."""
        kernel = self.run.kernel.of(self.fmt, m, len(self.rows), self.tensor.k)
        if kernel.layout not in self._uploaded:
            self._uploaded[kernel.layout] = kernel.upload(self.fmt, self.rows)
        return kernel, self._uploaded[kernel.layout]

    def _check_quantizer(self, x: npt.NDArray[np.float32], expected: npt.NDArray[np.uint8]) -> None:
        """The kernel's quantizer on x float32[M, K]; where a byte is not the expected one, that is recorded."""
        quantized = self.kernel.quantize(x)
        wrong = quantized != expected
        if wrong.any():
            m, at = (int(i) for i in np.argwhere(wrong)[0])
            size = expected.shape[1] * self.fmt.unit // self.tensor.k
            self.result.fail(
                Failure(
                    f"{where(self.tensor, self.gemm.first_row)}: the kernel's quantizer at M={len(x)}: token {m}, "
                    f"activation block "
                    f"{at // size}, byte {at % size} is {quantized[m, at]:#04x}, expected {expected[m, at]:#04x}",
                    self.tensor.name, token=m,
                )
            )  # fmt: skip

    def judge(self, near: Nearness) -> None:
        """Raises KernelFault of an oracle."""
        step = max(1, CHUNK_OUTPUTS // len(self.gemm.x))
        gap, energy = 0.0, 0.0
        own = self.semantics
        for start in range(0, len(self.rows), step):
            span = slice(start, start + step)
            exact_own = self._product(own, span, self.own_bytes, self.kernel.order)
            near.add(own, self.fmt, self.rows[span], self.own_bytes, exact_own)
            if self.llama is own and not self.differing:  # one definition, the same activations
                exact_llama = exact_shared = replace(exact_own, ordered=None)
            else:
                exact_llama = self._product(self.llama, span, self.llama_bytes, None)
                exact_shared = self._product(own, span, self.shared_bytes, None)
            self._one(self.llama_name, self.gemm.y, span, exact_llama, self.llama, self.llama_bytes)
            self._one("kernel", self.y_own, span, exact_own, own, self.own_bytes, self.gemm.x)
            self._one("kernel on llama.cpp's activations", self.y_shared, span, exact_shared, own, self.shared_bytes)
            exact_other: dict[Order | None, Product] = {}
            for m, y in self.y_other.items():
                order = self._kernel_for(m)[0].order
                if order not in exact_other:
                    exact_other[order] = self._product(own, span, self.other_bytes, order)
                expected = exact_other[order].rows(np.arange(m))
                bytes_of_m = self.other_bytes[:m]
                self._one("kernel at other M", y, span, expected, own, bytes_of_m, self.other_x, f" at M={m}")
            self._directly(span, exact_shared, exact_llama)
            gap += float(((exact_own.exact - exact_llama.exact) ** 2).sum())
            energy += float((exact_llama.exact**2).sum())
        self.gap = gap / energy if energy else 0.0
        near.judge(self.tensor)

    def _product(self, semantics: Semantics, span: slice, x: npt.NDArray[np.uint8], order: Order | None) -> Product:
        return product(semantics, self.fmt, self.rows[span], x, order, self.run.options.threads)

    def _one(
        self, who: str, y: npt.NDArray[np.float32], span: slice, expected: Product, semantics: Semantics,
        x: npt.NDArray[np.uint8], values: npt.NDArray[np.float32] | None = None, detail: str = "",
    ) -> None:  # fmt: skip
        """Judge one output on activations x; `values` are what they were quantized from, where the kernel did that."""

        taken = x if values is None else values[: len(y)]
        order = self._kernel_for(len(y))[0].order if expected.ordered is not None else None

        def block_of(m: int, n: int) -> Blame | None:
            kernel, weights = self._kernel_for(len(y))
            found = blame(kernel, weights, self.rows, span.start + n, taken, m, order)
            if found is not None and self.wrong is None:  # of the output that the diagnosis is about
                self.blames.append(found)
            return found

        part = np.ascontiguousarray(y[:, span])
        of_kernel = who != self.llama_name
        judgement = judge_output(
            self.result, who, self.tensor, part, expected, semantics, x, block_of if of_kernel else None,
            self.gemm.first_row + span.start, None, detail,
        )  # fmt: skip
        if of_kernel and not judgement.passed and self.wrong is None:
            n, m = (int(i) for i in np.argwhere(judgement.bad.T)[0])
            self.wrong = _Wrong(f"{who}{detail}", y, taken, x, order, m, span.start + n)
        self.utilisation[who] = max(self.utilisation.get(who, 0.0), judgement.utilisation)

    def heat_map(self) -> dict[str, Any]:
        """Utilisation of the first wrong output, over all its rows and tokens.

        Also says what is wrong of it, `bad`, and of that what is not only in its bits, `outside`; bool[M, N].
        """
        assert self.wrong is not None
        y = self.wrong.y
        grid = Map(*y.shape)
        self.bad, self.outside = np.zeros(y.shape, bool), np.zeros(y.shape, bool)
        step = max(grid.rows, CHUNK_OUTPUTS // len(y) // grid.rows * grid.rows)
        for start in range(0, len(self.rows), step):
            span = slice(start, start + step)
            expected = self._product(self.semantics, span, self.wrong.bytes, self.wrong.order)
            part = np.ascontiguousarray(y[:, span])
            self.bad[:, span] = judge(part, expected).bad
            self.outside[:, span] = judge(part, replace(expected, ordered=None)).bad & np.isfinite(expected.exact)
            grid.add(start, utilisation(part, expected), self.bad[:, span])
        place = {"tensor": self.tensor.name, "where": label(self.tensor, self.gemm.first_row), "who": self.wrong.who}
        return {**place, **grid.as_dict()}

    def diagnosis(self) -> dict[str, Any] | None:
        """What explains the first wrong output; None where nothing can be replayed, as without finite exact values."""
        assert self.wrong is not None
        _, y, x, _, _, m, n = self.wrong
        if not self.bad.size:
            self.heat_map()
        words = [*pattern(self.bad), *along_k(self.blames)]
        if self.outside.any():
            at_n, at_m = (int(i) for i in np.argwhere(self.outside.T)[0])
            kernel, threads = self._kernel_for(len(y))[0], self.run.options.threads
            found = diagnose_kernel(kernel, self.fmt, self.semantics, self.rows, x, y, (at_m, at_n), threads)
            if not found.wrong:
                return None
            found = replace(found, wrong=int(self.bad.sum()), outputs=self.bad.size, pattern=tuple(words))
            said = found.as_dict()
        elif self.wrong.order is not None:
            said = {**Diagnosis(int(self.bad.sum()), self.bad.size).as_dict(), "verdict": ORDER}
            said["lines"] = [_OF_ORDER, *words]
        else:
            return None
        return {
            "tensor": self.tensor.name, "where": label(self.tensor, self.gemm.first_row), "who": self.wrong.who,
            "row": n, "token": m, "block": self.blames[0].block if self.blames else None, **said,
        }  # fmt: skip

    def _directly(self, span: slice, shared: Product, llama: Product) -> None:
        """Kernel against llama.cpp on the same activation bytes, without an oracle between them.

        What may differ besides rounding is s, which a kernel of `q8_1` reads as a half and llama.cpp's Q4_0 and Q5_0
        do not read at all: that difference of the definitions is exactly known.
        """
        with np.errstate(all="ignore"):
            difference = np.abs(self.y_shared[:, span].astype(np.float64) - self.gemm.y[:, span])
            allowed = shared.bound + llama.bound + np.abs(shared.exact - llama.exact)
            bad = ~(difference <= allowed)
        if bad.any():
            m, n = (int(i) for i in np.argwhere(bad)[0])
            row = self.gemm.first_row + span.start + n
            self.result.fail(
                Failure(
                    f"{where(self.tensor, row, m)}: on the same activation bytes the kernel and llama.cpp differ by "
                    "more than both bounds", self.tensor.name, row, token=m,
                    got=float(self.y_shared[m, span.start + n]), expected=float(self.gemm.y[m, span.start + n]),
                    bound=float(allowed[m, n]), matrix=matrix_of(self.tensor, row),
                ), int(bad.sum())
            )  # fmt: skip
