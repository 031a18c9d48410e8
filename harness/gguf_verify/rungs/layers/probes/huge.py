"""Products that are too large for any machine here: what they would launch, and some of their thread blocks.

An index of 32 bits overflows where the outputs, the weights or the activations pass 2^31 values or bytes. A thread
block takes as long there as it does in a small product, so a few run by themselves (`Kernel.alone`): the first and the
last ones, those near which an index passes a limit, and some random ones. Their outputs are judged by the exact product
at their places. Whether something was not written follows from how many blocks write, and how much.

A thread block can only be judged by itself if it needs no other. That is tried first: at a small size all of them run,
each by itself, and must together give the outputs of the whole launch. Where they do not (parts of sums that are added
up, barriers of the whole grid), or where each block computes too many outputs (it loops over tiles), the report lists
large indices as not covered.

Rows that are filled up with zeros repeat as whole rows. Fused operands repeat a prime number of random numbers,
whatever rows and tokens they belong to, and the product is judged with these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_fields

from ....diagnosis.observed import observed
from ....formats.block import BlockFormat
from ....formats.element import SLICE
from ....formats.tensor_types import WeightFormat
from ....gguf.file import Tensor
from ....kernels.domain import Domain
from ....kernels.interface import Kernel
from ....kernels.launches import Launched, Needs, Repeated, SparseProduct, prime
from ....results.calls import Call
from ....results.diagnoses import FaultMatch, LocatedDiagnosis
from ....results.failures import Failure
from ....results.rungs import RungResult
from ....semantics.definition import Semantics
from ....semantics.drawn import companions
from ....semantics.epilogue import Epilogue
from ....semantics.exact import product
from ....semantics.gates import judge
from ....semantics.order import Order
from ....support.errors import EnvironmentFault, KernelFault
from ....support.text import printable
from ...explain import Explanations
from ...generated_inputs import any_blocks, drawn, held_by
from ...judging import KERNEL, leave_weak
from ...plan import Huge, Probe, huge, wide
from ...run import Run
from ...thread_blocks import SHARE, BlocksAlone, dependence, too_many
from .limits import limit_of, record_limit

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Blocks that repeat in the weights and in the activations at most, primes; the fewest that the model's are used of.
_REPEATED, _TOKENS_REPEATED, _FEWEST = 8209, 4099, 521
#: Outputs of a thread block, beyond which none is tried.
_MOST_OUTPUTS = 1 << 16
#: Rows and tokens with random numbers, primes.
_ROWS, _TOKENS = 521, 67
_INDEX = Call(kind="index")
#: Shares of the grid near which thread blocks of a shape run, beside its corners and random ones.
_OF_SHAPE = (0.25, 0.5, 0.75)
#: Outputs of each thread block that are judged, and pairs of a row and a token that are multiplied exactly at a time.
_JUDGED, _PAIRS = 4, 12
#: Sums into the output, which a product of zero leaves unchanged: unwritten outputs are reported for every other one.
_SHARE_OF_SUMS = 2


@dataclass
class HugeFound:
    """The findings: see `TypeEnvelope`; and whether something is wrong."""

    indices: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
    not_covered: list[tuple[str, str]] = field(default_factory=list)
    wrong: bool = False


@dataclass(frozen=True)
class _Wrong:
    """The first thing that is wrong with a product, in words; at which output, where it is one, and its culprit."""

    words: str
    token: int = 0
    row: int = 0
    got: float | None = None
    expected: float | None = None
    error: KernelFault | None = None


class HugeProbes:
    """The large products of one type of weights.

    Args:
        run, result, explanations: of the rung.
        tensor: the first matrix of the type, for the names of failures.
        units: uint8[…, bytes], blocks of the model.
        like: activations float32[M, K] of the graph, whose size random ones have.
        call: of which the calls are variants.
    """

    def __init__(
        self, run: Run, result: RungResult, tensor: Tensor, fmt: WeightFormat, units: Bytes, like: Floats,
        explanations: Explanations, call: Call = _INDEX,
    ) -> None:  # fmt: skip
        self._call = call
        self._run, self._result, self._tensor, self._fmt = run, result, tensor, fmt
        self._explanations = explanations
        self._semantics: Semantics = run.semantics(fmt)
        self._seed = run.options.seed
        takes = self._semantics.activations
        self._of_x = SLICE if takes is None else math.lcm(SLICE, takes.block_size)
        #: K is a multiple of this.
        self.unit = math.lcm(fmt.unit, self._of_x)
        self._fused: dict[int, dict[str, Repeated]] = {}
        self._weights = self._repeated(units)
        self._floats = drawn((1, _TOKENS_REPEATED * self._of_x), like, self._seed)
        self._x = self._semantics.bytes_of(self._floats).reshape(-1)
        self.found = HugeFound()

    def _repeated(self, units: Bytes) -> Bytes:
        """Blocks of the model, a prime number of them; where it has few, blocks of any bits that the definition can
        hold."""
        if len(units) < _FEWEST and isinstance(self._fmt, BlockFormat):
            drawn_units = any_blocks(self._fmt, _REPEATED, self._seed)
            held = drawn_units[held_by(self._semantics, self._fmt, drawn_units)]
            units = held if len(held) > len(units) else units
        return np.ascontiguousarray(units[: prime(min(len(units), _REPEATED))]).reshape(-1)

    # ---- grids -------------------------------------------------------------------------------------------------------

    def check_grids(self, domain: Domain) -> None:
        """Record up to which sizes CUDA would make its launches. Fail the kernel where it would make none."""
        self._call = replace_fields(self._call, kind="grid", m=0, n=0, k=0)
        for m, n, k in wide(domain, self.unit):
            at = f"M={m}, N={n}, K={k}"
            try:
                launches = self._run.kernel.of(self._fmt, m, n, k).launches(self._fmt, m, n, k)
            except KernelFault as error:
                self._fail(_Wrong(f"{self._fmt.name} at {at}: {error}", error=error))
                continue
            if launches is None:
                self.found.not_covered.append(("grids of M = 2^20 and N = 2^20", "its launches cannot be seen"))
                return
            refused = next((launched.refused for launched in launches if launched.refused), None)
            if refused is None:
                self.found.grids.append(at)
                continue
            limit = limit_of(self.refused, (m, n, k), domain, self.unit)
            if limit is not None:
                record_limit(self._result, limit, self._fmt.name, self._tensor.name)
                continue
            named = observed("launch-past-limit", f"at {at}: {refused}")
            self._fail(_Wrong(f"{self._fmt.name} at {at}: {refused}"), at, named)

    def refused(self, m: int, n: int, k: int) -> str | None:
        """Why CUDA refuses a launch of the kernel at these sizes; None where it makes all, or they cannot be seen."""
        try:
            launches = self._run.kernel.of(self._fmt, m, n, k).launches(self._fmt, m, n, k)
        except KernelFault as error:
            return str(error)
        return next((launched.refused for launched in launches or () if launched.refused), None)

    # ---- indices -----------------------------------------------------------------------------------------------------

    def check_indices(self, domain: Domain) -> None:
        """Run and judge some thread blocks of each large product."""
        self._call = replace_fields(self._call, kind="index", m=0, n=0, k=0)
        row, token = self._fmt.block_bytes / self._fmt.block_size, len(self._x) / (_TOKENS_REPEATED * self._of_x)
        tried = huge(domain, self.unit, row, token)
        for what in ("M·N", "N·K", "M·K"):
            if not any(size.what == what for size in tried):
                self._leave(what, "its domain ends before")
        dependent: dict[int, str | tuple[Needs, ...]] = {}
        for size in tried:
            try:
                self._check(size, dependent)
            except KernelFault as error:
                words = f"{self._fmt.name} at M={size.m}, N={size.n}, K={size.k}: {error}"
                self._fail(_Wrong(words, error=error))
            except EnvironmentFault as error:
                self._leave(size.what, str(error))
            if self.found.wrong:
                return
        for size in (size for size in tried if size.what == "M·K"):
            self._check_quantizer(size)

    def check_shape(self, probe: Probe, number: int, needs: tuple[Needs, ...]) -> bool:
        """Run and judge some thread blocks of a probe; return whether they are correct."""
        (m,), n, k = probe.tokens, probe.n, probe.k
        self._call = replace_fields(self._call, kind="probe", number=number, m=m, n=n, k=k)
        kernel, of = self._run.kernel.of(self._fmt, m, n, k), f"M={m}, N={n}, K={k} ({probe.because})"
        try:
            launched = kernel.only_launch(self._fmt, m, n, k)
            assert isinstance(launched, Launched)
            wrong, ran = self._tried(kernel, self.sparse(kernel, (m, n, k), needs), launched, _OF_SHAPE)
        except KernelFault as error:
            wrong, ran = _Wrong(f"{self._fmt.name} at {of}: {error}", error=error), 0
        except EnvironmentFault as error:
            self.found.not_covered.append((of, str(error)))
            return True
        if wrong is None:
            self.found.indices.append(f"{ran} thread blocks of {of}")
            return True
        words = f"wrong at a size that the code compares with: {probe.because}"
        self._fail(wrong, f"M={m}, N={n}, K={k}", observed("first-taken-branch", words))
        return False

    def _leave(self, what: str, why: str) -> None:
        left = f"{what} of 2^31 and more", why
        if left not in self.found.not_covered:
            self.found.not_covered.append(left)

    def _check(self, size: Huge, dependent: dict[int, str | tuple[Needs, ...]]) -> None:
        """Raises KernelFault, EnvironmentFault."""
        kernel = self._run.kernel.of(self._fmt, size.m, size.n, size.k)
        launched = kernel.only_launch(self._fmt, size.m, size.n, size.k)
        if isinstance(launched, str):
            return self._leave(size.what, launched)
        if launched.refused:
            return self._leave(size.what, f"at M={size.m}, N={size.n}, K={size.k} {launched.refused}")
        if size.m * size.n > _MOST_OUTPUTS * launched.blocks:
            why = f"each of its {launched.blocks:,} thread blocks would compute {size.m * size.n // launched.blocks:,}"
            return self._leave(size.what, f"{why} outputs: it loops over tiles, and none can run by itself")
        earlier = kernel.earlier(self._fmt, size.m, size.n, size.k)
        if refused := next((one.refused for one in earlier if one.refused), None):
            return self._leave(size.what, f"at M={size.m}, N={size.n}, K={size.k} {refused}")
        if size.k not in dependent:
            dependent[size.k] = dependence(kernel, self._fmt, size.k, lambda m, n, k: self.sparse(kernel, (m, n, k)))
        needs = dependent[size.k]
        if isinstance(needs, str):
            return self._leave(size.what, needs)
        if most := too_many(earlier, needs):
            return self._leave(size.what, f"each of its thread blocks needs {most:,} blocks of an earlier launch")
        wrong, ran = self._tried(kernel, self.sparse(kernel, (size.m, size.n, size.k), needs), launched, size.crossings)
        if wrong is None:
            where = f"M={size.m}, N={size.n}, K={size.k}"
            self.found.indices.append(f"{ran} thread blocks of {where} ({size.what} = {size.passes:,})")
            return None
        # if it is wrong without an overflow too, it is a window of M or N, or a grid that ends
        below = [at for at in size.below if at[0] in kernel.domain.m and at[1] in kernel.domain.n]
        self._explain(size, wrong, bool(below) and all(self._right(kernel, (m, n, size.k), needs) for m, n in below))

    def _right(self, kernel: Kernel, shape: tuple[int, int, int], needs: tuple[Needs, ...]) -> bool:
        """Whether the tried thread blocks of a smaller product are correct."""
        smaller = kernel.of(self._fmt, *shape)
        launched = smaller.only_launch(self._fmt, *shape)
        if not isinstance(launched, Launched) or launched.refused:
            return False
        return self._tried(smaller, self.sparse(smaller, shape, needs), launched, ())[0] is None

    def _check_quantizer(self, size: Huge) -> None:
        """Run and judge some thread blocks of the kernel's own quantizer."""
        kernel = self._run.kernel.of(self._fmt, size.m, size.n, size.k)
        launched = kernel.quantizer_launch(size.m, size.k)
        if launched is None:
            return
        what = f"{self._fmt.name}, the quantizer"
        try:
            if isinstance(launched, str) or launched.refused:
                self._leave("M·K of the quantizer", launched if isinstance(launched, str) else launched.refused or "")
                return
            wrong, ran = self._quantized(kernel, size.m, size.k, launched, size.crossings)
            if wrong is None:
                self.found.indices.append(f"{ran} thread blocks of the quantizer at M={size.m}, K={size.k}")
                return
            small = kernel.quantizer_launch(size.small[0], size.k)
            right = isinstance(small, Launched)
            if isinstance(small, Launched):
                right = self._quantized(kernel, size.small[0], size.k, small, ())[0] is None
            self._explain(size, replace(wrong, words=f"{what}: {wrong.words}"), right)
        except EnvironmentFault as error:
            self._leave("M·K of the quantizer", str(error))
        except KernelFault as error:
            self._fail(_Wrong(f"{what} at M={size.m}, K={size.k}: {error}", error=error))

    def _quantized(
        self, kernel: Kernel, m: int, k: int, launched: Launched, crossings: tuple[float, ...]
    ) -> tuple[_Wrong | None, int]:
        """The first fault of the quantizer's thread blocks, and how many ran."""
        expected = self._x.view(np.uint32)
        words = m * len(self._x) // _TOKENS_REPEATED * (k // self._of_x) // 4
        blocks = BlocksAlone(
            lambda number: kernel.quantizer_alone(self._floats, m, k, number), launched, words, (self._seed, m, k)
        )
        at = f"M={m}, K={k}"
        for number in blocks.chosen(crossings):
            of = f"{at}: thread block {number:,} of {launched.blocks:,}"
            try:
                written = blocks.of(number)
            except KernelFault as error:
                return _Wrong(f"{of}: {error}", error=error), len(blocks.written)
            bad = written.words != expected[written.at % len(expected)]
            if bad.any():
                byte = 4 * int(written.at[bad.argmax()])
                return _Wrong(f"{of} writes other codes than the definition's at byte {byte:,}"), len(blocks.written)
        unwritten = blocks.unwritten()
        return None if unwritten is None else _Wrong(f"{at}: {unwritten}"), len(blocks.written)

    def sparse(self, kernel: Kernel, shape: tuple[int, int, int], needs: tuple[Needs, ...] = ()) -> SparseProduct:
        token = len(self._x) // _TOKENS_REPEATED * (shape[2] // self._of_x)
        lies = kernel.lies(self._fmt, *shape)
        of = SparseProduct(self._fmt, *shape, token, self._weights, self._x, lies, needs)
        if not isinstance(self._semantics.epilogue, Epilogue) or not isinstance(self._fmt, BlockFormat):
            return of
        if of.k not in self._fused:
            self._fused[of.k] = repeated(of, self._semantics.epilogue, self._fmt, self._semantics.output)
        tails = {name: kernel.tail(self._fmt, *shape, name) for name in self._fused[of.k]}
        return replace(of, fused={n: replace(one, tail=tails[n]) for n, one in self._fused[of.k].items()})

    def _tried(
        self, kernel: Kernel, of: SparseProduct, launched: Launched, crossings: tuple[float, ...]
    ) -> tuple[_Wrong | None, int]:
        """The first fault of chosen thread blocks, and how many ran. Raises OracleFault, EnvironmentFault."""
        key, share = (self._seed, of.m, of.n, of.k), _SHARE_OF_SUMS if "output" in of.fused else SHARE
        blocks = BlocksAlone(lambda number: kernel.alone(of, number), launched, of.m * of.n, key, share)
        return self._wrong(kernel, of, blocks, crossings), len(blocks.written)

    def _wrong(
        self, kernel: Kernel, of: SparseProduct, blocks: BlocksAlone, crossings: tuple[float, ...]
    ) -> _Wrong | None:  # fmt: skip
        at = f"{self._fmt.name} at M={of.m}, N={of.n}, K={of.k}"
        pairs = []
        for number in blocks.chosen(crossings):
            try:
                written = blocks.of(number)
                of.places(written.at)
            except KernelFault as error:
                return _Wrong(f"{at}: thread block {number:,} of {blocks.launched.blocks:,}: {error}", error=error)
            pairs += [(number, int(written.at[i]), written.words[i]) for i in _some(len(written.at), number)]
        for start in range(0, len(pairs), _PAIRS):
            found = self._judge(of, kernel.order, pairs[start : start + _PAIRS], f"{at}: thread block")
            if found is not None:
                return found
        unwritten = blocks.unwritten()
        return None if unwritten is None else _Wrong(f"{at}: {unwritten}")

    def _judge(
        self, of: SparseProduct, order: Order | None, pairs: list[tuple[int, int, np.uint32]], at: str
    ) -> _Wrong | None:
        """Judge outputs: thread block, place, bits."""
        at_tokens, at_rows = of.places(np.array([place for _, place, _ in pairs], np.int64))
        places = list(zip(at_tokens.tolist(), at_rows.tolist(), strict=True))
        rows, tokens = of.rows([n for _, n in places]), of.tokens([m for m, _ in places])
        operands = of.beside([m for m, _ in places], [n for _, n in places]) if of.fused else None
        whole = product(self._semantics, self._fmt, rows, tokens, order, self._run.options.threads, operands=operands)
        expected = whole.at(np.arange(len(places)), np.arange(len(places)))
        y = np.array([[bits for _, _, bits in pairs]], np.uint32).view(np.float32)
        judgement = judge(y, expected)
        if judgement.power.lacking:
            leave_weak(self._result, KERNEL, self._tensor, of.k)
        bad = judgement.bad[0]
        if not bad.any():
            return None
        i = int(bad.argmax())
        (m, n), (number, _, _) = places[i], pairs[i]
        got, exact = float(y[0, i]), float(expected.exact[0, i])
        words = f"{at} {number:,} writes {got:.9g} at row {n} token {m}"
        return _Wrong(f"{words}, expected {exact:.9g}", m, n, got, exact)

    # ---- findings ----------------------------------------------------------------------------------------------------

    def _explain(self, size: Huge, wrong: _Wrong, right: bool) -> None:
        """Record a fault, and that an index overflows if the kernel is correct where none can."""
        where, (m, n) = f"M={size.m}, N={size.n}, K={size.k}", size.small
        if not right:
            return self._fail(wrong, where)
        words = (
            f"an index or a count overflows 32 bits: right at M={m}, N={n}, K={size.k}, where {size.what} takes less "
            f"than 2^31 values and bytes, and wrong at {where}"
        )
        self._fail(wrong, where, observed("index-past-2^31", words))

    def _fail(self, wrong: _Wrong, where: str = "", named: FaultMatch | None = None) -> None:
        self.found.wrong = True
        words = wrong.words if named is None or named.words in wrong.words else f"{wrong.words} ({named.words})"
        culprit = "kernel" if wrong.error is None else wrong.error.culprit
        self._result.fail(
            Failure(words, self._tensor.name, token=wrong.token, got=wrong.got, expected=wrong.expected,
                    culprit=culprit, call=self._call)
        )  # fmt: skip
        if named is not None:
            name = self._tensor.name
            self._explanations.say(
                LocatedDiagnosis(
                    tensor=name, where=printable(name, 64), who=f"kernel at {where}", row=wrong.row, token=wrong.token,
                    block=None, verdict="known fault", wrong=1, outputs=1, faults=(named,),
                    lines=(f"{named.words}. Fix: {named.fix}",), type=self._fmt.name, call=self._call,
                )
            )  # fmt: skip


def _some(count: int, seed: int) -> list[int]:
    """A few numbers below `count`: the first, the last, random ones."""
    if count <= _JUDGED:
        return list(range(count))
    between = np.random.default_rng(seed).integers(1, count - 1, _JUDGED - 2)
    return [0, *map(int, between), count - 1]


def repeated(of: SparseProduct, epilogue: Epilogue, fmt: BlockFormat, output: str) -> dict[str, Repeated]:
    """The repeating numbers in the fused operands.

    Args:
        output: the type of the product's output.
    """
    rows, tokens = of.rows(range(_ROWS)), of.tokens(range(_TOKENS))
    places, found = {operation.operand: operation.place for operation in epilogue.operations}, {}
    for name, values in epilogue.operands(fmt, rows, tokens, output).items():
        if places[name] is None:
            others = companions(fmt, of.weights.reshape(-1, fmt.block_bytes))
            found[name] = Repeated(None, np.roll(others, 1, axis=0).reshape(-1))
            continue
        numbers = values.reshape(-1)
        found[name] = Repeated(places[name], numbers[: prime(max(2, len(numbers)))])
    return found
