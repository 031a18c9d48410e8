"""Products that are too large for any machine here: what they would launch, and some of their thread blocks.

An index of 32 bits overflows where the outputs, the weights or the activations pass 2^31 values or bytes. A thread
block takes as long there as it does in a small product, so a few run by themselves (`Kernel.alone`): the first and the
last ones, those near which an index passes a limit, and some random ones. Their outputs are judged by the exact product
at their places. Whether something was not written follows from how many blocks write, and how much.

A thread block can only be judged by itself if it needs no other. That is tried first: at a small size all of them run,
each by itself, and must together give the outputs of the whole launch. Where they do not (parts of sums that are added
up, barriers of the whole grid), or where each block computes too many outputs (it loops over tiles), the report lists
large indices as not covered.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_fields

from ....diagnosis.observed import name_of, observed
from ....formats.tensor_types import WeightFormat
from ....gguf.file import Tensor
from ....hosts.base import Written
from ....kernels.domain import Domain
from ....kernels.interface import Kernel
from ....kernels.launches import Launched, Needs, SparseProduct
from ....results.calls import Call
from ....results.rungs import RungResult
from ....support.errors import EnvironmentFault, KernelFault, KernelFinding
from ...explain import Explanations
from ...index_limits import Huge, huge, large
from ...judging import KERNEL, leave_weak
from ...plan import Probe, wide
from ...run import Run
from ...thread_blocks import SHARE, BlocksAlone, dependence, too_many
from .borders import explained
from .compared_data import with_blocks
from .findings import Findings
from .limits import limit_of, record_limit
from .repeating import RepeatingProducts, Single, Wrong
from .whole import WholeProducts

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Outputs of a thread block, beyond which none is tried.
_MOST_OUTPUTS = 1 << 16
_INDEX = Call(kind="index")
#: Shares of the grid near which thread blocks of a shape run, beside its corners and random ones.
_OF_SHAPE = (0.25, 0.5, 0.75)
#: Outputs of each thread block that are judged: at least these, and as many as have this number of terms.
_JUDGED, _TERMS = 4, 1 << 16
#: Sums into the output, which a product of zero leaves unchanged: unwritten outputs are reported for every other one.
_SHARE_OF_SUMS = 2


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
        self._seed = run.options.seed
        self._findings = Findings(result, tensor, explanations, call)
        self._products = RepeatingProducts(run, fmt, units, like)
        #: K is a multiple of this.
        self.unit = self._products.unit
        self.found = self._findings.found
        #: Of what single thread blocks ran past the limits.
        self._past: set[str] = set()

    # ---- grids -------------------------------------------------------------------------------------------------------

    def check_grids(self, domain: Domain) -> None:
        """Record up to which sizes CUDA would make its launches. Fail the kernel where it would make none."""
        self._findings.call = replace_fields(self._call, kind="grid", m=0, n=0, k=0)
        for m, n, k in wide(domain, self.unit):
            at = f"M={m}, N={n}, K={k}"
            try:
                launches = self._run.kernel.of(self._fmt, m, n, k).launches(self._fmt, m, n, k)
            except KernelFault as error:
                self._findings.fail(Wrong(f"{self._fmt.name} at {at}: {error}", error=error))
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
            self._findings.fail(Wrong(f"{self._fmt.name} at {at}: {refused}"), at, named)

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
        self._findings.call = replace_fields(self._call, kind="index", m=0, n=0, k=0)
        tried = huge(domain, self.unit, *self._products.value_bytes)
        for what in ("M·N", "N·K", "M·K"):
            if not any(size.what == what for size in tried):
                self._leave(what, "its domain ends before")
        dependent: dict[int, str | tuple[Needs, ...]] = {}
        for size in tried:
            try:
                self._check(size, dependent)
            except KernelFault as error:
                words = f"{self._fmt.name} at M={size.m}, N={size.n}, K={size.k}: {error}"
                self._findings.fail(Wrong(words, error=error))
            except EnvironmentFault as error:
                self._leave(size.what, str(error))
            if self.found.wrong:
                return
        for size in (size for size in tried if size.what == "M·K"):
            self._check_quantizer(size)

    def check_whole(self, domain: Domain, patience: float = 1.0) -> None:
        """Run and judge large products whole, for what thread blocks could not show by themselves.

        Args:
            patience: multiplies the seconds that one may take.
        """
        self._findings.call = replace_fields(self._call, kind="index", m=0, n=0, k=0)
        whole = WholeProducts(self._run, self._fmt, self._products, self._findings, self.refused)
        for products in large(domain, self.unit, *self._products.value_bytes):
            if products.what not in self._past and not self.found.wrong and not self._run.budget.spent:
                whole.check(replace(products, seconds=patience * products.seconds), domain)

    def check_shape(self, probe: Probe, number: int, needs: tuple[Needs, ...]) -> bool:
        """Run and judge some thread blocks of a probe; return whether they are correct."""
        (m,), n, k = probe.tokens, probe.n, probe.k
        self._findings.call = replace_fields(self._call, kind="probe", number=number, m=m, n=n, k=k)
        kernel, of = self._run.kernel.of(self._fmt, m, n, k), f"M={m}, N={n}, K={k} ({probe.because})"
        try:
            launched = kernel.only_launch(self._fmt, m, n, k)
            assert isinstance(launched, Launched)
            product = self.sparse(kernel, (m, n, k), needs)
            if probe.data:
                product = with_blocks(product, probe.data)
            wrong, ran = self._tried(kernel, product, launched, _OF_SHAPE)
        except KernelFault as error:
            wrong, ran = Wrong(f"{self._fmt.name} at {of}: {error}", error=error), 0
        except EnvironmentFault as error:
            self.found.not_covered.append((of, str(error)))
            return True
        if wrong is None:
            self.found.indices.append(f"{ran} thread blocks of {of}")
            return True
        words = f"wrong at a size that the code compares with: {probe.because}"
        self._findings.fail(wrong, f"M={m}, N={n}, K={k}", observed("first-taken-branch", words))
        return False

    def _leave(self, what: str, why: str) -> None:
        left = f"{what} of {'2^31 values or bytes' if '·' in what else '2^24'} and more", why
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
            self._past.add(size.what)
            return None
        if isinstance(wrong.error, KernelFinding) and wrong.error.kind == "unaligned":  # it is correct at pages
            return self._findings.fail(wrong, f"M={size.m}, N={size.n}, K={size.k}", name_of(wrong.error))
        # if it is wrong without an overflow too, it is a window of M or N, or a grid that ends
        below = [at for at in size.below if at[0] in kernel.domain.m and at[1] in kernel.domain.n]
        if size.limit == 2**31 and below and all(self._right(kernel, (m, n, size.k), needs) for m, n in below):
            return self._overflows(size, wrong)
        return explained(
            self._findings, self._products, size.what, kernel.domain, (size.m, size.n, size.k), wrong,
            lambda shape: self._right(kernel, shape, needs),
        )  # fmt: skip

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
            wrong = replace(wrong, words=f"{what}: {wrong.words}")
            if right:
                self._overflows(size, wrong)
            else:
                self._findings.fail(wrong, f"M={size.m}, N={size.n}, K={size.k}")
        except EnvironmentFault as error:
            self._leave("M·K of the quantizer", str(error))
        except KernelFault as error:
            self._findings.fail(Wrong(f"{what} at M={size.m}, K={size.k}: {error}", error=error))

    def _quantized(
        self, kernel: Kernel, m: int, k: int, launched: Launched, crossings: tuple[float, ...]
    ) -> tuple[Wrong | None, int]:
        """The first fault of the quantizer's thread blocks, and how many ran."""
        expected, values = self._products.x.view(np.uint32), self._products.values
        words = m * self._products.token_bytes(k) // 4
        blocks = BlocksAlone(
            lambda number: kernel.quantizer_alone(values, m, k, number), launched, words, (self._seed, m, k)
        )
        at = f"M={m}, K={k}"
        for number in blocks.chosen(crossings):
            of = f"{at}: thread block {number:,} of {launched.blocks:,}"
            try:
                written = blocks.of(number)
            except KernelFault as error:
                return Wrong(f"{of}: {error}", error=error), len(blocks.written)
            bad = written.words != expected[written.at % len(expected)]
            if bad.any():
                byte = 4 * int(written.at[bad.argmax()])
                return Wrong(f"{of} writes other codes than the definition's at byte {byte:,}"), len(blocks.written)
        unwritten = blocks.unwritten()
        return None if unwritten is None else Wrong(f"{at}: {unwritten}"), len(blocks.written)

    def sparse(self, kernel: Kernel, shape: tuple[int, int, int], needs: tuple[Needs, ...] = ()) -> SparseProduct:
        """The operands of a product of M, N and K."""
        return self._products.sparse(kernel, shape, needs)

    def _tried(
        self, kernel: Kernel, of: SparseProduct, launched: Launched, crossings: tuple[float, ...]
    ) -> tuple[Wrong | None, int]:
        """The first fault of chosen thread blocks, and how many ran. Raises OracleFault, EnvironmentFault."""
        key, share = (self._seed, of.m, of.n, of.k), _SHARE_OF_SUMS if "output" in of.fused else SHARE

        def run(number: int) -> Written:
            def is_correct(written: Written) -> bool:
                return self._products.judge(of, kernel.order, _outputs(of, number, written), "").wrong is None

            return kernel.alone(replace(of, correct=is_correct), number)

        blocks = BlocksAlone(run, launched, of.m * of.n, key, share)
        return self._wrong(kernel, of, blocks, crossings), len(blocks.written)

    def _wrong(
        self, kernel: Kernel, of: SparseProduct, blocks: BlocksAlone, crossings: tuple[float, ...]
    ) -> Wrong | None:  # fmt: skip
        at = f"{self._fmt.name} at M={of.m}, N={of.n}, K={of.k}"
        outputs = list[Single]()
        for number in blocks.chosen(crossings):
            try:
                outputs += _outputs(of, number, blocks.of(number))
            except KernelFault as error:
                return Wrong(f"{at}: thread block {number:,} of {blocks.launched.blocks:,}: {error}", error=error)
        judged = self._products.judge(of, kernel.order, outputs, f"{at}: ")
        if judged.weak:
            leave_weak(self._result, KERNEL, self._tensor, of.k)
        if judged.wrong is not None:
            return judged.wrong
        unwritten = blocks.unwritten()
        return None if unwritten is None else Wrong(f"{at}: {unwritten}")

    # ---- findings ----------------------------------------------------------------------------------------------------

    def _overflows(self, size: Huge, wrong: Wrong) -> None:
        """Record a fault of a kernel that is correct where no index overflows."""
        where, (m, n) = f"M={size.m}, N={size.n}, K={size.k}", size.small
        words = (
            f"an index or a count overflows 32 bits: right at M={m}, N={n}, K={size.k}, where {size.what} takes less "
            f"than 2^31 values and bytes, and wrong at {where}"
        )
        self._findings.fail(wrong, where, observed("index-past-2^31", words))


def _outputs(of: SparseProduct, number: int, written: Written) -> list[Single]:
    """Some of the outputs of a thread block. Raises KernelFault."""
    tokens, rows = of.places(written.at)
    return [
        Single(f"thread block {number:,}", int(tokens[i]), int(rows[i]), written.words[i])
        for i in _some(len(written.at), max(_JUDGED, _TERMS // of.k), number)
    ]


def _some(count: int, most: int, seed: int) -> list[int]:
    """Numbers below `count`, all or at most so many: the first, the last, random ones."""
    if count <= most:
        return list(range(count))
    between = np.random.default_rng(seed).integers(1, count - 1, most - 2)
    return [0, *map(int, between), count - 1]
