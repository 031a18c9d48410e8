"""Judging one GEMM: the kernel's outputs and llama.cpp's against their exact products, and against each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_fields

from ...checks import ALONE
from ...diagnosis.localisation import Blame, blame
from ...formats.element import ElementFormat
from ...gguf.matrices import label, matrix_of, where
from ...llama.gemms import Gemm
from ...results.calls import Call, CallKind
from ...results.failures import Failure
from ...results.margins import Side
from ...results.rungs import RungResult
from ...semantics.definition import Semantics
from ...semantics.elements import round_to
from ...semantics.order import Order
from ...semantics.sums import Product
from ...support.arrays import get, put
from ...support.errors import Culprit
from ...support.text import counted
from ..calls import calling
from ..exact import ExactProducts
from ..explain import Place, WrongBytes, WrongCall
from ..generated_inputs import representable
from ..judging import CHUNK_OUTPUTS, KERNEL, Output, judge_output, llama_side
from ..remade import KernelCall, Remade
from ..run import Matrix, Run
from ..sampling import SampledOutputs, Span, numbers_of
from .call import (
    Activations,
    KernelCalls,
    Outputs,
    Trial,
    llama_activations,
    llama_bytes,
    with_more_tokens,
)
from .probes.envelope import OTHER_SHAPES

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

#: The kernel's outputs beside KERNEL: on llama.cpp's activation bytes, for other numbers of tokens, of other shapes.
SHARED = Side("kernel on llama.cpp's activations", True)
OTHER_M = Side("kernel at other M", True)
#: The kernel's outputs → the kind of their calls.
_KINDS: dict[str, CallKind] = {KERNEL.name: "own", SHARED.name: "shared", OTHER_M.name: "other-m"}


@dataclass
class _Gaps:
    """How far two definitions are apart, in the products that were added."""

    difference: float = 0.0
    energy: float = 0.0

    def add(self, own: Product, theirs: Product) -> None:
        with np.errstate(all="ignore"):
            self.difference += float(((own.exact - theirs.exact) ** 2).sum())
            self.energy += float((theirs.exact**2).sum())

    @property
    def nmse(self) -> float:
        return self.difference / self.energy if self.energy else 0.0


@dataclass
class GemmJudge:
    """One GEMM of the graph, the kernel that is verified on it, and what was found wrong.

    Args:
        run, result: of the rung.
        matrix, gemm: the weights, and the product as llama.cpp computed it.
        llama: the definition of llama.cpp's product.
        use: how many products with this matrix came before in the rung.
    """

    run: Run
    result: RungResult
    matrix: Matrix
    gemm: Gemm
    llama: Semantics
    use: int = 0
    #: Whose output → its worst utilisation.
    utilisation: dict[Side, float] = field(default_factory=dict)
    #: Whose output → the kernel's first call with a wrong one.
    wrong: dict[Side, WrongCall] = field(default_factory=dict)
    #: Calls of its quantizer that gave other bytes than the definition's.
    wrong_bytes: list[WrongBytes] = field(default_factory=list)
    #: NMSE between the exact products of the kernel's definition and of llama.cpp's.
    gap: float = 0.0
    #: Outputs that were judged at other N and K.
    n_other_shapes: int = 0

    def __post_init__(self) -> None:
        matrix, gemm = self.matrix, self.gemm
        self.semantics = self.run.semantics(matrix.fmt)
        self.llama_side = llama_side(self.run.backend, self.llama)
        self.llama_bytes = llama_bytes(matrix.fmt, gemm, self.llama)
        self.shared_bytes = llama_activations(self.semantics, matrix.fmt, gemm, self.llama)
        self.own = Activations.of(self.semantics, gemm.x)
        self.calls = KernelCalls(self.run, matrix)
        ours = round_to(matrix.fmt.name, gemm.x) if isinstance(matrix.fmt, ElementFormat) else gemm.x
        #: Tokens whose bytes llama.cpp's quantizer made otherwise than our encoder.
        self.differing = int((self.llama.bytes_of(ours) != self.llama_bytes).any(axis=1).sum())
        if self.differing and not self.run.backend.ambiguous_codes:
            self.result.note(
                "llama.cpp's quantizer differs from the project's encoder; llama.cpp's own bytes were used"
            )

    @property
    def _name(self) -> str:
        return label(self.matrix.tensor, self.gemm.first_row)

    # ---- running the kernel ------------------------------------------------------------------------------------------

    def run_kernel(self, other_m: tuple[int, ...]) -> Outputs:
        """Run the kernel on the graph's activations, and on `other_m` numbers of tokens; check its quantizer. Raises
        KernelFault."""
        x = self.gemm.x
        other = Activations.of(self.semantics, with_more_tokens(x, max(other_m), self.run.options.seed))
        with calling(self.call("own")):
            kernel, weights = self.calls.at(len(x))
        self.check_quantizer(self.own, self.call("quantizer"))
        with calling(self.call("own")):
            own = kernel.product(weights, x)
        with calling(self.call("shared")):
            shared = kernel.gemm(weights, self.shared_bytes)
        others = {}
        for m in other_m:
            self.check_quantizer(other.first(m), self.call("quantizer", m=m))
            with calling(self.call("other-m", m=m)):
                kernel_of_m, weights_of_m = self.calls.at(m)
                others[m] = kernel_of_m.product(weights_of_m, other.values[:m])
        return Outputs(kernel, own, shared, others, other)

    def call(self, kind: CallKind, **other: int) -> Call:
        """A call that is made for this GEMM; `other`: fields that are not those of the graph's own product."""
        m, n, k = self.gemm.shape
        fields: dict[str, Any] = {"m": m, "n": n, "k": k, "first_row": self.gemm.first_row, "use": self.use}
        return Call(kind=kind, **(fields | other))

    def check_quantizer(self, taken: Activations, call: Call, m: int = 0) -> None:
        """Compare the kernel's quantizer with the definition's, and record the first byte that differs. Raises
        KernelFault.

        Args:
            m: the kernel is the one for this number of tokens; 0: for those of the graph.
        """
        x, expected, tensor = taken.values, taken.encoded, self.matrix.tensor
        with calling(call):
            kernel, _ = self.calls.at(m or len(self.gemm.x))
            quantized = kernel.quantize(x)
        wrong = quantized != expected
        if not wrong.any():
            return
        token, at = (int(i) for i in np.argwhere(wrong)[0])
        size = expected.shape[1] * self.matrix.fmt.unit // x.shape[1]
        who = f"the kernel's quantizer at M={len(x)}"
        self.result.fail(
            Failure(
                f"{where(tensor, self.gemm.first_row)}: {who}: token {token}, activation block {at // size}, byte "
                f"{at % size} is {quantized[token, at]:#04x}, expected {expected[token, at]:#04x}",
                tensor.name, token=token, culprit="kernel", call=call,
            )
        )  # fmt: skip
        place = Place(who, tensor.name, self._name, call)
        self.wrong_bytes.append(
            WrongBytes(self.semantics, x, quantized, expected, place, self.matrix.fmt.name, token, at // size)
        )

    def try_shape(self, trial: Trial, number: int, only: Call | None = None) -> None:
        """Run and judge the kernel at another shape, on its own quantizer and on bytes. Raises KernelFault.

        Args:
            number: of the trial.
            only: make this call alone.
        """
        trial = replace(trial, x=representable(self.semantics, self.matrix.fmt, trial.rows, trial.x))
        taken = Activations.of(self.semantics, trial.x)
        m, n = len(trial.x), len(trial.rows)
        fmt = self.matrix.fmt
        call = self.call("cut", number=number, m=m, n=n, k=trial.k)
        if only is None:
            self.check_quantizer(taken, replace_fields(call, kind="quantizer", number=number + 1))
        with calling(call):
            kernel = self.run.kernel.of(fmt, m, n, trial.k)
            weights = kernel.upload(fmt, trial.rows)
        expected = self.expected(self.semantics, trial.rows, taken.encoded, kernel.order)
        for how in ("", ", on their bytes"):
            call = replace_fields(call, given=bool(how))
            if only is not None and call.given != only.given:
                continue
            with calling(call):
                y = kernel.gemm(weights, taken.encoded) if how else kernel.product(weights, trial.x)
            given: Floats | Bytes = taken.encoded if how else trial.x
            if only is not None:
                self.result.count(ALONE)
            detail = f" of {n} rows{trial.words} and K = {trial.k}, {counted(m, 'tokens')}{how}"
            output = Output(
                OTHER_SHAPES, self.matrix.tensor, self.gemm.first_row + np.arange(n), y, expected, self.semantics,
                taken.encoded, call=call, detail=detail,
                again=KernelCall(kernel, fmt, trial.rows, m, bool(how), weights).remade(self.run, slice(None)),
            )  # fmt: skip
            judgement = judge_output(self.result, output)
            if not judgement.passed and OTHER_SHAPES not in self.wrong:
                at_n, at_m = (int(i) for i in np.argwhere(judgement.bad.T)[0])
                self.wrong[OTHER_SHAPES] = WrongCall(
                    fmt, self.semantics, trial.rows, given, taken.encoded, y, kernel.order,
                    f"{OTHER_SHAPES.name}{detail}", self.matrix.tensor.name, self._name, at_m, at_n, call=call,
                    kernel=kernel,
                )  # fmt: skip
            self._keep_worst(OTHER_SHAPES, judgement.utilisation)
            self.n_other_shapes += y.size

    # ---- judging -----------------------------------------------------------------------------------------------------

    def judge(self, made: Outputs, exact: ExactProducts) -> None:
        """Judge the kernel's outputs and llama.cpp's. Raises KernelFault of an author's oracle."""
        definitions = [self.semantics, self.llama] if self.run.backend.compared else [self.semantics]
        step = max(1, CHUNK_OUTPUTS // len(self.gemm.x))
        outputs = [made.own, made.shared, *made.others.values()]
        sample = SampledOutputs(self.run, self.result, self.matrix, self.gemm.first_row, definitions, outputs, step)
        failed, gaps = self.result.n_failures, _Gaps()
        for span in sample.spans:
            self._judge_rows(made, span, exact, gaps, sample)
        everything = bool(sample.rest) and (self.result.n_failures > failed or self._suspicious(made, sample))
        for span in sample.rest if everything else ():
            self._judge_rows(made, span, exact, gaps, sample)
        sample.record(made.own.size + made.shared.size + sum(y.size for y in made.others.values()), everything)
        self.gap = gaps.nmse

    def _judge_rows(self, made: Outputs, span: Span, exact: ExactProducts, gaps: _Gaps, sample: SampledOutputs) -> None:
        rows = self.run.rows_of(self.matrix, span)
        own = exact.product(self.semantics, self.matrix.fmt, rows, self.own.encoded, made.kernel.order)
        if self.llama is self.semantics and not self.differing:  # one definition, and the same activations
            theirs = shared = replace(own, ordered=None)
        else:
            theirs = self.expected(self.llama, rows, self.llama_bytes)
            # long sums in half have no other check than their bits; elsewhere those of `own` suffice
            order = made.kernel.order if (self.semantics.inside or self.semantics).fused_in_half else None
            shared = self.expected(self.semantics, rows, self.shared_bytes, order)
        sides = ((self.llama_side, self.gemm.y, theirs), (KERNEL, made.own, own), (SHARED, made.shared, shared))
        for side, y, product in sides:
            sample.saw(side, y[:, span], product)
        if self.run.backend.compared:
            self.judge_llama(span, theirs)
        self.judge_kernel(KERNEL, made.own, span, own, self.own.encoded, self.gemm.x)
        self.judge_kernel(SHARED, made.shared, span, shared, self.shared_bytes)
        self._judge_other_m(made, span, own, sample)
        if self.run.backend.compared:
            self.compare_directly(made.shared, span, shared, theirs)
        gaps.add(own, theirs)

    def _suspicious(self, made: Outputs, sample: SampledOutputs) -> bool:
        """Whether a combination of rows of any whole output is too far off."""
        sides: list[tuple[Hashable, Floats, Semantics, Bytes]]
        sides = [(KERNEL, made.own, self.semantics, self.own.encoded)]
        sides += [(SHARED, made.shared, self.semantics, self.shared_bytes)]
        if self.run.backend.compared:
            sides += [(self.llama_side, self.gemm.y, self.llama, self.llama_bytes)]
        sides += [((OTHER_M, m), y, self.semantics, made.other.encoded) for m, y in made.others.items()]
        return any(sample.suspicious(side, y, semantics, x) for side, y, semantics, x in sides)

    def _judge_other_m(self, made: Outputs, span: Span, own: Product, sample: SampledOutputs) -> None:
        expected: dict[Order | None, Product] = {}
        first = self.own.encoded[: len(made.other.encoded)]
        if np.array_equal(first, made.other.encoded):  # no other tokens were added
            expected[made.kernel.order] = own.rows(np.arange(len(first)))
        for m, y in made.others.items():
            order = self.calls.at(m)[0].order
            if order not in expected:
                expected[order] = self.expected(self.semantics, self.matrix.rows[span], made.other.encoded, order)
            taken = made.other.first(m)
            of_m = expected[order].rows(np.arange(m))
            sample.saw((OTHER_M, m), y[:, span], of_m)
            self.judge_kernel(OTHER_M, y, span, of_m, taken.encoded, taken.values, f" at M={m}")

    def expected(self, semantics: Semantics, rows: Bytes, x: Bytes, order: Order | None = None) -> Product:
        return self.run.product(semantics, self.matrix.fmt, rows, x, order)

    def judge_llama(self, span: Span, expected: Product) -> None:
        part = np.ascontiguousarray(self.gemm.y[:, span])
        output = Output(
            self.llama_side, self.matrix.tensor, self.gemm.first_row + numbers_of(span), part, expected, self.llama,
            self.llama_bytes, call=self.call("reference"), again=self._llama_again(span),
        )  # fmt: skip
        judgement = judge_output(self.result, output)
        self._keep_worst(self.llama_side, judgement.utilisation)

    def judge_kernel(
        self, side: Side, y: Floats, span: Span, expected: Product, encoded: Bytes, values: Floats | None = None,
        detail: str = "",
    ) -> None:  # fmt: skip
        """Judge one output of the kernel.

        Args:
            encoded: its activations, as its definition has them.
            values: what the kernel quantized them from, where it did that itself.
        """
        taken = encoded if values is None else values[: len(y)]
        order = self.calls.at(len(y))[0].order if expected.ordered is not None else None
        part, blames = np.ascontiguousarray(y[:, span]), list[Blame]()
        call, (kernel, weights) = self.call(_KINDS[side.name], m=len(y)), self.calls.at(len(y))
        made_by = KernelCall(kernel, self.matrix.fmt, self.matrix.rows, len(y), values is None, weights)
        output = Output(
            side, self.matrix.tensor, self.gemm.first_row + numbers_of(span), part, expected, self.semantics, encoded,
            values, call=call, detail=detail, again=made_by.remade(self.run, span),
            blame=self._localiser(span, taken, order, blames),
        )  # fmt: skip
        judgement = judge_output(self.result, output)
        if not judgement.passed and side not in self.wrong:
            n, m = (int(i) for i in np.argwhere(judgement.bad.T)[0])
            self.wrong[side] = WrongCall(
                self.matrix.fmt, self.semantics, self.matrix.rows, taken, encoded, y, order, f"{side.name}{detail}",
                self.matrix.tensor.name, self._name, m, int(numbers_of(span)[n]), tuple(blames), call=call,
                kernel=kernel,
            )  # fmt: skip
        self._keep_worst(side, judgement.utilisation)

    def _llama_again(self, span: Span) -> Remade:
        """How llama.cpp's product is made again, outside of the graph."""
        matrix, options, backend = self.matrix, self.run.options, self.run.backend

        def make(x: Floats) -> tuple[Floats, Bytes]:
            gemm = replace(self.gemm, x=x, quantized={})
            gemm = backend.computed(gemm, self.llama, matrix.fmt, matrix.rows, options.threads)
            form = self.llama.activations
            if form is None or form.type_id in gemm.quantized:
                return gemm.y[:, span], llama_bytes(matrix.fmt, gemm, self.llama)
            return gemm.y[:, span], self.llama.bytes_of(x)

        rows, shape = matrix.rows[span], self.gemm.x.shape
        return Remade(self.llama, matrix.fmt, rows, make, shape, options.seed, options.threads)

    def _localiser(
        self, span: Span, taken: npt.NDArray[np.float32] | npt.NDArray[np.uint8], order: Order | None,
        blames: list[Blame],
    ) -> Callable[[int, int], Blame | None]:  # fmt: skip
        """(m, n) of an output → what along K is to blame for it; added to `blames` too."""

        def block_of(m: int, n: int) -> Blame | None:
            kernel, weights = self.calls.at(len(taken))
            found = blame(kernel, weights, self.matrix.rows, int(numbers_of(span)[n]), taken, m, order)
            if found is not None:
                blames.append(found)
            return found

        return block_of

    def _keep_worst(self, side: Side, utilisation: float) -> None:
        self.utilisation[side] = max(self.utilisation.get(side, 0.0), utilisation)

    def compare_directly(self, y: Floats, span: Span, shared: Product, theirs: Product) -> None:
        """Compare kernel and llama.cpp on the same activation bytes, without an exact product between them.

        Beside rounding they may differ in s, which a kernel of `q8_1` reads as a half and llama.cpp's Q4_0 and Q5_0 do
        not read at all: that difference of the definitions is exactly known. Where there is no finite exact value, each
        of the two has been judged by itself.
        """
        ours, llama = (put(of[:, span].astype(np.float64), shared.exact) for of in (y, self.gemm.y))

        def compared(shared: Product, theirs: Product) -> tuple[Doubles, npt.NDArray[np.bool_]]:
            """The bounds, and of NumPy which elements are outside of them."""
            with np.errstate(all="ignore"):
                allowed = shared.bound + theirs.bound + np.abs(shared.exact - theirs.exact)
                finite = np.isfinite(shared.exact) & np.isfinite(theirs.exact)
                return allowed, get(finite & ~(np.abs(ours - llama) <= allowed))

        allowed, bad = compared(shared, theirs)
        if bad.any():
            rows = np.flatnonzero(bad.any(axis=0))
            shared, theirs = shared.settled(rows), theirs.settled(rows)
            allowed, bad = compared(shared, theirs)
        with np.errstate(all="ignore"):
            right = get(np.abs(ours - shared.exact) <= shared.bound)
        whose: tuple[tuple[Culprit, npt.NDArray[np.bool_]], ...] = ("llama.cpp", bad & right), ("kernel", bad & ~right)
        for culprit, wrong in whose:
            if not wrong.any():
                continue
            m, n = (int(i) for i in np.argwhere(wrong)[0])
            tensor, at = self.matrix.tensor, int(numbers_of(span)[n])
            row = self.gemm.first_row + at
            self.result.fail(
                Failure(
                    f"{where(tensor, row, m)}: on the same activation bytes the kernel and llama.cpp differ by more "
                    "than both bounds", tensor.name, row, token=m, got=float(y[m, at]),
                    expected=float(self.gemm.y[m, at]), bound=float(allowed[m, n]),
                    matrix=matrix_of(tensor, row), culprit=culprit, call=self.call("shared"),
                ), int(wrong.sum())
            )  # fmt: skip
