"""The time of the instructions that the definition q8_1 requires on Hopper, and nothing else: the roof of every kernel
that multiplies halves with `wgmma` (kernels/probes/terms.cu).

A probe is checked before it is timed: a few slices must give NumPy's bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.hosts.base import Host, Source
from gguf_verify.kernels.site import Cards
from gguf_verify.support.errors import KernelFault
from gguf_verify.support.paths import kernel_root

from ..markdown import table
from .gpu import Queue, median_us

Floats = npt.NDArray[np.float32]
Record = dict[str, Any]

CARDS = Cards(exact="90a")
#: The factor of a minimum, by its name in common.cuh → the types with such terms, and the float operations of a term.
MINIMA = {"OFFSET": (("Q4_0", "Q5_0"), 2), "NONE": (("Q8_0",), 2), "MEETS_S": (("Q4_1", "Q5_1"), 3)}
#: Arrangement → columns of a product and warpgroups for which registers suffice for every kind of terms.
SHAPES = {
    "PRODUCTS": ((64, 2), (64, 4), (128, 2)),
    "TERMS_ALONE": ((64, 2), (64, 4), (128, 2)),
    "IN_TURN": ((64, 2), (64, 3), (64, 4), (128, 2)),
    "OVERLAPPED": ((64, 2), (64, 3), (128, 2)),
    "APART": ((64, 2), (64, 3), (64, 4), (128, 2)),
}
#: The same with loaded scales of tokens, and the number of tiles of rows that share them.
LOADED_SHAPES = {
    "IN_TURN": ((64, 2, 1), (64, 2, 2)),
    "OVERLAPPED": ((64, 2, 1),),
}
#: Number of tokens at which the best kernels are compared.
MOST_TOKENS = 4096
_SLICE, _ROWS = 32, 64
_LOADED = "with scales"
#: A launch takes 2 ms at this rate.
_FLOP = 2e-3 * 600e12


@dataclass(frozen=True)
class Probe:
    """One variant of the probe; see its source.

    Args:
        arrangement: of SHAPES.
        minimum: of MINIMA.
        tokens: columns of a product.
        warpgroups: of a thread block.
        tiles: of 64 rows, of a warpgroup.
        loaded: each slice loads the tokens' scales.
    """

    arrangement: str
    minimum: str
    tokens: int
    warpgroups: int
    tiles: int = 1
    loaded: bool = False

    @property
    def source(self) -> Source:
        macros = {"ARRANGEMENT": self.arrangement, "TERMS": self.minimum, "TOKENS": str(self.tokens),
                  "WARPGROUPS": str(self.warpgroups), "TILES": str(self.tiles),
                  "SCALES": "LOADED" if self.loaded else "HELD"}  # fmt: skip
        return Source(kernel_root(), "probes/terms.cu", "terms", macros, CARDS.exact)

    @property
    def multipliers(self) -> int:
        """The warpgroups that multiply, or would if terms were not alone."""
        return self.warpgroups // 2 if self.arrangement == "APART" else self.warpgroups

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.warpgroups * self.tiles * _ROWS

    @property
    def slices(self) -> int:
        """Of a turn of the loop."""
        return 512 // self.tokens

    @property
    def flop(self) -> int:
        """Of a block in a turn, two a product."""
        return 2 * self.multipliers * self.tiles * _ROWS * self.tokens * _SLICE * self.slices

    @cached_property
    def inputs(self) -> dict[str, npt.NDArray[Any]]:
        """Random codes as halves: a, float16[rows, 32], and b, float16[tokens, 64], of two slices. Random scales: rows,
        float32[rows, 2], of d and m, and of tokens, float32[tokens, 2], of d and z; with these, outputs stay finite."""
        rng, rows = np.random.default_rng(self.tokens), self.rows

        def scales(count: int) -> Floats:
            return (rng.choice([-1, 1], (count, 2)) * rng.uniform(2**-9, 2**-8, (count, 2))).astype(np.float32)

        return {
            "a": rng.integers(0, 16, (rows, _SLICE)).astype(np.float16),
            "b": rng.integers(-127, 128, (self.tokens, 2 * _SLICE)).astype(np.float16),
            "rows": scales(rows),
            "tokens": scales(self.tokens),
        }

    def launch(self, host: Host, blocks: int, turns: int) -> Launched:
        """Prepare launches of `blocks` thread blocks. Raises EnvironmentFault."""
        of = self.source
        kernel = host.load(of.root, of.file, of.entry, of.defines, of.target)
        y = host.output(4 * self.rows * self.tokens)
        given = [host.upload(array) for array in self.inputs.values()]
        return Launched(self, host, kernel, blocks, [*given, y, np.int64(turns)])

    def expected(self, turns: int) -> Floats:
        """The outputs of a block, float32[rows, tokens]."""
        a, b = (self.inputs[name].astype(np.float32) for name in ("a", "b"))
        sums = [a @ b[:, i : i + _SLICE].T for i in (0, _SLICE)]  # exact, of integers
        (dw, mw), (d, z) = ([column[:, None] for column in self.inputs[name].T] for name in ("rows", "tokens"))
        d, z = d.T, (z if self.loaded else np.resize(z[:16], z.shape)).T
        if self.arrangement == "PRODUCTS":
            return sums[0] + sums[1]
        others = np.array(dw * d)
        acc = np.zeros_like(others)
        apart = self.arrangement == "APART"
        if apart:
            turns = turns * self.multipliers // (self.warpgroups - self.multipliers)
        for u in range(self.slices * turns):
            if apart or self.arrangement == "TERMS_ALONE":
                acc, others = others, self._added(acc, dw, mw, d, z, others)
            else:
                acc = self._added(acc, dw, mw, d, z, sums[u % 2])
            if self.minimum != "OFFSET":
                dw = (dw.view(np.uint32) + np.uint32(1)).view(np.float32)
        if apart:
            acc[: self.multipliers * _ROWS] = (sums[0] + sums[1])[: self.multipliers * _ROWS]
        return acc

    def _added(self, acc: Floats, dw: Floats, mw: Floats, d: Floats, z: Floats, sums: Floats) -> Floats:
        """`add_term` of common.cuh."""
        if self.minimum == "OFFSET":
            return _fma(dw, _fma(d, sums, z), acc)
        acc = _fma(dw * d, sums, acc)
        return acc if self.minimum == "NONE" else _fma(mw, z, acc)


@dataclass(frozen=True)
class Launched:
    """A probe whose inputs are on a host."""

    probe: Probe
    host: Host
    kernel: Any
    blocks: int
    args: list[Any]

    def __call__(self) -> None:
        self.host.launch(
            self.kernel, (self.blocks, 1, 1), (128 * self.probe.warpgroups, 1, 1), self.args, 144 * self.probe.tokens
        )  # a token's 64 halves, and its scales of two slices

    @property
    def outputs(self) -> Floats:
        """Of the first block, float32[rows, tokens]."""
        return np.asarray(self.host.download(self.args[-2])).view(np.float32).reshape(-1, self.probe.tokens)


def _fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a·b + c, rounded once wherever a long double has more digits than a double."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def probes() -> Iterator[Probe]:
    """Yield all timed probes."""
    for arrangement, shapes in SHAPES.items():
        for minimum in MINIMA if arrangement != "PRODUCTS" else ("NONE",):
            for tokens, warpgroups in shapes:
                yield Probe(arrangement, minimum, tokens, warpgroups)
            for columns, groups, tiles in LOADED_SHAPES.get(arrangement, ()):
                yield Probe(arrangement, minimum, columns, groups, tiles, True)


def measured(queue: Queue, repeat: int) -> list[Record]:
    """Time the probes on every multiprocessor of a GPU; none on a GPU without `wgmma`. Raises KernelFault if one is
    incorrect, and EnvironmentFault."""
    found: list[Record] = []
    for probe in probes() if CARDS.target(str(queue.sm)) else ():
        few = probe.launch(queue, 1, 2)
        few.args[-2].fill(0x7F)  # the memory may hold correct outputs of the previous probe
        few()
        if few.outputs.tobytes() != probe.expected(2).tobytes():
            raise KernelFault(f"the probe of terms has incorrect bits: {probe}")
        blocks = queue.multiprocessors
        turns = int(_FLOP / blocks / probe.flop) // 2 * 2
        us = median_us(probe.launch(queue, blocks, turns), 1, repeat, queue.cupy)
        found.append({
            "arrangement": probe.arrangement, "minimum": probe.minimum, "columns": probe.tokens,
            "warpgroups": probe.warpgroups, "tiles": probe.tiles, "loaded": probe.loaded,
            "us": us, "TFLOP/s": blocks * turns * probe.flop / us / 1e6,
        })  # fmt: skip
    return found


_WORDS = """\
The actual bound of such kernels was measured: the GPU executed only the instructions that the definition `q8_1`
requires. For each slice these are two `wgmma` of halves into new sums, and for each output two or three float
operations; nothing is unpacked, and there are no barriers. Rates are in TFLOP/s of the products to which the
instructions belong, the best of several sizes. *In turn*: a warpgroup adds terms after its products, while others
multiply. *Overlapped*: it multiplies the next slice while it adds the terms of one. *Apart*: some warpgroups only
multiply, and others only add terms of constant sums; no kernel can do that, since a term needs a sum that was just
computed. *With scales* is the better one of the first two, with tokens' scales loaded from shared memory for each
slice; in the other columns they stay in registers. The fastest kernel is shown with its share of that rate. It also
waits for its weights and activations, and unpacks codes."""


def shown(data: dict[str, Any], family: str) -> str:
    """Format the best rate of each arrangement and of the family's fastest kernel; "" if none was timed."""
    best: dict[tuple[str, str], float] = {}
    for r in data.get("terms", []):
        key = _LOADED if r["loaded"] else r["arrangement"], r["minimum"]
        best[key] = max(best.get(key, 0.0), r["TFLOP/s"])
    rows = []
    for minimum, (types, operations) in MINIMA.items():
        names = (*SHAPES, _LOADED)
        rates = [best.get((name, "NONE" if name == "PRODUCTS" else minimum), 0.0) for name in names]
        if not all(rates):
            return ""
        measured_at = (r for r in data["results"] if (r["who"], r["M"]) == (family, MOST_TOKENS))
        ours = [r for r in measured_at if r["type"] in types]
        cell = ""
        if ours:
            fastest = max(ours, key=lambda r: float(r["TFLOP/s"]))
            cell = f"{fastest['type']}: {fastest['TFLOP/s']:.0f} ({100 * fastest['TFLOP/s'] / rates[-1]:.0f} %)"
        rows.append([", ".join(types), operations, *(f"{rate:.0f}" for rate in rates), cell])
    head = ["type", "float operations", "products alone", "terms alone", "in turn", "overlapped", "apart", _LOADED]
    return f"{_WORDS}\n\n{table([*head, f'fastest, M = {MOST_TOKENS}'], rows)}"
