"""Running a kernel for mixtures of experts on routings of every kind, once for each type of weights.

Elsewhere such a kernel is judged as one of plain products: each is made a call of a few experts. Here it is called as
an engine calls it, with the experts of a real tensor where the model has one, and with up to 128 small ones, made of
the type's blocks. Each slot of each token is judged by the exact product of its expert. Small calls are made a second
time by a checked build, where a host has one: there are more slots than tokens, so buffers for slots may be too small
although those for tokens are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ....checks import ALONE
from ....checks import OTHER_SHAPES as OTHER_OUTPUTS
from ....gguf.file import Tensor
from ....hosts.schedule import Schedule
from ....kernels.experts import Taken
from ....kernels.interface import Kernel
from ....kernels.routing import ROUTINGS, Routing, routed
from ....results.calls import Call
from ....results.failures import Failure
from ....results.margins import Side
from ....results.rungs import RungResult
from ....semantics.drawn import keys_of_slots
from ....semantics.exact import product
from ....semantics.gates import judge
from ....support.errors import EnvironmentFault, KernelFault, NotTried
from ....support.text import counted, printable
from ...calls import calling
from ...explain import Explanations, Place
from ...generated_inputs import drawn
from ...judging import MISSES_BLOCKS, describe, leave_weak
from ...plan import near
from ...run import Run
from ...schedules import difference, made, may_run, omit, under_schedule

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: The kernel's slots, by their experts.
ROUTED = Side("kernel, by routings", True)
_DISTINCT, _ONE, _IDLE, _TWICE, _ANY, _DESCENDING = ROUTINGS
#: Experts, experts of a token, tokens, rows, slices of 32 values a row, and how tokens are routed.
_CALLS = (
    (1, 1, 1, 33, 2, _DISTINCT), (8, 2, 1, 7, 9, _DISTINCT), (8, 2, 7, 40, 3, _DISTINCT), (8, 2, 33, 33, 1, _ONE),
    (8, 2, 34, 65, 2, _IDLE), (8, 2, 17, 33, 3, _TWICE), (8, 8, 5, 34, 2, _ANY), (1, 2, 5, 33, 2, _TWICE),
    (64, 8, 66, 33, 1, _DISTINCT), (128, 1, 9, 7, 2, _DESCENDING), (128, 8, 3, 33, 1, _ANY), (64, 1, 65, 33, 1, _ONE),
    (8, 2, 129, 34, 1, _ANY), (3, 2, 2, 129, 8, _DESCENDING),
    (8, 2, 63, 33, 1, _DISTINCT),  # one token is missing in tiles of 8 to 64, and two slots
)  # fmt: skip
#: The multiplications of a call that is made by a checked build, too: one with 63 tokens and superblocks is.
_CHECKED_WORK = 1 << 21
#: Tokens of the call with the model's own experts, and the multiplications that it may take.
_TOKENS, _MOST_WORK = 9, 1 << 28
#: Wrong calls after which the rest is skipped; failures that are recorded of each.
_MOST_WRONG, _MOST_SHOWN = 3, 3


@dataclass(frozen=True)
class _Probe:
    """One call: weights uint8[E·N, row bytes], float32[M, K] or [M·top_k, K], and where the weights are from."""

    rows: Bytes
    x: Floats
    routing: Routing
    how: str
    n: int
    k: int
    of: str

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.routing.ids.size * self.n * self.k

    @property
    def words(self) -> str:
        m, top_k = self.routing.ids.shape
        tokens = counted(m, "tokens")
        return f"{self.routing.experts} experts{self.of}, {tokens}, top_k = {top_k}, {self.how}; N={self.n}, K={self.k}"


class RoutingProbes:
    """The routings of one type of weights.

    Args:
        run, result, explanations: of the rung.
        tensor: the first matrix of the type, and its rows uint8[rows of all its matrices, row bytes].
        like: activations float32[M, K] of the graph, whose size random ones have.
        call: of which the calls are variants.
    """

    def __init__(
        self, run: Run, result: RungResult, tensor: Tensor, rows: Bytes, like: Floats, explanations: Explanations,
        call: Call,
    ) -> None:  # fmt: skip
        fmt = tensor.type.weights
        assert fmt is not None
        self._run, self._result, self._tensor, self._rows, self._like = run, result, tensor, rows, like
        self._origin, self._fmt, self._explanations = call, fmt, explanations
        self._semantics = run.semantics(fmt)

    def check(self) -> None:
        """Run and judge all calls; nothing where the kernel takes no ids."""
        run, only = self._run, self._run.only
        kernel = run.kernel.of(self._fmt, 1, 1, self._fmt.unit)
        if kernel.takes_experts is None or not run.kernel.is_under_test(self._fmt):
            return
        wrong = calls = 0
        for number, probe in enumerate(self._probes(kernel.takes_experts)):
            if only is not None and only.number != number:
                continue
            if wrong >= _MOST_WRONG:
                self._result.note(f"{self._fmt.name}: further routings were skipped, since the kernel is already wrong")
                break
            if run.budget.spent:
                self._result.leave(f"routings of {self._fmt.name}", run.budget.words, self._tensor.name)
                break
            m = len(probe.routing.ids)
            call = replace(self._origin, kind="routing", number=number, m=m, n=probe.n, k=probe.k)
            try:
                wrong += not self._right(probe, call)
            except KernelFault as error:
                wrong += 1
                said = f"{self._fmt.name}, {probe.words}: {error}"
                self._result.fail(
                    Failure(said, self._tensor.name, culprit=error.culprit, cause=error.cause, call=error.call)
                )
                self._explain(error, probe, call, kernel)
            calls += 1
            if only is not None:
                self._result.count(ALONE)
        name = "routings of experts"
        self._result.figures[name] = self._result.figures.get(name, 0) + calls

    # ---- one call ----------------------------------------------------------------------------------------------------

    def _right(self, probe: _Probe, call: Call) -> bool:
        """Whether a call is correct. Raises KernelFault; EnvironmentFault if requested checks cannot be made."""
        kernel = self._run.kernel.of(self._fmt, len(probe.routing.ids), probe.n, probe.k)
        encoded = self._semantics.bytes_of(probe.x)
        with calling(call):
            y = kernel.routed(self._fmt, probe.rows, encoded, probe.routing)
        return self._judged(probe, call, kernel, encoded, y) and self._checked(probe, call, kernel, encoded, y)

    def _checked(self, probe: _Probe, call: Call, kernel: Kernel, encoded: Bytes, y: Floats) -> bool:
        """Whether a checked build finds nothing, and gives the same."""
        run, schedule = self._run, Schedule(checked=True)
        if probe.work > _CHECKED_WORK or not may_run(run, schedule) or (under := kernel.under(schedule)) is None:
            return True
        found: KernelFault | None = None
        try:
            again = under.routed(self._fmt, probe.rows, encoded, probe.routing)
        except EnvironmentFault as error:
            if run.options.sanitize and not isinstance(error, NotTried):
                raise
            omit(self._result, schedule, f"routings could not be run by a checked build: {error}")
            return True
        except KernelFault as error:
            found = error
        else:
            made(run, self._result, schedule)
            if kernel.order is None and under.adds_floats:
                return self._judged(probe, call, kernel, encoded, again)
            found = difference(again.reshape(-1, probe.n), y.reshape(-1, probe.n), under_schedule(schedule))
        if found is None:
            return True
        name = printable(self._tensor.name, 64)
        failure = Failure.of(found, f"{name}: {probe.words}: {found}", self._tensor.name)
        self._result.fail(replace(failure, call=call))
        self._explain(found, probe, call, kernel)
        return False

    def _explain(self, found: KernelFault, probe: _Probe, call: Call, kernel: Kernel) -> None:
        """Explain a call that gave no outputs to judge."""
        rows, threads = probe.rows[: probe.n], self._run.options.threads
        from ....diagnosis.experiments import Experiments

        experiments = Experiments(kernel, self._fmt, self._semantics, rows, probe.x, threads)
        name = self._tensor.name
        self._explanations.add_fault(found, experiments, Place(ROUTED.name, name, printable(name, 64), call))

    def _judged(self, probe: _Probe, call: Call, kernel: Kernel, encoded: Bytes, y: Floats) -> bool:
        """Whether outputs float32[M, top_k, N] are correct."""
        fmt, routing = self._fmt, probe.routing
        slots, offsets, right = routing.sorted_slots(), routing.offsets(), True
        answers = np.ascontiguousarray(y.reshape(-1, probe.n))
        own = len(encoded) != len(routing.ids)
        for expert in np.flatnonzero(routing.counts):
            of = slots[offsets[expert] : offsets[expert + 1]]
            given = np.ascontiguousarray(encoded[of if own else of // routing.top_k])
            rows = probe.rows[expert * probe.n : (expert + 1) * probe.n]
            keys, threads = keys_of_slots(given, of), self._run.options.threads
            expected = product(self._semantics, fmt, rows, given, kernel.order, threads, keys=keys)
            part = np.ascontiguousarray(answers[of])
            judgement = judge(part, expected)
            if judgement.power.lacking:
                leave_weak(self._result, ROUTED, self._tensor, probe.k)
            elif judgement.passed and judgement.power.misses_blocks:
                name = f"{ROUTED.name}, {self._tensor.type.name}, K = {probe.k:,}"
                self._result.leave_products(name, MISSES_BLOCKS, self._tensor.name)
            at, n = judgement.worst
            token, slot = divmod(int(of[at]), routing.top_k)
            self._result.measure(
                ROUTED, judgement.utilisation, judgement.score, f"{probe.words}: token {token} slot {slot} row {n}"
            )
            shown = 0
            for i, n in np.argwhere(judgement.bad)[:: max(1, probe.n // _MOST_SHOWN)][: _MOST_SHOWN if right else 1]:
                token, slot = divmod(int(of[i]), routing.top_k)
                what = describe(part[i, n], expected, int(i), int(n), lambda: None)
                whose = "" if shown else self._whose(probe, int(expert), part[i], given[i : i + 1], keys[i : i + 1])
                self._result.fail(
                    Failure(
                        f"{ROUTED.name}: {printable(self._tensor.name, 64)}: {probe.words}: token {token} slot {slot} "
                        f"(expert {expert}) row {n}: the output {what}{whose}",
                        self._tensor.name, token=token, got=float(part[i, n]), expected=float(expected.exact[i, n]),
                        bound=float(expected.bound[i, n]), call=call, block_type=fmt.name,
                    )
                )  # fmt: skip
                shown += 1
            left = int(judgement.bad.sum()) - shown
            if left > 0:
                self._result.fail_more("kernel", left, self._tensor.name)
            right = right and judgement.passed
        self._result.count_beside(OTHER_OUTPUTS, y.size, True)
        return right

    def _whose(self, probe: _Probe, expert: int, y: Floats, given: Bytes, keys: Bytes) -> str:
        """The other expert whose product a wrong slot holds, float32[N], of activations uint8[1, row bytes]; in words,
        "" where it is none's."""
        if not y.any():
            return " (the whole slot is zero)"
        for step in range(1, probe.routing.experts):
            other = (expert + step) % probe.routing.experts
            rows = probe.rows[other * probe.n : (other + 1) * probe.n]
            if judge(y[None], product(self._semantics, self._fmt, rows, given, keys=keys)).passed:
                return f" (the slot holds the product of expert {other})"
        return ""

    # ---- what it is made of ------------------------------------------------------------------------------------------

    def _probes(self, taken: Taken) -> Iterator[_Probe]:
        seed, domain = self._run.options.seed, self._run.kernel.domain
        yield from self._of_model(taken, seed)
        units = self._rows.reshape(-1, self._fmt.unit // self._fmt.block_size * self._fmt.block_bytes)
        seen = set()
        for experts, top_k, m, n, slices, how in _CALLS:
            sizes = (
                near(taken.count, experts), near(taken.top_k, top_k), near(domain.m, m), near(domain.n, n),
                near(domain.k, -(-slices * 32 // self._fmt.unit) * self._fmt.unit, self._fmt.unit),
            )  # fmt: skip
            if None in sizes or (*sizes, how) in seen:
                continue
            seen.add((*sizes, how))
            e, t, tokens, rows, k = (int(size or 0) for size in sizes)
            rng = np.random.default_rng((seed, e, t, tokens, rows, k))
            at = rng.integers(0, len(units), e * rows * (k // self._fmt.unit))
            weights = np.ascontiguousarray(units[at].reshape(e * rows, -1))
            routing = routed(how, tokens, t, e, seed)
            x = drawn((tokens * t if taken.own_activations else tokens, k), self._like, seed)
            yield _Probe(weights, x, routing, how, rows, k, "")

    def _of_model(self, taken: Taken, seed: int) -> Iterator[_Probe]:
        """The tensor's own experts, where it has several."""
        experts, domain = prod(self._tensor.shape[2:]), self._run.kernel.domain
        n, k = self._tensor.shape[1] if len(self._tensor.shape) > 1 else 1, self._tensor.k
        top_k = near(taken.top_k, min(2, experts))
        if experts < 2 or experts not in taken.count or top_k is None or domain.outside(n, k) is not None:
            return
        m = near(domain.m, max(1, min(_TOKENS, _MOST_WORK // (n * k * top_k))))
        if m is None or len(self._rows) != experts * n:
            return
        x = drawn((m * top_k if taken.own_activations else m, k), self._like, seed)
        yield _Probe(self._rows, x, routed(_DISTINCT, m, top_k, experts, seed), _DISTINCT, n, k, " of the model")
