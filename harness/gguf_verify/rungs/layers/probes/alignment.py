"""The alignment of operands that a kernel needs.

A GGUF file aligns a tensor to 32 bytes and CUDA an allocation to 256, but a row of Q4_0 begins at any even address, and
a caller may pass one expert of a tensor, the rows of one GPU, or a view of activations. So kernels are called with
operands that are only aligned as the types of their elements need. A kernel that a GPU stops there ("misaligned
address") computes nothing wrong: what it needs is a limit of the verdict. One that returns other outputs is incorrect,
unless it declares an alignment, which is then all that is tried.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....diagnosis.observed import observed
from ....formats.tensor_types import WeightFormat
from ....gguf.file import Tensor
from ....hosts.choice import HOSTS
from ....hosts.memory import ALIGNMENT
from ....hosts.schedule import Schedule
from ....kernels.interface import Kernel
from ....results.calls import Call
from ....results.diagnoses import FaultMatch
from ....results.failures import Failure
from ....results.rungs import RungResult
from ....semantics.exact import product
from ....semantics.gates import judge
from ....support.errors import EnvironmentFault, KernelFault, KernelFinding, NotRun
from ...explain import Explanations
from ...index_limits import Shape
from ...run import Run
from .findings import named_fault

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
#: Weights uint8[N, row bytes] and activations float32[M, K].
Inputs = tuple[Bytes, Floats]
#: Operand → the bytes of which its address is a multiple.
Least = Mapping[str, int]

#: Shapes of the plan at which a checked build runs, of either kind; their divisor if they are round; and the most
#: multiplications.
_SHAPES, _ROUND, _MOST_WORK = 5, 64, 1 << 21

_CHECKED = Schedule(checked=True)

#: Findings at which a launch on a GPU ends, or on which the compiler may rely. After any other the caller has outputs.
_STOPS = ("misaligned", "assumption", "operand", "limit")


@dataclass(frozen=True)
class Needed:
    """Operands that must begin at a multiple of more bytes than their types need.

    Args:
        operands: their names: one, or several with which a call only fails together.
        alignment: in bytes.
        fault: of a call with less.
    """

    operands: tuple[str, ...]
    alignment: int
    fault: KernelFault

    @property
    def stops(self) -> bool:
        """Whether such a call has no outputs, rather than incorrect ones."""
        if not isinstance(self.fault, KernelFinding) or self.fault.kind in _STOPS:
            return True
        return "outside its buffers" in self.fault.words and not self.fault.lines  # the process ended there

    @property
    def scope(self) -> str:
        """As the headline of a pass names it."""
        return f"{' and '.join(self.operands)} at multiples of {self.alignment} bytes"

    @property
    def declaration(self) -> str:
        """What declares it."""
        return " or ".join(f"operands.{name}.alignment = {self.alignment}" for name in self.operands)

    @property
    def words(self) -> str:
        """The verified range, the reason, and the cure."""
        names = " and ".join(self.operands)
        needs = f"{names} must begin at a multiple of {self.alignment} bytes ({self.fault})"
        if len(self.operands) > 1:
            needs = f"one of {needs}; a call only fails if none does"
        return f"{needs}: declare {self.declaration}, or load in smaller units"

    @property
    def named(self) -> FaultMatch:
        """The fault of a kernel whose outputs are incorrect."""
        at, names = f"at a multiple of {self.alignment} bytes", " and ".join(self.operands)
        words = f"outputs change if the operand {names} does not begin {at}"
        if len(self.operands) > 1:
            words = f"outputs change only together: if none of the operands {names} begins {at}"
        fix = f"handle each address that the type allows, or declare {self.declaration}"
        return observed("unaligned-operand", words, fix)


@dataclass(frozen=True)
class Alignments:
    """The addresses at which a kernel can be called.

    Args:
        least: of the operands of which smaller alignments than 16 are tried.
        needed: the operands that need more than their types do.
        untried: why nothing is known; None if it is.
    """

    least: Least
    needed: tuple[Needed, ...] = ()
    untried: str | None = None


class Addresses:
    """The addresses at which the kernel of one type is called.

    Args:
        run, result, explanations: of the rung.
        tensor: the first matrix of the type, for the names of failures.
        fmt: the type.
    """

    def __init__(
        self, run: Run, result: RungResult, tensor: Tensor, fmt: WeightFormat, explanations: Explanations
    ) -> None:  # fmt: skip
        self._result, self._tensor, self._fmt = result, tensor, fmt
        #: The run whose kernel gets operands at multiples of 16 bytes.
        self.plain = run
        self._explanations = explanations
        #: Operand → the bytes of which its address is a multiple, of those that are called with less than 16.
        self.least: Least = {}
        #: The run whose kernel is called with these.
        self.run = run

    def find(self, inputs: Sequence[Inputs], call: Call | None) -> str | None:
        """Call the kernel with operands of the alignments that their types need; if that fails, with each operand by
        itself, and with larger ones.

        Args:
            inputs: of the calls.
            call: of which a failure is; None: record nothing.

        Returns why nothing is known; None if it is.
        """

        tried = list(inputs)

        def fault(least: Least) -> KernelFault | None:
            for i, (rows, x) in enumerate(tried):
                if (found := fault_at(self.plain, self._fmt, rows, x, least)) is not None:
                    tried.insert(0, tried.pop(i))  # which fails with other alignments too
                    return found
            return None

        kernel = self.plain.kernel.of(self._fmt, 1, 1, self._fmt.unit)
        found = needed_of(kernel.alignments(self._fmt), fault)
        self._use(found, call)
        return found.untried

    def raise_for(self, rows: Bytes, x: Floats, call: Call) -> bool:
        """Whether a call that failed only needs larger alignments, which later calls get.

        Args:
            rows, x: weights uint8[N, row bytes] and activations float32[M, K].
        """
        found = needed_of(self.least, lambda least: fault_at(self.plain, self._fmt, rows, x, least, False), True)
        if found.needed:
            self._use(found, call)
        return bool(found.needed)

    def _use(self, found: Alignments, call: Call | None) -> None:
        self.least, kernel = found.least, self.plain.kernel.placed(found.least, mixed=True)
        self.run = replace(self.plain, kernel=kernel)
        for needed in found.needed if call is not None else ():
            if needed.stops:
                self._result.omit("alignment", needed.words, needed.scope)
                continue
            named, name = needed.named, self._tensor.name
            words = f"{self._fmt.name}: {named.words} ({needed.fault})"
            self._result.fail(Failure(words, name, culprit="kernel", call=call))
            assert call is not None
            self._explanations.say(named_fault(self._tensor, "kernel at other addresses", named, call, 0, 0))


def spread(shapes: Iterable[Shape]) -> list[Shape]:
    """Some of the shapes (M, N, K) that are cheap and far apart by their logarithms, from the largest M on; and as many
    with round N and K, which vectors and tiles take.

    An ordinary build on a CPU loads what a GPU refuses to load, so a checked one has to reach each part of the code.
    """
    cheap = sorted({shape for shape in shapes if math.prod(shape) <= _MOST_WORK}, reverse=True)
    round_ones = [shape for shape in cheap if shape[1] % _ROUND == shape[2] % _ROUND == 0]
    found = list[Shape]()
    for candidates in (cheap, round_ones):
        sizes, chosen = np.log2(np.array(candidates, float).reshape(-1, 3)), list[int]()
        for _ in range(min(_SHAPES, len(candidates))):
            apart = ((sizes[:, None] - sizes[chosen]) ** 2).sum(axis=2)
            chosen.append(int(np.argmax(apart.min(axis=1))) if chosen else 0)
        found += [candidates[i] for i in chosen]
    return list(dict.fromkeys(found))


def needed_of(least: Least, fault: Callable[[Least], KernelFault | None], singly: bool = False) -> Alignments:
    """The smallest alignments of operands with which a call has no fault.

    Args:
        least: what their types need.
        fault: of the call with such operands, the others at multiples of 16 bytes; None if it is correct.
        singly: also try each operand alone if all together have no fault.
    """
    try:
        ways = [least, *({name: n} for name, n in least.items() if singly)] if least else []
        found = next((found for way in ways if (found := fault(way)) is not None), None)
        if found is None:
            return Alignments(least)
        if fault({}) is not None:  # which other checks report
            return Alignments({}, untried="the kernel fails at any address")
        needed, fitting = list[Needed](), dict(least)
        for name, begin in least.items():
            alignment, why = begin, found
            while alignment < ALIGNMENT and (other := fault({name: alignment})) is not None:
                alignment, why = 2 * alignment, other
            if alignment > begin:
                needed.append(Needed((name,), alignment, why))
                fitting[name] = alignment
        fitting = {name: n for name, n in fitting.items() if n < ALIGNMENT}
        together = found if not needed else fault(fitting) if fitting else None
        while together is not None:
            group = fitting
            for name in fitting:
                fewer = {other: n for other, n in group.items() if other != name}
                if fewer and fault(fewer) is not None:
                    group = fewer
            needed.append(Needed(tuple(group), ALIGNMENT, together))
            fitting = {name: n for name, n in fitting.items() if name not in group}
            together = fault(fitting) if fitting else None
    except NotRun as error:
        return Alignments({}, untried=str(error))
    return Alignments(fitting, tuple(needed))


def fault_at(
    run: Run, fmt: WeightFormat, rows: Bytes, x: Floats, least: Least, checked: bool = True
) -> KernelFault | None:  # fmt: skip
    """The fault of a product with operands of these alignments, or None.

    Args:
        checked: on the CPU host, a checked build runs too.

    Raises NotRun.
    """
    kernel = run.kernel.placed(least).of(fmt, len(x), len(rows), x.shape[1])
    try:
        under = kernel.under(_CHECKED) if checked and is_checked(run, fmt) else None
        if under is not None:
            with contextlib.suppress(EnvironmentFault):  # there is none here
                under.product(under.upload(fmt, rows), x)
        y = kernel.product(kernel.upload(fmt, rows), x)
    except NotRun:
        raise
    except KernelFault as error:
        if error.late:
            raise NotRun(str(error)) from None
        return error
    return incorrect(run, fmt, kernel, rows, x, y)


def is_checked(run: Run, fmt: WeightFormat) -> bool:
    """Whether a checked build of the kernel runs on a CPU, which tolerates what a GPU does not."""
    return HOSTS[run.kernel.host.name].emulated and run.kernel.of(fmt, 1, 1, fmt.unit).under(_CHECKED) is not None


def incorrect(
    run: Run, fmt: WeightFormat, kernel: Kernel, rows: Bytes, x: Floats, y: Floats
) -> KernelFault | None:  # fmt: skip
    """The fault of outputs y[M, N] of which one is outside the bound; or None."""
    semantics = run.semantics(fmt)
    judgement = judge(y, product(semantics, fmt, rows, semantics.bytes_of(x), kernel.order))
    if judgement.passed:
        return None
    m, n = (int(i) for i in np.argwhere(judgement.bad)[0])
    return KernelFinding("address", f"an output is outside the bound, the first at row {n} token {m}: {y[m, n]:.9g}")
