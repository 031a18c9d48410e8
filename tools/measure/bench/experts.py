"""Products of mixtures of experts on a GPU: one grouped product of any routing, compared with llama.cpp's MUL_MAT_ID.

Before a product is timed, some of its slots must have the bits of the exact product of their experts in ascending k, at
the first and last rows. A graph has several products, each of tokens that are routed otherwise, so that other experts'
weights are read. The time includes quantizing the activations and the routing, for both. A figure is the
median over --repeat graphs, divided by the number of products.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.grouped import Grouped
from gguf_verify.kernels.routing import Routing, routed
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.support.errors import HarnessError, KernelFault, UsageError
from gguf_verify.support.output import write_lines

from .. import markdown
from .gpu import Queue, graph_us
from .llama_cuda import ExpertProduct, LlamaCuda
from .matrices import FEW_ROWS, LIMIT_8_BITS, Floats, ends, nmse, random_rows

#: Experts, experts of a token, rows of each and columns: of Mixtral's and Qwen3's kinds, and between them.
SHAPES = ((8, 2, 14336, 4096), (64, 8, 1408, 2048), (128, 8, 768, 2048))
#: Routings of a graph, and slots of a product that are checked.
_ROUTINGS, _CHECKED = 8, 6
_HOW = "different experts in a token"


class Mixture:
    """Weights of one type, activations, and several routings of each number of tokens."""

    def __init__(self, fmt: BlockFormat, shape: tuple[int, int, int, int], most: int, seed: int) -> None:
        self.fmt, (self.count, self.top_k, self.n, self.k) = fmt, shape
        self.rows = random_rows(fmt, self.count * self.n, self.k, seed)
        self.x: Floats = np.random.default_rng(seed).standard_normal((most, self.k), np.float32)

    def routings(self, m: int) -> list[Routing]:
        return [routed(_HOW, m, self.top_k, self.count, seed) for seed in range(_ROUTINGS)]

    def check(self, routing: Routing, y: Floats, exact: bool) -> None:
        """Compare some slots of y[m, top_k, n], at the first and last rows, with their products. Raises KernelFault."""
        m, semantics, of_expert = len(y), SEMANTICS["q8_1"], ends(self.n, FEW_ROWS)
        for slot in np.unique(np.linspace(0, m * self.top_k - 1, _CHECKED).astype(int)):
            token, at = divmod(int(slot), self.top_k)
            expert = int(routing.ids[token, at])
            rows, given = self.rows[expert * self.n + of_expert], self.x[token : token + 1]
            got = np.ascontiguousarray(y[token, at, of_expert])
            expected = product(semantics, self.fmt, rows, semantics.bytes_of(given), ASCENDING)
            assert expected.ordered is not None
            if exact:
                right = got.tobytes() == expected.ordered[0].tobytes()
            else:
                values = self.fmt.decode(rows.reshape(-1, self.fmt.block_bytes)).reshape(len(rows), self.k)
                right = nmse(got, values.astype(np.float64) @ given[0]) <= LIMIT_8_BITS
            if not right:
                who = "the grouped product" if exact else "llama.cpp's MUL_MAT_ID"
                raise KernelFault(f"{who} is wrong: {self.fmt.name}, {self.count} experts, M {m}, slot {slot}")


def ours_us(queue: Queue, mixture: Mixture, m: int, weights: Any, repeat: int) -> float:
    """Time our product, in microseconds. Raises KernelFault."""
    grouped, cupy, routings = Grouped(queue), queue.cupy, mixture.routings(m)
    x = queue.upload(mixture.x[:m])
    ids = [queue.upload(routing.ids) for routing in routings]
    out = queue.output(4 * m * mixture.top_k * mixture.n)
    for routing, of in zip(routings[:2], ids, strict=False):
        out.fill(0xFF)  # NaN: reused memory holds an earlier product
        grouped.multiply(weights, x, of, out, m, mixture.top_k)
        mixture.check(routing, queue.download(out).view(np.float32).reshape(m, mixture.top_k, mixture.n), exact=True)
    works = [lambda of=of: grouped.multiply(weights, x, of, out, m, mixture.top_k) for of in ids]
    return graph_us(works, repeat, cupy)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements for JSON."""
    queue, results, faults = Queue(), [], []
    try:
        llama: LlamaCuda | None = LlamaCuda()
    except (RuntimeError, OSError, ImportError) as error:
        llama = None
        print(f"llama.cpp is not timed: {error}", file=sys.stderr)
    for shape in SHAPES:
        for name in args.types:
            mixture = Mixture(FORMATS[name], shape, max(args.m), args.seed)
            weights = Grouped(queue).upload(mixture.fmt, mixture.rows, mixture.count)
            theirs = ExpertProduct(llama, mixture.fmt, mixture.rows, mixture.count) if llama else None
            for m in args.m:
                record = {"type": name, "experts": shape[0], "top_k": shape[1], "N": shape[2], "K": shape[3], "M": m}
                try:
                    with queue.faults():
                        record["us"] = ours_us(queue, mixture, m, weights, args.repeat)
                    if theirs:
                        ids = [routing.ids for routing in mixture.routings(m)]
                        record["llama.cpp us"], y = theirs.time(mixture.x[:m], ids, args.repeat)
                        mixture.check(mixture.routings(m)[-1], y, exact=False)
                except (HarnessError, RuntimeError) as error:
                    faults.append(str(error))
                    print(f"not timed: {error}", file=sys.stderr)
                    continue
                write_lines(" ".join(f"{key} {value}" for key, value in record.items()))
                results.append(record)
            if theirs:
                theirs.close()
            if args.json:
                args.json.write_text(json.dumps({"host": queue.describe(), "results": results, "faults": faults}))
    return {"host": queue.describe(), "results": results, "faults": faults}


def table(data: dict[str, Any]) -> str:
    """Format llama.cpp's time divided by ours, and ours in µs."""
    tokens = sorted({r["M"] for r in data["results"]})
    found: dict[tuple[Any, ...], dict[int, str]] = {}
    for r in data["results"]:
        cell = f"{r['llama.cpp us'] / r['us']:.2f}× ({r['us']:.4g})" if "llama.cpp us" in r else f"({r['us']:.4g})"
        found.setdefault((r["experts"], r["top_k"], r["N"], r["K"], r["type"]), {})[r["M"]] = cell
    rows = [[*key, *(of.get(m, "") for m in tokens)] for key, of in found.items()]
    return markdown.table(["experts", "of a token", "N", "K", "type", *(f"M = {m}" for m in tokens)], rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `experts`."""
    add = parser.add_argument
    weights = [name for name, fmt in FORMATS.items() if fmt.weights]
    add(
        "--types", nargs="+", choices=sorted(weights), default=["Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4"], metavar="TYPE"
    )
    add("-m", nargs="+", type=int, default=[1, 8, 64, 512], help="numbers of tokens")
    add("--repeat", type=int, default=10, help="number of timed graphs (%(default)s)")
    add("--seed", type=int, default=0, help="seed of weights and activations")
    add("--from", dest="earlier", type=Path, metavar="FILE.json", help="use these results, and measure nothing")
    add("--json", type=Path, metavar="FILE", help="write the measurements")
    add("--readme", type=Path, metavar="FILE.md", help="write the table between this file's markers")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write. Returns the exit code: 1 if an output is wrong."""
    if args.earlier:
        try:
            data = json.loads(args.earlier.read_text())
            text, faults = table(data), data["faults"]
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise UsageError(f"{args.earlier} holds no measurements: {error!r}") from None
    else:
        data = measured(args)
        text, faults = table(data), data["faults"]
    write_lines(text)
    if args.json:
        args.json.write_text(json.dumps(data, indent=1))
    if args.readme:
        markdown.fill(args.readme, {"experts": text}, "bench")
    return 1 if faults else 0
