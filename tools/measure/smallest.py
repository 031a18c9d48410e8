"""The smallest single fault that the default verification finds in a large matrix, in sampled rows and in the others.

A fault changes the term of one random block of weights, for all tokens, by a factor of 1 + ε: as a scale would that is
read incorrectly (its lowest bit is 2⁻¹¹ to 2⁻¹⁰ of it). For each of 40 random blocks the smallest ε = 2^-i is searched
with which the fault is found. The table has the ε at which 36 of the 40 are found:

- sampled: the row is judged by itself, by its bound and its score, without a declared order.
- single: the row was not sampled, and each random combination is judged by itself, as before 2026-11-28.
- together: the row was not sampled, and combinations are also judged together over all tokens, as by default.

The kernel adds in ascending order. Weights are random, of rows of different sizes, quantized by llama.cpp; 2,048 rows
have combinations together, and 256 of them are sampled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.rungs.sampling import ROWS, RUNS, runs, together
from gguf_verify.semantics.combinations import GROUP, Combinations, Noise
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Doubles, Product, Rows
from gguf_verify.support.errors import UsageError
from gguf_verify.support.output import write_lines

from .inputs import Bytes, Floats, in_type
from .markdown import EVIDENCE, fill, table
from .measure import Measure

#: The definition of the kernel.
_DEFINITION = SEMANTICS["q8_1"]
#: Faults of each kind, the number that must be found, and the smallest ε that is tried.
_PLACES, _FOUND, _LEAST = 40, 36, 2.0**-24
_KINDS = ("sampled", "single", "together")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("--types", default="Q4_0,Q5_1,Q8_0,Q4_K,Q6_K", help="types of weights (%(default)s)")
    add("--columns", default="1024,4096,14336", metavar="K", help="numbers of columns (%(default)s)")
    add("--tokens", default="1,8,64", metavar="M", help="numbers of tokens (%(default)s)")
    add("-s", "--seed", type=int, default=0, help="random seed (%(default)s)")
    add("--no-page", action="store_true", help="do not write the table to docs/evidence.md")


class Place(NamedTuple):
    """The fault of one block: its row and its term, float64[M]."""

    row: int
    term: Doubles


@dataclass(frozen=True)
class Correct:
    """A correct product of a matrix, and its judgement.

    Args:
        y: outputs, float32[M, N].
        sampled: numbers of the sampled rows.
        of_sampled: their product.
        combined, expected, noise: of `Combinations`.
    """

    fmt: BlockFormat
    w: Bytes
    x: Bytes
    y: Floats
    sampled: Rows
    of_sampled: Product
    combined: Combinations
    expected: Doubles
    noise: Noise

    @classmethod
    def of(cls, fmt: BlockFormat, w: Bytes, values: Floats, seed: int) -> Correct:
        """Multiply activations float32[M, K]."""
        x = _DEFINITION.bytes_of(values)
        y = screened(_DEFINITION, fmt, w, x, ASCENDING).ordered
        assert y is not None
        sampled = together(runs(len(w), RUNS, ROWS, (seed,)))
        of_sampled = screened(_DEFINITION, fmt, w[sampled], x)
        combined = Combinations(fmt, w, seed)
        expected = combined.expected(_DEFINITION, x)
        noise = combined.noise(sampled, y[:, sampled], of_sampled)
        return cls(fmt, w, x, y, sampled, of_sampled, combined, expected, noise)

    def places(self, rng: np.random.Generator, of_sampled: bool) -> Iterator[Place]:
        """Yield the places of random faults, in sampled rows or in the others."""
        rows = self.sampled if of_sampled else np.setdiff1d(np.arange(len(self.w)), self.sampled)
        size = self.fmt.block_bytes
        taken = self.x.shape[1] * size // self.w.shape[1]
        for row in rng.choice(rows, _PLACES):
            block = int(rng.integers(self.w.shape[1] // size))
            of_block = np.ascontiguousarray(self.w[row : row + 1, block * size : (block + 1) * size])
            x = np.ascontiguousarray(self.x[:, block * taken : (block + 1) * taken])
            yield Place(int(row), product(_DEFINITION, self.fmt, of_block, x).exact[:, 0])

    def finder(self, kind: str) -> Callable[[Place, float], bool]:
        """Return the function that takes a fault and ε, and returns whether it is found."""
        noise = self.noise if kind == "together" else replace(self.noise, limit=np.inf)

        def found(place: Place, share: float) -> bool:
            wrong = (self.y[:, place.row] + share * place.term).astype(np.float32)
            if kind == "sampled":
                of_row = product(_DEFINITION, self.fmt, self.w[place.row : place.row + 1], self.x)
                return not judge(wrong[:, None], of_row).passed
            y = self.y.copy()
            y[:, place.row] = wrong
            return self.combined.suspicious(y, self.expected, noise)

        return found


def smallest(found: Callable[[float], bool]) -> float:
    """Return the smallest power of two with which a fault is found; infinite if 1 is not."""
    low, high = -1, int(-np.log2(_LEAST))  # found with 2^-low, not with 2^-(high + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if found(2.0**-middle) else (low, middle - 1)
    return 2.0**-low if low >= 0 else np.inf


def measure(fmt: BlockFormat, w: Bytes, tokens: int, seed: int) -> dict[str, float]:
    """Return the smallest ε of each kind. Raises UsageError if correct outputs are suspicious."""
    rng = np.random.default_rng((seed, tokens))
    columns = w.shape[1] // fmt.block_bytes * fmt.block_size
    of = Correct.of(fmt, w, rng.standard_normal((tokens, columns)).astype(np.float32), seed)
    if of.combined.suspicious(of.y, of.expected, of.noise):
        raise UsageError(f"{fmt.name}, K = {columns}, M = {tokens}: correct outputs are suspicious")
    result = {}
    for kind in _KINDS:
        found = of.finder(kind)
        sizes = [smallest(partial(found, place)) for place in of.places(rng, kind == "sampled")]
        result[kind] = float(np.sort(sizes)[_FOUND - 1])
    return result


def _words(share: float) -> str:
    if not share < np.inf:
        return "not found"
    power = round(-np.log2(share))
    return f"2{''.join('⁻' if c == '-' else '⁰¹²³⁴⁵⁶⁷⁸⁹'[int(c)] for c in str(-power))}" if power else "1"


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write the page."""
    types, lists = options.types.split(","), (options.columns, options.tokens)
    columns, tokens = ([int(n) for n in of.split(",")] for of in lists)
    head = ["type", "K", *(f"{m} token{'s' * (m > 1)}: {kind}" for m in tokens for kind in _KINDS)]
    rows: list[list[object]] = []
    bar = tqdm(total=len(types) * len(columns) * len(tokens), desc="smallest faults", unit="product", disable=None)
    with Llama() as llama, bar:
        for name in types:
            fmt = FORMATS[name]
            for k in columns:
                rng = np.random.default_rng((options.seed, k))
                values = rng.standard_normal((GROUP, k), np.float32) * np.exp(rng.standard_normal((GROUP, 1)) / 2)
                w, row = in_type(fmt, values.astype(np.float32), llama), list[object]([name, f"{k:,}"])
                for m in tokens:
                    row += [_words(share) for share in measure(fmt, w, m, options.seed).values()]
                    bar.update()
                rows.append(row)
                write_lines(" | ".join(map(str, row)))
    if not options.no_page:
        fill(EVIDENCE, {"faults": table(head, rows)}, "smallest")
    return 0


MEASURE = Measure(
    "smallest", "the smallest single fault that the default verification finds", __doc__ or "", add_arguments, run
)
