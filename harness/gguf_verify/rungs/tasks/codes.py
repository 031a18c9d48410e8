"""The codes rung, of kernels that quantize activations: is every byte the one that the encoding says?

The kernel gets the activations of the model's own graph, as llama.cpp computes them for the prompt; then, at the
numbers of tokens and columns of the probe plan, random ones, ties of codes, values of every size, zeros of both signs,
outliers, and blocks with NaN and infinities beside others. `semantics.quantization` says which bytes are right.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Iterator
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from ...formats.element import SLICE
from ...gguf.file import Tensor
from ...gguf.matrices import may_be_matrix
from ...hosts.schedule import Schedule
from ...kernels.tasks import Quantizer
from ...llama.evaluations import Evaluation
from ...llama.process import LlamaRefused
from ...results.calls import Call
from ...results.failures import MAX_HEX_BYTES, Failure
from ...results.rungs import RungResult
from ...semantics.dequantization import rounded_float32
from ...semantics.quantization import QuantizerCheck, check_bytes, encoding, encodings, only_defined, unit_of
from ...support.errors import KernelFault, NotRun, NotTried
from ...support.text import counted, printable
from ..generated_inputs import drawn, every_size, special, ties_of_codes
from ..plan import shapes_of
from ..rounds import leave, rounds
from ..run import Run
from .judge import Found, TaskCall, TaskJudge
from .large import REPEATED, Repeating

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Bytes of a value of each type of activations.
_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Wrong blocks of one call that are recorded one by one.
_PER_CALL = 3
#: Columns of the calls with special values, in units of 32.
_COLUMNS = (1, 9, 24)


class Codes(TaskJudge):
    """The rung of a quantizer: its bytes are compared with its encoding by `semantics.quantization.check_bytes`."""

    kernel: Quantizer
    never_covered = (("blocks with NaN or infinities", "no definition says what they are"),)

    def __init__(self, run: Run, result: RungResult) -> None:
        super().__init__(run, result)
        self._encoding = encoding(self.kernel.encoding)
        fmt = self._encoding.format
        assert fmt is not None
        #: Values that rows are multiples of, and those of a block.
        self._size, self._block = unit_of(self._encoding), fmt.block_size
        self._found, self._explained = Found(self.kernel.encoding), False
        #: Random activations have the size of these.
        self._like = np.ones((1, 32), np.float32)
        if self.only is None and self.kernel.fast_math:
            for name in ("ambiguous codes", "codes off by one step", "scales off"):
                self.result.figures[name] = 0

    def found(self, tensor: Tensor) -> Found:
        """There is one encoding, and one record."""
        return self._found

    def outputs(self, call: TaskCall, given: Floats, kernel: Quantizer) -> Bytes:
        """The bytes of activations."""
        return kernel.quantize(given)

    def report(self) -> None:
        """Nothing more."""

    # ---- the model's own activations ---------------------------------------------------------------------------------

    def of_model(self) -> Generator[None, None, list[Tensor]]:
        """The activations of the model's products."""
        matrices = [t for t in self.run.selected() if may_be_matrix(t)]
        if self.only is None or self.only.kind == "tensor":
            try:
                yield from self.graph(matrices)
            except LlamaRefused as error:
                self.result.leave_all("activations of the model", str(error), error.culprit)
        return matrices[:1]

    def graph(self, matrices: list[Tensor]) -> Generator[None]:
        """The activations of the products with these, each once. Raises LlamaRefused."""
        run, result, seen = self.run, self.result, set[bytes]()
        tensors, settled, refused, uses = {t.name: t for t in matrices}, set[str](), set[str](), dict[str, int]()
        for turn in rounds(run, tensors, settled):
            for gemm in turn.progress(run, "codes", run.session.llama.capture(run.session.prompt)):
                yield
                if isinstance(gemm, Evaluation):
                    if turn.first:
                        settled |= {t.name for t in run.selected()} - uses.keys()
                    continue
                tensor = run.model.tensors.get(gemm.tensor)
                if tensor is None or not run.wants(gemm.tensor):
                    continue
                uses.setdefault(gemm.tensor, -1)
                if not turn.chooses(gemm.tensor):
                    continue
                if run.budget.spent:
                    refused.add(gemm.tensor)
                    continue
                use = uses[gemm.tensor] = uses[gemm.tensor] + 1
                digest = hashlib.sha256(gemm.x.tobytes() + bytes(str(gemm.x.shape), "ascii")).digest()
                call = Call(kind="tensor", number=use, m=len(gemm.x), k=gemm.x.shape[1])
                if digest in seen or not self.wants(call) or self.broken:
                    continue
                seen.add(digest)
                if gemm.x.shape[1] % self._size:
                    result.skip("products whose rows are no whole blocks of the encoding")
                    continue
                self.activations(call, tensor, gemm.x)
        leave(run, result, tensors, {*turn.waiting, *refused} - settled)

    def activations(self, call: Call, tensor: Tensor, x: Floats) -> None:
        """Activations of the graph, in calls of numbers of tokens that the domain allows."""
        self._like = x if np.isfinite(x).all() else self._like
        domain = self.kernel.domain
        if (why := domain.outside(domain.n.up(1) or 1, x.shape[1])) is not None:
            self.result.leave(tensor.name, f"kernel {self.kernel.name} is not called: {why}")
            return
        at = 0
        for wanted, given in domain.m.parts(len(x)):
            part = x[at + np.arange(given) % wanted]
            self.correct(
                self._call(call, tensor, f"the model's activations, {counted(given, 'tokens')} from {at}", part, at)
            )
            at += wanted

    # ---- others ------------------------------------------------------------------------------------------------------

    def _call(self, call: Call, tensor: Tensor, values: str, x: Floats, start: int | None = None) -> TaskCall:
        """A call with activations as the kernel gets them, rounded to its type."""
        words = f"{values}: at {counted(len(x), 'tokens')}, K = {x.shape[1]}"
        return TaskCall(call, tensor, partial(self._held, x), words, values, start)

    def _held(self, x: Floats) -> Floats:
        return rounded_float32(np.ascontiguousarray(x, np.float32), self.kernel.takes)

    def plan(self, tensor: Tensor) -> Iterator[TaskCall]:
        """Random activations of every size, and special ones."""
        domain, like, seed, numbers = self.kernel.domain, self._like, self.seed, count()

        def random(m: int, k: int) -> Floats:
            x = drawn((m, k), like, seed)
            x[-1:] = ties_of_codes(k)
            return self._held(x)

        for m, k in dict.fromkeys((m, k) for m, _, k in shapes_of(domain, self._size, seed, self.brief)):
            call = Call(kind="probe", number=next(numbers), m=m, k=k)
            yield TaskCall(call, tensor, partial(random, m, k), f"drawn: at {counted(m, 'tokens')}, K = {k}", "drawn")
        wide = [k for k in (-(-c * 32 // self._size) * self._size for c in _COLUMNS) if k in domain.k]
        for k in dict.fromkeys(wide):
            for name, values in (
                ("every size", every_size(k)), ("special", special(k, like)), ("not finite", _not_finite(k, like)),
                ("outliers", _outliers(k, like)), ("normal", _normal(k, seed)),
            ):  # fmt: skip
                at = 0
                for wanted, given in domain.m.parts(len(values)):
                    some = values[at + np.arange(given) % wanted]
                    yield self._call(Call(kind="probe", number=next(numbers), m=given, k=k), tensor, name, some)
                    at += wanted

    def small(self, tensor: Tensor) -> Iterator[TaskCall]:
        """Random activations."""
        for m, _, k in self.small_shapes(self._size):
            make = partial(self._held, drawn((m, k), self._like, self.seed))
            yield TaskCall(Call(kind="schedule", m=m, k=k), tensor, make, f"at {counted(m, 'tokens')}, K = {k}")

    def repeating(self, tensor: Tensor) -> Repeating:
        """Calls in which values repeat."""
        unit = math.lcm(SLICE, self._size, self._block)
        values = self._held(drawn((1, REPEATED * unit), self._like, self.seed))
        period = values.size // self._block * self._encoding.row_bytes(self._block)

        def activations(m: int, k: int) -> Floats:
            return np.resize(values, (m, k))

        def outputs(m: int, k: int) -> Bytes:
            return self.kernel.quantize(activations(m, k)).reshape(-1)

        return Repeating(
            "M·K", unit, float(_ITEMSIZE[self.kernel.takes]), values.size, period, activations, outputs,
            partial(self.kernel.large, values),
        )  # fmt: skip

    # ---- judging -----------------------------------------------------------------------------------------------------

    def correct(self, of: TaskCall) -> bool:
        """Make a call, and judge its bytes."""
        x = of.make()
        made = self.make(of, partial(self._made, x))
        if made is None:
            return False
        right = [self._right(of, given, got) for given, got in made]
        return all(right)

    def _right(self, of: TaskCall, x: Floats, got: Bytes) -> bool:
        """Whether the bytes are correct. Wrong ones are recorded."""
        tensor = of.tensor
        checked = check_bytes(self._encoding, x, got, self.kernel.ordered, self.kernel.fast_math, _PER_CALL)
        self._count(checked, of.start is not None)
        hint = self._explain() if checked.n_wrong else ""
        for i, wrong in enumerate(checked.wrong):
            row = x[wrong.m, wrong.block * self._block : (wrong.block + 1) * self._block]
            self.result.fail(
                Failure(
                    f"{printable(tensor.name, 64)}: {of.words}: token {wrong.m} block {wrong.block}: {wrong.what}"
                    f"{'' if i else hint}",
                    tensor.name, None, None, wrong.m, got=wrong.got, expected=wrong.expected, call=of.call,
                    activation_type="F32", activation_hex=row.tobytes()[:MAX_HEX_BYTES].hex(),
                )
            )  # fmt: skip
        self.result.fail_more("kernel", checked.n_wrong - len(checked.wrong), tensor.name)
        return not checked.n_wrong

    def _made(self, x: Floats) -> list[tuple[Floats, Bytes]]:
        """Activations and the kernel's bytes of them.

        A host that does not convert as a GPU does may not run a right kernel on blocks whose codes no definition gives.
        Where these alone are the reason, the kernel is run without them, and on all with the host's own conversions, so
        that what such blocks do to others is judged.
        """
        try:
            return [(x, self.kernel.quantize(x))]
        except NotRun as error:
            rest = only_defined(self._encoding, x, self.kernel.fast_math)
            converting = self.kernel.under(Schedule(converts=True))
            if not isinstance(converting, Quantizer) or rest.tobytes() == x.tobytes():
                raise
            omitted = ("blocks with codes that no definition gives", str(error))
            if omitted not in self._found.not_covered:
                self._found.not_covered.append(omitted)
            try:
                return [(rest, self.kernel.quantize(rest)), (x, converting.quantize(x))]
            except NotTried:
                raise error from None

    def _explain(self) -> str:
        """Which other encoding a kernel that was wrong makes, or what else explains it, by values on which encodings
        differ; once."""
        k = next((k for k in (self.kernel.domain.k.up(k) for k in (1024, self._size)) if k and not k % self._size), 0)
        m = self.kernel.domain.m.up(16) or self.kernel.domain.m.down(16)
        if self._explained or not k or not m:
            return ""
        self._explained = True
        from ...diagnosis.identify import known_inputs

        x = self._held(known_inputs(m, k))
        try:
            got = self.kernel.quantize(x)
        except KernelFault:
            return ""
        for name in encodings():
            other = encoding(name)
            if name == self.kernel.encoding or k % unit_of(other) or other.row_bytes(k) != got.shape[1]:
                continue
            if not check_bytes(encoding(name), x, got).n_wrong:
                return f'. It gives the bytes of activations = "{name}": declare that, or mend the kernel'
        if not self.kernel.fast_math and not check_bytes(self._encoding, x, got, self.kernel.ordered, True).n_wrong:
            return (
                ". Codes that are wrong lie within a few units in the last place of a rounding boundary: ties are "
                "rounded in another way, or the division is approximate (if it is built so: fast_math = true)"
            )
        return ""

    def _count(self, checked: QuantizerCheck, of_model: bool) -> None:
        result = self.result
        if self.only is None:
            result.count("blocks" if of_model else "blocks of probes", checked.blocks)
            result.count("codes", checked.codes)
        counts = {
            "codes that no definition gives": checked.undefined, "ambiguous codes": checked.ambiguous,
            "codes off by one step": checked.moved, "scales off": checked.scales_moved,
            "sums of another order": checked.other_sums,
        }  # fmt: skip
        for name, n in counts.items():
            if n or name in result.figures:
                result.figures[name] = result.figures.get(name, 0) + n


def _normal(k: int, seed: int) -> Floats:
    """float32[64, K]: many values, for codes at the edges that are seldom met."""
    return np.random.default_rng((seed, 3)).standard_normal((64, k)).astype(np.float32)


def _outliers(k: int, like: Floats) -> Floats:
    """float32[4, K]: one value of each row is a hundred to 10^5 times the others."""
    values = drawn((4, k), like, 11)
    values[np.arange(4), np.arange(4) * 7 % k] *= np.float32(10.0) ** np.arange(2, 6)
    return np.clip(values, -3e4, 3e4)


def _not_finite(k: int, like: Floats) -> Floats:
    """float32[3, K]: a NaN, an infinity of each sign; what they do to other blocks is judged."""
    values = drawn((3, k), like, 13)
    values[0, 0], values[1, k // 2], values[2, k - 1] = np.nan, np.inf, -np.inf
    return values
