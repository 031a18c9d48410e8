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

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ...formats import SLICE
from ...gguf.file import Tensor
from ...gguf.matrices import may_be_matrix
from ...hosts.schedule import Schedule
from ...kernels.tasks import Quantizer
from ...llama import Evaluation, LlamaRefused
from ...results.calls import Call
from ...results.failures import MAX_HEX_BYTES, Failure
from ...results.rungs import RungResult
from ...semantics.dequantization import rounded_float32
from ...semantics.quantization import QuantizerCheck, check_bytes, encoding, encodings, only_defined, unit_of
from ...support.errors import KernelFault, NotRun, NotTried
from ...support.text import printable
from ..calls import begin_alone, end_alone
from ..course import Course
from ..generated_inputs import drawn, every_size, special, ties_of_codes
from ..interface import Rung, Steps
from ..run import Run
from .calls import Found, Probe, TaskCalls, shapes_of, small_shapes
from .large import REPEATED, LargeTask, check_large, columns_of, few, sizes_of

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Bytes of a value of each type of activations.
_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Wrong blocks of one call that are recorded one by one.
_PER_CALL = 3
#: Columns of the calls with special values, in units of 32.
_COLUMNS = (1, 9, 24)


def check(run: Run, result: RungResult) -> Steps:
    """Judge the kernel's bytes. Raises EnvironmentFault if llama.cpp crashes."""
    only = begin_alone(run, result)
    rung = _Codes(TaskCalls(run, result, only))
    like = np.ones((1, 32), np.float32)
    matrices = [t for t in run.selected() if may_be_matrix(t)]
    if only is None or only.kind == "tensor":
        try:
            like = yield from rung.graph(like)
        except LlamaRefused as error:
            result.leave_all("activations of the model", str(error), error.culprit)
    rung.probes(matrices[0], like)
    if only is not None:
        end_alone(result, only)


RUNG = Rung(
    "codes", 2, "Is every byte of quantized activations the one that the encoding says?", ("blocks",), check,
    ("quantize",),
)  # fmt: skip


class _Codes:
    def __init__(self, calls: TaskCalls) -> None:
        assert isinstance(calls.kernel, Quantizer)
        self._calls, self._result, self._kernel = calls, calls.result, calls.kernel
        self._encoding = encoding(calls.kernel.encoding)
        fmt = self._encoding.format
        assert fmt is not None
        #: Values that rows are multiples of, and those of a block.
        self._size, self._block, self._name = unit_of(self._encoding), fmt.block_size, calls.kernel.encoding
        self._found, self._explained = Found(self._name), False
        if self._calls.only is None and self._kernel.fast_math:
            for name in ("ambiguous codes", "codes off by one step", "scales off"):
                self._result.figures[name] = 0

    # ---- the model's own activations ---------------------------------------------------------------------------------

    def graph(self, like: Floats) -> Generator[None, None, Floats]:
        """The activations of the model's products, each once; returns some of them. Raises LlamaRefused."""
        run, result, seen = self._calls.run, self._result, set[bytes]()
        uses: dict[str, int] = {}
        course = Course(run, {t.name: t for t in run.selected() if may_be_matrix(t)})
        captures = course.through(lambda: run.session.llama.capture(run.session.prompt))
        for gemm in course.products("codes", captures):
            yield
            if isinstance(gemm, Evaluation):
                if not course.again:
                    course.settle({t.name for t in run.selected()} - uses.keys())
                continue
            tensor = run.model.tensors.get(gemm.tensor)
            if tensor is None or not run.wants(gemm.tensor):
                continue
            uses.setdefault(gemm.tensor, -1)
            if not course.takes(gemm.tensor, gemm.first_row, run.bytes_of(gemm)):
                continue
            use = uses[gemm.tensor] = uses[gemm.tensor] + 1
            digest = hashlib.sha256(gemm.x.tobytes() + bytes(str(gemm.x.shape), "ascii")).digest()
            call = Call(kind="tensor", number=use, m=len(gemm.x), k=gemm.x.shape[1])
            if digest in seen or not self._calls.wants(call) or self._calls.broken:
                continue
            seen.add(digest)
            if gemm.x.shape[1] % self._size:
                result.skip("products whose rows are no whole blocks of the encoding")
                continue
            like = gemm.x if not seen or np.isfinite(gemm.x).all() else like
            self._parts(call, tensor, gemm.x)
        course.leave(result)
        return like

    def _parts(self, call: Call, tensor: Tensor, x: Floats) -> None:
        """Activations of the graph, in calls of numbers of tokens that the domain allows."""
        if (why := self._calls.kernel.domain.outside(self._kernel.domain.n.up(1) or 1, x.shape[1])) is not None:
            self._result.leave(tensor.name, f"kernel {self._kernel.name} is not asked: {why}")
            return
        at = 0
        for wanted, given in self._kernel.domain.m.parts(len(x)):
            part = x[at + np.arange(given) % wanted]
            self._judge(call, tensor, part, f"the model's activations, {given} tokens from {at}")
            at += wanted

    # ---- others ------------------------------------------------------------------------------------------------------

    def probes(self, tensor: Tensor, like: Floats) -> None:
        """Judge the probes. Failures name the tensor."""
        found = self._found
        self._calls.probes(
            found, self._plan(like), lambda call, probe: self._judge(call, tensor, probe.make(), probe.values)
        )
        self._calls.under_schedules(tensor, self._scheduled(tensor, like))
        sizes = sizes_of(self._kernel.domain, self._unit, "M·K", float(_ITEMSIZE[self._kernel.takes]))
        check_large(self._calls, found, tensor, sizes, lambda call: self._large(call, tensor, like))
        if self._calls.only is None:
            found.not_covered.append(("blocks with NaN or infinities", "no definition says what they are"))
            self._calls.record(found)

    @property
    def _unit(self) -> int:
        return math.lcm(SLICE, self._size, self._block)

    def _large(self, call: Call, tensor: Tensor, like: Floats) -> LargeTask | None:
        """Calls in which values repeat; None if a small one is wrong, or if there is none."""
        domain, kernel, seed = self._kernel.domain, self._kernel, self._calls.run.options.seed
        values = self._held(drawn((1, REPEATED * self._unit), like, seed))
        k, some = columns_of(domain.k, self._unit), few(domain.m)
        m = None if k is None else domain.m.up(-(-values.size // k))
        if k is None or m is None or some is None:
            return None

        def whole(m: int, k: int) -> npt.NDArray[np.uint32]:
            blocks = kernel.quantize(np.resize(values, (m, k))).reshape(-1)
            return blocks[: blocks.size // 4 * 4].view("<u4")  # whole words

        if not self._judge(structs.replace(call, m=m, k=k), tensor, np.resize(values, (m, k)), "values that repeat"):
            return None
        nbytes = values.size // self._block * self._encoding.row_bytes(self._block)
        made = kernel.quantize(np.resize(values, (m, k))).reshape(-1)[:nbytes]
        expected = np.tile(made, 4 // math.gcd(4, nbytes)).view("<u4")  # whole words
        return LargeTask(partial(kernel.large, values), whole, expected, (some, k), seed)

    def _plan(self, like: Floats) -> Iterator[Probe]:
        options, domain = self._calls.run.options, self._kernel.domain
        seed = options.seed
        sizes = dict.fromkeys((m, k) for m, _, k in shapes_of(domain, self._size, seed, options.probes == "brief"))
        for m, k in sizes:
            x = drawn((m, k), like, seed)
            x[-1:] = ties_of_codes(k)
            yield Probe("drawn", k, partial(self._held, x), m=m)
        wide = [k for k in (-(-c * 32 // self._size) * self._size for c in _COLUMNS) if k in domain.k]
        for k in dict.fromkeys(wide):
            for name, values in (
                ("every size", every_size(k)), ("special", special(k, like)), ("not finite", _not_finite(k, like)),
                ("outliers", _outliers(k, like)), ("normal", _normal(k, seed)),
            ):  # fmt: skip
                at = 0
                for wanted, given in domain.m.parts(len(values)):
                    some = values[at + np.arange(given) % wanted]
                    yield Probe(name, k, partial(self._held, some), m=given)
                    at += wanted

    def _held(self, x: Floats) -> Floats:
        """The values as the kernel gets them, rounded to its type."""
        return rounded_float32(np.ascontiguousarray(x, np.float32), self._kernel.takes)

    def _scheduled(self, tensor: Tensor, like: Floats) -> Iterator[tuple[Call, str, partial[Bytes]]]:
        for m, _, k in small_shapes(self._kernel.domain, self._size, self._calls.run.options.seed):
            x = self._held(drawn((m, k), like, self._calls.run.options.seed))
            words = f"{printable(tensor.name, 64)}: at {m} tokens, K = {k}"
            yield Call(kind="schedule", m=m, k=k), words, partial(_quantized, x)

    # ---- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, call: Call, tensor: Tensor, x: Floats, words: str) -> bool:
        x = self._held(x)
        what = f"{words}: at {len(x)} tokens, K = {x.shape[1]}"
        made = self._calls.make(call, tensor, what, partial(self._made, x))
        if made is None:
            return False
        right = [self._right(call, tensor, what, given, got) for given, got in made]
        return all(right)

    def _right(self, call: Call, tensor: Tensor, what: str, x: Floats, got: Bytes) -> bool:
        """Whether the bytes are correct. Wrong ones are recorded."""
        checked = check_bytes(self._encoding, x, got, self._kernel.ordered, self._kernel.fast_math, _PER_CALL)
        self._count(checked, what.startswith("the model's"))
        hint = self._explain() if checked.n_wrong else ""
        for i, wrong in enumerate(checked.wrong):
            row = x[wrong.m, wrong.block * self._block : (wrong.block + 1) * self._block]
            self._result.fail(
                Failure(
                    f"{printable(tensor.name, 64)}: {what}: token {wrong.m} block {wrong.block}: {wrong.what}"
                    f"{'' if i else hint}",
                    tensor.name, None, None, wrong.m, got=wrong.got, expected=wrong.expected, call=call,
                    activation_type="F32", activation_hex=row.tobytes()[:MAX_HEX_BYTES].hex(),
                )
            )  # fmt: skip
        self._result.fail_more("kernel", checked.n_wrong - len(checked.wrong), tensor.name)
        return not checked.n_wrong

    def _made(self, x: Floats) -> list[tuple[Floats, Bytes]]:
        """Activations and the kernel's bytes of them.

        A host that does not convert as a GPU does may not run a right kernel on blocks whose codes no definition gives.
        Where these alone are the reason, the kernel is run without them, and on all with the host's own conversions, so
        that what such blocks do to others is judged.
        """
        try:
            return [(x, self._kernel.quantize(x))]
        except NotRun as error:
            rest = only_defined(self._encoding, x, self._kernel.fast_math)
            converting = self._kernel.under(Schedule(converts=True))
            if not isinstance(converting, Quantizer) or rest.tobytes() == x.tobytes():
                raise
            omitted = ("blocks with codes that no definition gives", str(error))
            if omitted not in self._found.not_covered:
                self._found.not_covered.append(omitted)
            try:
                return [(rest, self._kernel.quantize(rest)), (x, converting.quantize(x))]
            except NotTried:
                raise error from None

    def _explain(self) -> str:
        """Which other encoding a kernel that was wrong makes, or what else explains it, by values on which encodings
        differ; once."""
        k = next((k for k in (self._kernel.domain.k.up(k) for k in (1024, self._size)) if k and not k % self._size), 0)
        m = self._kernel.domain.m.up(16) or self._kernel.domain.m.down(16)
        if self._explained or not k or not m:
            return ""
        self._explained = True
        from ...diagnosis.identify import known_inputs

        x = self._held(known_inputs(m, k))
        try:
            got = self._kernel.quantize(x)
        except KernelFault:
            return ""
        for name in encodings():
            other = encoding(name)
            if name == self._name or k % unit_of(other) or other.row_bytes(k) != got.shape[1]:
                continue
            if not check_bytes(encoding(name), x, got).n_wrong:
                return f'. It gives the bytes of activations = "{name}": declare that, or mend the kernel'
        if not self._kernel.fast_math and not check_bytes(self._encoding, x, got, self._kernel.ordered, True).n_wrong:
            return (
                ". Codes that are wrong lie within a few units in the last place of a rounding boundary: ties are "
                "rounded in another way, or the division is approximate (if it is built so: fast_math = true)"
            )
        return ""

    def _count(self, checked: QuantizerCheck, of_model: bool) -> None:
        result = self._result
        if self._calls.only is None:
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


def _quantized(x: Floats, kernel: Quantizer) -> Bytes:
    return kernel.quantize(x)


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
