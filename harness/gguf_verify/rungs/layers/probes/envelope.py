"""Running a kernel at the shapes, weights and activations of the probe plan, once for each type of weights.

The plan is in `plan`; here each probe is made of the type's own blocks, run and judged by the exact product, like a
GEMM of the graph. What was covered, and what was not, is recorded: a report states for what it holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import UNSET
from msgspec.structs import replace

from ....checks import ALONE
from ....checks import OTHER_SHAPES as OTHER_OUTPUTS
from ....formats.block import BlockFormat
from ....formats.q8_1 import Q8_1
from ....formats.tensor_types import WeightFormat
from ....gguf.file import Tensor
from ....kernels.domain import EVERYTHING, Domain, Extent
from ....kernels.interface import Kernel, Weights
from ....results.calls import Call
from ....results.failures import Failure
from ....results.margins import Side
from ....results.products import TypeEnvelope
from ....results.rungs import RungResult
from ....semantics.order import Order
from ....semantics.sums import Product
from ....support.errors import KernelFault, NotRun
from ....support.text import counted, printable
from ...calls import calling
from ...explain import Explanations, Place, WrongCall
from ...generated_inputs import representable
from ...judging import Output, judge_output
from ...plan import ENCODED, PLAN, Probe, in_words, plan, shapes_in_turn
from ...remade import KernelCall
from ...run import Run
from ...schedules import BRIEF
from .call_counts import MOST
from .compared import ComparedProbes, compared_again, compared_probes
from .findings import HugeFound, named_fault
from .huge import HugeProbes
from .inputs import ProbeInputs
from .kept_probes import keep_probes
from .limits import limit_of, record_limit
from .turns import ORDER, called_in_turn, kept_between, turns_of
from .unaligned import affordable, check_unaligned, checked_build, spread

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: The kernel at the shapes of the plan.
OTHER_SHAPES = Side("kernel at other N and K", True)
#: Wrong calls of one type after which only the sweep that is going on is finished, so that a report can say for which
#: numbers of tokens the kernel is wrong.
_MOST_WRONG = 3
#: Multiply-adds of a call of the plan whose comparisons are observed.
_MOST_OBSERVED = 1 << 20
#: Values of weights that are multiplied exactly at a time.
_CHUNK = 1 << 22


@dataclass
class _Found:
    """The findings of the probes of one type.

    Args:
        calls, outputs: that were judged.
        right, wrong: (M, N, K) of each correct and each wrong call.
        faults: calls that the kernel did not survive.
    """

    calls: int = 0
    outputs: int = 0
    right: set[tuple[int, int, int]] = field(default_factory=set)
    wrong: list[tuple[int, int, int]] = field(default_factory=list)
    faults: int = 0
    values: set[str] = field(default_factory=set)
    not_covered: list[tuple[str, str]] = field(default_factory=list)


class TypeProbes:
    """The probes of one type of weights.

    Args:
        run, result: of the rung.
        tensor: the first matrix of the type, for the names of failures.
        rows: its rows uint8[N, row bytes], whose blocks are laid out anew.
        like: activations float32[M, K] of the graph, whose size random ones have.
        explanations: of the rung.
        call: of which the calls are variants.
    """

    def __init__(
        self, run: Run, result: RungResult, tensor: Tensor, rows: Bytes, like: Floats, explanations: Explanations,
        call: Call,
    ) -> None:  # fmt: skip
        self._origin, self._only = call, run.only
        fmt = tensor.type.weights
        assert fmt is not None
        self._run, self._result, self._tensor, self._like = run, result, tensor, like
        self._explanations = explanations
        self._fmt: WeightFormat = fmt
        self._semantics = run.semantics(fmt)
        size = fmt.unit // fmt.block_size * fmt.block_bytes
        self._units = rows[:, : rows.shape[1] // size * size].reshape(-1, size)
        self._inputs = ProbeInputs(fmt, self._semantics, self._units, like, run.options.seed, self._exact)
        self.found = _Found()
        #: Dimension → the largest size at which CUDA makes the kernel's launches, where a call passed it.
        self._limits: dict[str, int] = {}
        #: The largest utilisation.
        self.utilisation = 0.0
        #: Whether the gates of a product of the last call lacked power.
        self._weak = False

    def check(self) -> None:
        """Run and judge all probes; the envelope is recorded in the result."""
        run, fmt, found = self._run, self._fmt, self.found
        tested, only = run.kernel.is_under_test(fmt), self._only
        domain = run.kernel.domain if tested else EVERYTHING
        if len(self._units):
            quantized, brief = isinstance(fmt, BlockFormat), run.options.probes == "brief"
            probes = plan(domain, fmt.unit, quantized, run.options.seed, brief)
            if tested and (only is None or only.kind == "probe"):
                shapes = spread((m, p.n, p.k) for p in probes for m in p.tokens)
                self._check_build([Probe((m,), n, k) for m, n, k in shapes], len(probes) + 1)
            for number, probe in enumerate(run.progress(f"probes of {fmt.name}", probes, unit="probe")):
                if only is not None and (only.kind, only.number) != ("probe", number):
                    continue
                if self._is_wrong:
                    found.not_covered.append(("the rest of the plan", "the kernel is wrong already"))
                    break
                if run.budget.spent:
                    return self._leave()
                self._probe(probe, number)
            in_turn = only is None or (only.kind, only.number) == ("probe", len(probes))
            if in_turn and not (run.budget.spent or found.wrong or found.faults):
                self._in_turn(domain, len(probes))
            of_code = self._compared(probes) if tested and run.options.guided else HugeFound()
            if only is not None and only.kind == "probe":
                return
            no_tokens = only is None and domain.m == Extent() and self._takes_no_tokens()
            if run.budget.spent:
                return self._leave()
            large = self._large(domain, brief, tested)
            large.indices += of_code.indices
        else:
            large, no_tokens = HugeFound(), False
            found.not_covered.append(("the probe plan", "the matrix has no whole block to lay out anew"))
        if only is not None:
            return
        self._windows()
        self._result.count_beside(OTHER_OUTPUTS, found.outputs, tested)
        self._account(large)
        tokens, rows, columns = ({size[i] for size in found.right} for i in range(3))
        self._result.envelopes.append(
            TypeEnvelope(
                type=fmt.name, plan=PLAN, probes=run.options.probes, domain=domain.words, calls=found.calls,
                tokens=in_words(tokens | {0} if no_tokens else tokens), rows=in_words(rows), columns=in_words(columns),
                alignments=(dict(run.kernel.alignments(fmt)) if tested else {}) or UNSET,
                values=tuple(sorted(found.values)),
                indices=tuple(large.indices), grids=tuple(large.grids),
                not_covered=(*found.not_covered, *large.not_covered), under_test=tested,
            )
        )  # fmt: skip

    @property
    def _is_wrong(self) -> bool:
        """Whether so many calls are wrong that no further ones are tried."""
        return self.found.faults + len({wrong[1:] for wrong in self.found.wrong}) >= _MOST_WRONG

    @property
    def _wrong_calls(self) -> int:
        return self.found.faults + len(self.found.wrong)

    def _compared(self, planned: list[Probe]) -> HugeFound:
        """Run and judge the kernel at the shapes and with the data that its code compares with; return the findings of
        those of which only some thread blocks ran.

        Their numbers follow those of the plan, of the matrices in turn and of alignments: one for all shapes, which are
        in the calls' IDs, so that a call can be made again that the search would not find again; then one for each
        probe with data.
        """
        run, fmt, only = self._run, self._fmt, self._only
        kernel, first = run.kernel.of(fmt, 1, 1, fmt.unit), len(planned) + 2
        replayed = only is not None and only.kind == "probe" and only.number >= first
        huge = self._huge()
        if not kernel.compares or self._is_wrong or not (only is None or replayed):
            return huge.found
        with_data = only is None or only.number > first
        found = compared_probes(run, fmt, huge, {(m, p.n, p.k) for p in planned for m in p.tokens}, with_data)
        probes, shapes = found.probes, found.shapes
        if only is not None and only.number == first:
            alike = [one for one in probes if (*one[0].tokens, one[0].n, one[0].k) == (only.m, only.n, only.k)]
            probes = (*alike[:1],) if alike else compared_again(run, fmt, huge, (only.m, only.n, only.k))
            shapes = len(probes)
        failed = list[Probe]()
        for at, (probe, needs) in enumerate(probes):
            number = first if at < shapes else first + 1 + at - shapes
            if only is not None and only.number != number:
                continue
            if self._is_wrong or run.budget.spent:
                break
            before = self._wrong_calls
            if needs is None:
                self._probe(probe, number)
            elif not huge.check_shape(self._inputs.finite(probe) if probe.data else probe, number, needs):
                self.found.wrong.append((probe.tokens[0], probe.n, probe.k))
            failed += [probe] if self._wrong_calls > before else []
        if failed and only is None:
            keep_probes(run, fmt, failed)
        if only is None and not self._wrong_calls and not run.budget.spent:
            whole = [probe for probe, needs in probes[:shapes] if needs is None]
            self._check_build(affordable(whole, run.kernel.of, fmt), first - 1)
            if found.observed is not None:
                found.observed.observe_plan(self._planned_calls(planned))
        self._say_compared(found)
        return huge.found

    def _planned_calls(self, planned: list[Probe]) -> Iterator[tuple[tuple[int, int, int], Bytes, Bytes]]:
        """The smaller calls of the plan: the shape, the rows and the activations of each."""
        for probe in planned:
            m = probe.tokens[-1]
            if m * probe.n * probe.k > _MOST_OBSERVED or self._is_skipped(probe):
                continue
            rows = self._inputs.weights(probe)
            with contextlib.suppress(KernelFault):
                x = representable(self._semantics, self._fmt, rows, self._inputs.values(probe, rows))
                encoded = self._semantics.bytes_of(x)
                encoded = self._inputs.encoded(probe, rows, encoded) if probe.values in ENCODED else encoded
                yield (m, probe.n, probe.k), rows, encoded[:m]

    def _say_compared(self, found: ComparedProbes) -> None:
        """Record which probes followed from comparisons, and what was not tried."""
        if found.why_not is not None:
            self.found.not_covered.append(("shapes with which its code compares", found.why_not))
        elif found.left:
            why = f"it has {found.left} more"
            self.found.not_covered.append(("some shapes with which its code compares", why))
        if found.why_not is None and (unseen := self._run.kernel.of(self._fmt, 1, 1, self._fmt.unit).unseen(self._fmt)):
            self.found.not_covered.append(("values that a smaller type does not hold", unseen))
        self.found.not_covered += found.too_large
        for place in found.far:
            self.found.not_covered.append((place, f"it compares with a number of calls, more than {MOST} away"))
        if found.probes:
            words = f"{found.words} beside the probe plan: the kernel's code compares with them"
            self._result.note(f"{self._fmt.name}: {words}")

    def _account(self, large: HugeFound) -> None:
        """Record which classes of checks of the plan were done, and which were not."""
        result, run, fmt = self._result, self._run, self._fmt
        if run.kernel.is_under_test(fmt) and run.kernel.alignments(fmt):
            result.did("alignment", self.found.calls)
        for check, done in (("indices", large.indices), ("grids", large.grids)):
            if done:
                result.did(check, len(done))
        for check, skipped in (("shapes", self.found.not_covered), ("indices", large.not_covered)):
            for what, why in skipped:
                result.omit("grids" if what.startswith("grids") else check, f"{what}: {why}")
        if self._run.options.probes == "brief":
            result.omit("shapes", f"a small part of the probe plan ({BRIEF})", "quick")
            result.omit("indices", BRIEF, "quick")
        elif not self._run.options.guided:
            result.omit("shapes", "those that the kernel's own code suggests", "the plan alone")

    def _leave(self) -> None:
        """The budget does not suffice: correct probes so far are no envelope."""
        self._result.leave(f"probes of {self._fmt.name}", self._run.budget.words, self._tensor.name)

    def _large(self, domain: Domain, brief: bool, tested: bool) -> HugeFound:
        """Grids and indices, which no host can run completely."""
        if not tested:
            return HugeFound()
        probes = self._huge()
        if self._only is not None:
            for check in (
                (probes.check_grids,) if self._only.kind == "grid" else (probes.check_indices, probes.check_whole)
            ):
                check(domain)
            self._result.count(ALONE, len(probes.found.grids) + len(probes.found.indices))
            return probes.found
        probes.check_grids(domain)
        if brief:
            probes.found.not_covered.append(("indices of 2^31 and more", BRIEF))
        elif self.found.wrong or self.found.faults or probes.found.wrong:
            probes.found.not_covered.append(("indices of 2^31 and more", "the kernel is wrong already"))
        else:
            probes.check_indices(domain)
            probes.check_whole(domain)
        return probes.found

    def _huge(self) -> HugeProbes:
        return HugeProbes(
            self._run, self._result, self._tensor, self._fmt, self._units, self._like,
            self._explanations, self._origin,
        )  # fmt: skip

    def _check_build(self, probes: list[Probe], number: int) -> None:
        """Run a checked build at some shapes, with operands at no multiple of 16 bytes.

        Args:
            number: of all these calls; one that is made again need not be among the shapes.
        """
        run, fmt, only = self._run, self._fmt, self._only
        kernel = checked_build(run, fmt) if only is None or only.number == number else None
        if only is not None:
            probes = [Probe((only.m,), only.n, only.k)]
        made = 0
        for probe in probes if kernel is not None else ():
            (m,) = probe.tokens
            call = replace(self._origin, number=number, m=m, n=probe.n, k=probe.k)
            assert kernel is not None
            try:
                with calling(call):
                    if not check_unaligned(run, fmt, kernel, probe, self._inputs):
                        return
                made += 1
            except KernelFault as error:
                if isinstance(error, NotRun):
                    self.found.not_covered.append(("operands at other addresses", str(error)))
                    return
                self._fail(error, probe, m, call)
        if made:
            self._result.did("alignment", made)
        if only is not None:
            self._result.count(ALONE, made)

    # ---- one probe ---------------------------------------------------------------------------------------------------

    def _is_skipped(self, probe: Probe) -> bool:
        """Whether a probe has operands that the type's products do not have."""
        takes = self._semantics.activations
        if probe.values in ENCODED and (takes is None or (probe.values == "codes of -128" and takes is not Q8_1)):
            return True
        return "every half of a field" in (probe.blocks, probe.values) and not self._inputs.has_halves(probe)

    def _probe(self, probe: Probe, number: int) -> None:
        if self._is_skipped(probe):
            return
        takes, of_codes = self._semantics.activations, probe.values in ENCODED
        of_codes |= bool(probe.data) and takes is not None
        rows = self._inputs.weights(probe)
        try:
            x = representable(self._semantics, self._fmt, rows, self._inputs.values(probe, rows))
            encoded = self._semantics.bytes_of(x)
            if of_codes:
                encoded = self._inputs.encoded(probe, rows, encoded)
        except KernelFault as error:  # of its author's oracle, which need not know values of every size
            self.found.not_covered.append(("activations of every size", str(error)))
            return
        uploaded: dict[str, Weights] = {}
        products: dict[Order | None, list[tuple[slice, Product]]] = {}
        blocks = self._run.blocks_are if probe.blocks == "the model's" else probe.blocks
        self.found.values |= {probe.values, blocks}
        for m in probe.tokens:
            if self._only is not None and self._only.m != m:
                continue
            if any(
                size > self._limits.get(name, size) for name, size in zip("MNK", (m, probe.n, probe.k), strict=True)
            ):
                continue
            call = replace(self._origin, number=number, m=m, n=probe.n, k=probe.k)
            try:
                self._call(probe, call, m, rows, x, encoded, uploaded, products)
            except KernelFault as error:
                if self._is_limit(probe, m):
                    continue
                if error.culprit == "oracle" and probe.values != "drawn":  # values beyond what its author thought of
                    self.found.not_covered.append(("activations of every size", str(error)))
                    return
                self._fail(error, probe, m, call)
                if error.culprit != "kernel" or self.found.faults >= _MOST_WRONG:
                    return

    def _fail(self, error: KernelFault, probe: Probe, m: int, call: Call) -> None:
        """Record and explain a call that gave no outputs to judge."""
        from ....diagnosis.experiments import Experiments

        self.found.faults += not isinstance(error, NotRun)
        because = f" ({probe.because})" if probe.because else ""
        words = f"{self._fmt.name} at M={m}, N={probe.n}, K={probe.k}{because}: {error}"
        self._result.fail(Failure.of(error, words, self._tensor.name))
        kernel, rows = self._run.kernel.of(self._fmt, m, probe.n, probe.k), self._inputs.weights(probe)
        x = representable(self._semantics, self._fmt, rows, self._inputs.values(probe, rows))
        tried = Experiments(kernel, self._fmt, self._semantics, rows, x[:m], self._run.options.threads)
        who, name = f"{OTHER_SHAPES.name}, M={m}, N={probe.n}, K={probe.k}", self._tensor.name
        self._explanations.add_fault(error, tried, Place(who, name, printable(name, 64), call))

    def _is_limit(self, probe: Probe, m: int) -> bool:
        """Whether CUDA refuses the launches of a call only because of its sizes, which is recorded."""
        probes, sizes = self._huge(), (m, probe.n, probe.k)
        domain = self._run.kernel.domain if self._run.kernel.is_under_test(self._fmt) else EVERYTHING
        limit = limit_of(probes.refused, sizes, domain, self._fmt.unit) if probes.refused(*sizes) else None
        if limit is not None:
            self._limits[limit.name] = limit.most
            record_limit(self._result, limit, self._fmt.name, self._tensor.name)
        return limit is not None

    def _call(
        self, probe: Probe, call: Call, m: int, rows: Bytes, x: Floats, encoded: Bytes, uploaded: dict[str, Weights],
        products: dict[Order | None, list[tuple[slice, Product]]],
    ) -> None:  # fmt: skip
        """One number of tokens of a probe. Raises KernelFault."""
        fmt = self._fmt
        with calling(call):
            kernel = self._run.kernel.of(fmt, m, probe.n, probe.k)
            if kernel.layout not in uploaded:
                uploaded[kernel.layout] = kernel.upload(fmt, rows)
        if kernel.order not in products:
            products[kernel.order] = list(self._exact(rows, encoded, kernel.order))
        weights = uploaded[kernel.layout]
        of_codes = probe.values in ENCODED or (bool(probe.data) and self._semantics.activations is not None)
        given = [False] * (not of_codes) + [True] * ((probe.whole and kernel.quantizes) or of_codes)
        if self._only is not None:
            given = [self._only.given]
            self._result.count(ALONE)
        outputs = list[tuple[bool, Floats]]()
        for as_bytes in given:
            with calling(replace(call, given=as_bytes)):
                if probe.calls > 1:
                    kernel.restart()
                for _ in range(probe.calls):
                    if as_bytes:
                        y = kernel.gemm(weights, np.ascontiguousarray(encoded[:m]))
                    else:
                        y = kernel.product(weights, x[:m])
                    if not outputs or outputs[-1][0] != as_bytes or not np.array_equal(y, outputs[-1][1], True):
                        outputs.append((as_bytes, y))
        if probe.whole and (self._only is None or not self._only.given):
            with calling(call):
                self._check_quantizer(kernel, x[:m], encoded[:m], call)
        right, self._weak = [], False
        for as_bytes, y in outputs:
            taken: Floats | Bytes = encoded[:m] if as_bytes else x[:m]
            this = replace(call, given=as_bytes)
            made_by = KernelCall(kernel, fmt, rows, m, as_bytes, weights)
            place = self._judge(probe, this, made_by, y, encoded, products[kernel.order])
            right.append(place is None)
            if place is not None and len(self.found.wrong) < _MOST_WRONG:
                self._explanations.add(
                    WrongCall(
                        fmt, self._semantics, rows, taken, encoded[:m], y, kernel.order,
                        f"{OTHER_SHAPES.name}, M={m}, N={probe.n}, K={probe.k}", self._tensor.name,
                        printable(self._tensor.name, 64), *place, call=this, kernel=kernel,
                    )
                )  # fmt: skip
        found = self.found
        found.calls += len(right)
        if self._weak and all(right):  # recorded as not verified, or no evidence at all
            return
        found.outputs += m * probe.n * len(right)
        if all(right):
            found.right.add((m, probe.n, probe.k))
        else:
            found.wrong.append((m, probe.n, probe.k))

    def _judge(
        self, probe: Probe, call: Call, made_by: KernelCall, y: Floats, encoded: Bytes,
        expected: list[tuple[slice, Product]], beside: str = "",
    ) -> tuple[int, int] | None:  # fmt: skip
        """Token and row of the first wrong output; None if all are correct."""
        of = [probe.because] if probe.because else []
        if not probe.data:
            of = [] if probe.blocks == "the model's" else [f"blocks of {probe.blocks}"]
            of += [probe.because] if probe.because else []
            of += [] if probe.values == "drawn" else [f"activations: {probe.values}"]
        m, special_words = made_by.m, f" ({', '.join(of)})" if of else ""
        how = ", given their bytes" if call.given else beside
        detail = f" of {probe.n} rows and K = {probe.k}, {counted(m, 'tokens')}{how}{special_words}"
        # what follows the first wrong calls is counted, so that failures of other rungs and types are shown too
        result = self._result if len(self.found.wrong) < _MOST_WRONG else RungResult(name="")
        first = None
        for span, whole in expected:
            part = np.ascontiguousarray(y[:, span])
            output = Output(
                OTHER_SHAPES, self._tensor, np.arange(span.start, span.stop), part, whole.rows(np.arange(m)),
                self._semantics, encoded, call=call, detail=detail, again=made_by.remade(self._run, span),
            )  # fmt: skip
            judgement = judge_output(result, output)
            self.utilisation = max(self.utilisation, judgement.utilisation)
            self._weak |= judgement.power.says_nothing
            if not judgement.passed and first is None:
                row, token = (int(i) for i in np.argwhere(judgement.bad.T)[0])
                first = token, span.start + row
        if result is not self._result:
            for culprit, n in result.blamed.items():
                self._result.fail_more(culprit, n, self._tensor.name)
        return first

    def _in_turn(self, domain: Domain, number: int) -> None:
        """Several matrices in turn, each judged by itself."""
        shapes = shapes_in_turn(domain, self._fmt.unit)
        if shapes is None:
            return
        turns = turns_of(shapes, self._fmt, self._semantics, self._inputs, self._run.options.seed)
        call = replace(self._origin, number=number)
        try:
            with calling(call):
                for i, (name, kernel, y) in enumerate(called_in_turn(self._run, self._fmt, turns)):
                    turn, probe, m = turns[name], turns[name].probe, len(turns[name].x)
                    this = replace(call, m=m, n=probe.n, k=probe.k)
                    expected = list(self._exact(turn.rows, turn.encoded, kernel.order))
                    made_by = KernelCall(kernel, self._fmt, turn.rows, m)
                    beside = f", the last of {ORDER[: i + 1]} in turn"
                    wrong = self._judge(probe, this, made_by, y, turn.encoded, expected, beside)
                    self.found.calls += 1
                    self.found.outputs += y.size
                    if wrong is None:
                        continue
                    self.found.wrong.append((m, probe.n, probe.k))
                    named = kept_between(turns, ORDER[: i + 1], y, self._exact)
                    if named is not None:
                        where = f"{OTHER_SHAPES.name}{beside}"
                        self._explanations.say(named_fault(self._tensor, where, named, this, *wrong))
        except KernelFault as error:
            self.found.faults += not isinstance(error, NotRun)
            words = f"{self._fmt.name}, matrices of several shapes in turn ({ORDER}): {error}"
            self._result.fail(Failure.of(error, words, self._tensor.name))
        if self._only is not None:
            self._result.count(ALONE)

    def _check_quantizer(self, kernel: Kernel, x: Floats, expected: Bytes, call: Call) -> None:
        quantized = kernel.quantize(x)
        wrong = quantized != expected
        if wrong.any():
            m, at = (int(i) for i in np.argwhere(wrong)[0])
            words = (
                f"the kernel's quantizer at M={len(x)}, K={x.shape[1]}: token {m}, byte {at} is "
                f"{quantized[m, at]:#04x}, expected {expected[m, at]:#04x}"
            )
            self._result.fail(Failure(words, self._tensor.name, token=m, culprit="kernel", call=call))
            self.found.wrong.append((len(x), 0, x.shape[1]))

    def _exact(self, rows: Bytes, encoded: Bytes, order: Order | None) -> Iterator[tuple[slice, Product]]:
        k = rows.shape[1] // self._fmt.block_bytes * self._fmt.block_size
        step = max(1, _CHUNK // k)
        for start in range(0, len(rows), step):
            span = slice(start, min(start + step, len(rows)))
            yield span, self._run.product(self._semantics, self._fmt, rows[span], encoded, order)

    def _takes_no_tokens(self) -> bool:
        """Whether it survives a call without tokens, which engines may never make: that is recorded, and not judged."""
        kernel = self._run.kernel.of(self._fmt, 1, 1, self._fmt.unit)
        rows = self._units[:1]
        try:
            nothing = self._semantics.bytes_of(np.zeros((1, self._fmt.unit), np.float32))[:0]
            y = kernel.gemm(kernel.upload(self._fmt, rows), nothing)
            if y.shape != (0, 1):
                raise KernelFault(f"it gives an output of shape {y.shape}")
        except KernelFault as error:
            self.found.not_covered.append(("M = 0", str(error)))
            return False
        return True

    def _windows(self) -> None:
        """Record which numbers of tokens are wrong, if others are correct with the same rows and columns."""
        wrong = {m for m, _, _ in self.found.wrong}
        right = {m for m, _, _ in self.found.right} - wrong
        if len(wrong) > 1 and right:
            self._result.note(f"{self._fmt.name}: wrong with {in_words(wrong)} tokens; right with {in_words(right)}")
