"""Embedding of a plain product in a call of a mixture-of-experts kernel, so that every rung can judge such a kernel.

The weights W[N, K] become E experts: expert e holds the rows of W, rotated by a shift of its own. Each token is routed
to top_k experts, and every slot of the result is a row of the product, rotated in the same way:

    y[m, t, i] = P[token(m, t), (i + shift(ids[m, t])) mod N]

token(m, t) is m if all slots of a token share its activations; if each slot has its own, it is a number that differs
from slot to slot. So every element of the product is computed top_k times. If the copies have the same bits, those bits
are the result. If not, the result is the worst copy, compared with the exact product; a rung then judges it like any
output. So a correct slot never hides a wrong one, and correct slots whose sums were rounded in a different order are
not reported as different.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..semantics.gates import judge
from ..semantics.sums import Product
from ..support.errors import UsageError
from .domain import Extent, extent_of
from .routing import LISTS, ROUTINGS, Routing

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

#: Numbers of experts and of slots per token, for kernels that take any number.
EXPERTS, TOP_K = 4, 2
#: Upper limit for the bytes of all experts: a large matrix gets fewer experts, but not fewer than slots.
_ENOUGH = 1 << 30
_MOST_BLOCK = 1024
_KEYS = ("count", "top_k", "block_m", "activations", "lists")


@dataclass(frozen=True)
class Taken:
    """The arguments that a mixture-of-experts kernel takes.

    Args:
        count, top_k: allowed numbers of experts, and of experts per token.
        block_m: slots per block of `sorted_token_ids`.
        own_activations: each slot has activations of its own; otherwise the slots of a token share them.
        lists: the routing lists (`Routing.operands`) that a Python kernel receives, by name. For other kernels, the
            parameters name them.
    """

    count: Extent = field(default_factory=Extent)
    top_k: Extent = field(default_factory=Extent)
    block_m: int = 1
    own_activations: bool = False
    lists: tuple[str, ...] = ("ids",)

    def usual(self) -> tuple[int, int]:
        """Return the numbers of experts, and of experts per token, in the call that stands for a plain product."""
        count, top_k = (
            extent.up(usual) or extent.down(usual) or extent.least
            for extent, usual in ((self.count, EXPERTS), (self.top_k, TOP_K))
        )
        return count, top_k


def taken_of(said: object) -> Taken:
    """Parse the table `experts` of a declaration.

    It has `count` and `top_k`, each a number or a table of `least`, `most` and `multiple`; `block_m`, a number;
    `activations`, "token" or "slot"; and `lists`, names from LISTS. Raises UsageError.
    """
    if not isinstance(said, dict):
        raise UsageError("experts is a table such as { top_k = 2, block_m = 16 }")
    if unknown := said.keys() - set(_KEYS):
        raise UsageError(f"experts has {', '.join(_KEYS)}, not {ascii(min(map(str, unknown)))[:40]}")
    block_m, whose = said.get("block_m", 1), said.get("activations", "token")
    if isinstance(block_m, bool) or not isinstance(block_m, int) or not 1 <= block_m <= _MOST_BLOCK:
        raise UsageError(f"block_m of experts is not a number from 1 to {_MOST_BLOCK}")
    if whose not in ("token", "slot"):
        raise UsageError('activations of experts are those of a "token" or of a "slot"')
    lists = said.get("lists", ["ids"])
    if not isinstance(lists, list | tuple) or not all(name in LISTS for name in lists):
        raise UsageError(f"lists of experts are names of {', '.join(LISTS)}")
    count, top_k = (extent_of(name, said.get(name, {})) for name in ("count", "top_k"))
    return Taken(count, top_k, block_m, whose == "slot", tuple(lists))


@dataclass(frozen=True)
class Experts:
    """A matrix as experts.

    Args:
        n: rows of each expert.
        shifts: rotation of each expert's rows, intp[E].
    """

    n: int
    shifts: Index

    @property
    def count(self) -> int:
        return len(self.shifts)

    @property
    def rows(self) -> Index:
        """Return the row of the matrix that each row of each expert is, intp[E, N]."""
        return (np.arange(self.n) + self.shifts[:, None]) % max(1, self.n)

    def stacked(self, rows: Bytes) -> Bytes:
        """Return the experts' rows, uint8[E·N, row bytes]; the layout is that of an expert tensor in a GGUF file."""
        return np.ascontiguousarray(rows[self.rows.reshape(-1)])


def experts_of(rows: Bytes, count: int = EXPERTS, least: int = TOP_K) -> Experts:
    """Split a matrix uint8[N, row bytes] into experts: `count`, or fewer if it is large, but not less than `least`.

    The rotations depend on the bytes of the matrix. They are multiples of a step without a common divisor with N, so no
    two are the same as long as there are enough rows.
    """
    n, seed = len(rows), zlib.crc32(np.ascontiguousarray(rows).data)
    count = max(min(count, least), min(count, _ENOUGH // max(1, rows.nbytes)))
    step = 1 + seed % max(1, n)
    while np.gcd(step, max(1, n)) > 1:
        step += 1
    return Experts(n, np.asarray((seed // 7 + step * np.arange(count)) % max(1, n), np.intp))


@dataclass(frozen=True)
class Embedded:
    """One product as a call of a mixture-of-experts kernel.

    Args:
        experts: the weights.
        routing: experts of each token.
        tokens: the row of x that each slot multiplies, intp[M, top_k].
        own_activations: each slot has activations of its own; otherwise the slots of a token share them.
    """

    experts: Experts
    routing: Routing
    tokens: Index
    own_activations: bool

    def activations(self, x: Bytes) -> Bytes:
        """Return the kernel's activations: x, uint8[M, row bytes], or [M·top_k, row bytes] if slots have their own."""
        return np.ascontiguousarray(x[self.tokens.reshape(-1)]) if self.own_activations else x

    def slots(self, y: Floats) -> Floats:
        """Rearrange the results float32[M, top_k, N] as copies of the product, float32[top_k, M, N]."""
        found = np.empty((self.routing.top_k, len(y), self.experts.n), np.float32)
        for t in range(self.routing.top_k):
            shift = self.experts.shifts[self.routing.ids[:, t]]
            at = (np.arange(self.experts.n) - shift[:, None]) % max(1, self.experts.n)
            found[t, self.tokens[:, t]] = np.take_along_axis(y[:, t], at, axis=1)
        return found

    def plain(self, made: Floats, expected: Callable[[Index, Index], Product]) -> Floats:
        """Return the product float32[M, N] of several runs, float32[runs, M, top_k, N]: the worst copies.

        Args:
            expected: see `worst_of`.
        """
        return worst_of(np.concatenate([self.slots(y) for y in made]), expected)


def worst_of(answers: Floats, expected: Callable[[Index, Index], Product]) -> Floats:
    """Return the worst copy of each element, float32[M, N], of several copies of a product, float32[copies, M, N].

    If the worst copy is within its bound, all are.

    Args:
        expected: (tokens, rows) → their exact product, in the kernel's definition and order.
    """
    made: Floats = answers[0]
    differs = (answers.view(np.uint32) != answers[:1].view(np.uint32)).any(axis=0)
    if not differs.any():
        return made
    made, tokens, rows = made.copy(), np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    exact = expected(tokens, rows)
    some = answers[:, tokens[:, None], rows]
    with np.errstate(all="ignore"):
        off = np.abs(some.astype(np.float64) - exact.exact)
    off = np.where(np.isfinite(some) & ~np.isnan(off), off, np.inf)
    if exact.ordered is not None:
        off = np.where(some.view(np.uint32) == exact.ordered.view(np.uint32), -1.0, off)
    made[tokens[:, None], rows] = np.take_along_axis(some, off.argmax(axis=0)[None], axis=0)[0]
    return made


def within(answers: Sequence[Floats], expected: Callable[[Index, Index], Product]) -> list[bool]:
    """Return which of several products float32[M', N'] are within the bound, where their bits differ.

    Args:
        expected: as for `worst_of`; tokens and rows beyond its M and N are not judged.
    """
    both = np.stack(answers)
    differs = (both.view(np.uint32) != both[:1].view(np.uint32)).any(axis=0)
    tokens, rows = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if not len(tokens):
        return [True] * len(answers)
    exact = expected(tokens, rows)
    return [judge(np.ascontiguousarray(one[tokens[:, None], rows]), exact).passed for one in answers]


def worst_of_slots(answers: Floats, routing: Routing, expected: Callable[[int, Index, Index], Product]) -> Floats:
    """Like `worst_of`, for products of experts, float32[copies, M·top_k, N].

    Args:
        expected: (expert, slots, rows) → the exact product of these slots and rows of the expert.
    """
    made, slots, offsets = answers[0].copy(), routing.sorted_slots(), routing.offsets()
    for expert in np.flatnonzero(routing.counts) if len(answers) > 1 else ():
        of = np.asarray(slots[offsets[expert] : offsets[expert + 1]], np.intp)

        def exact(t: Index, rows: Index, expert: int = int(expert), of: Index = of) -> Product:
            return expected(expert, of[t], rows)

        made[of] = worst_of(answers[:, of], exact)
    return np.asarray(made)


def answers_of(made: Floats, m: int, n: int) -> Floats:
    """Return copies of a product, float32[copies, m, n].

    `made`, float32[runs, M', N'], holds the outputs of calls in which the tokens and rows of the product are repeated.
    """
    if made.shape[1:] == (m, n) or not m * n:
        return made[:, :m, :n]
    copies = [made[:, t[:, None], r] for t in _repeated(made.shape[1], m) for r in _repeated(made.shape[2], n)]
    return np.concatenate(copies)


def _repeated(count: int, of: int) -> Index:
    """Return the positions of `of` items among `count` positions in which they repeat, intp[copies, of].

    Items that are missing in the last copy are taken from the first.
    """
    at = np.arange(-(-count // of) * of).reshape(-1, of)
    return np.where(at < count, at, at % of)


def embedded(experts: Experts, x: Bytes, top_k: int = TOP_K, own_activations: bool = False) -> Embedded:
    """Embed a product with activations uint8[M, row bytes] in a call, with a routing seeded by their bytes.

    The experts of a token differ, as a router's do, if there are enough.

    Args:
        own_activations: each slot has activations of its own, as in the second product of a feed-forward layer.
    """
    m = len(x)
    rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(x).data))
    ids = ROUTINGS["different experts in a token"](rng, m, top_k, experts.count)
    apart = int(rng.integers(1, max(2, m))) if own_activations else 0
    tokens = (np.arange(m)[:, None] + apart * np.arange(top_k)) % max(1, m)
    return Embedded(experts, Routing(ids, experts.count), np.asarray(tokens, np.intp), own_activations)
