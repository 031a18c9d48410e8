"""The time of kernels on a GPU, compared in one run with llama.cpp's CUDA backend, with other libraries, and with the
GPU's limits.

A product is checked before it is timed. At the first and last rows of the weights it must have the bits of the naive
kernel, on the same activations (a kernel with another order of summation: the bits of the exact product in that order;
a kernel without a declared order: outputs within the bound). Each timed product is one of many in a CUDA graph. It
quantizes the activations, rearranges them if necessary, and multiplies them by the next of several copies of the
weights, which together are larger than the second-level cache. If a kernel's launches may overlap, they do: it loads
its weights while the previous product ends. A figure is the median over --repeat graphs, divided by the number of
products.

llama.cpp is timed if the installed llama-cpp-python has the CUDA backend: `ggml_mul_mat` of the same weights, in graphs
with the same number of nodes, including the quantization of the activations. With PyTorch, cuBLAS and a dequantization
to halves followed by cuBLAS are timed, and vLLM's kernels if examples/engines/build.py has built them. Their outputs
must be near the product of the same weights with float32 activations (NMSE at most 1e-3 for activations quantized to 8
bits, 1e-4 for halves).

For a family (`q8_1`), the kernel that it selects for each shape is timed. With --members so is every other kernel of
the family, unless one launch takes several times as long. Shapes for which another kernel is faster are listed.

With the family q8_1, the operations of its definition alone are also timed on a Hopper GPU: the roof of products of
many tokens.

--readme writes the tables between the markers of a Markdown file, and --plot draws a roofline (SVG or PNG; it needs
matplotlib). Both also accept the JSON of earlier runs (--from), without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.by_name import find_kernel, on_host
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.support.errors import HarnessError
from gguf_verify.support.output import write_lines

from .. import markdown
from . import figures, sass, terms
from .gpu import Queue, copy_tbs, empty_us
from .llama_cuda import LlamaCuda, LlamaWeights
from .matrices import Activations, Dequantizer, Matrix
from .ours import Ours
from .rivals import OfMatrix, Rivals

#: A member of a family is not timed if its launch takes this many times as long as the choice; from this number of
#: tokens on, it is then skipped for larger numbers too, since other kernels gain more from them.
_HOPELESS, _MANY = 4.0, 64
#: The type and tokens of the ladder's table, for which every step is timed.
_LADDER = ("Q4_0", figures.LADDER_M)

Record = dict[str, Any]


class Bench:
    """One run. `faults` are kernels that failed, which are not timed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.queue = args, Queue()
        self.header: Record = {}
        self.results: list[Record] = []
        self.roofs: list[Record] = []
        self.terms: list[Record] = []
        self.faults: list[str] = []
        self.absent: dict[str, str] = {}
        self._x = {k: Activations(max(args.m), k, args.seed, self.queue.cupy) for k in args.k}
        self._best: dict[tuple[str, str, int, int, int], float] = {}
        self._program = sass.disassembler()

    # ---- the parts ---------------------------------------------------------------------------------------------------

    def run(self) -> Record:
        """Return all measurements for JSON."""
        args, queue = self.args, self.queue
        self._compile_ahead()
        llama, rivals = self._llama(), self._rivals()
        copy, empty = copy_tbs(queue.cupy, args.repeat), empty_us(queue, args.repeat)  # before heavy work
        peak = rivals.cublas(8192, 8192, 8192, args.repeat) if rivals else {}
        int8 = peak.get("cuBLAS int8")
        self.header = {
            "host": queue.describe(), "llama-cpp-python": llama.version if llama else None, "repeat": args.repeat,
            "copy TB/s": copy, "empty us": empty,
            "int8 TFLOP/s": 2 * 8192**3 / int8 / 1e6 if int8 else None, "GHz": queue.clock_ghz,
            "multiprocessors": queue.multiprocessors,
            "families": {f: FAMILIES[f].members[0].definition.title for f in args.kernels if f in FAMILIES},
        }  # fmt: skip
        header = self.header
        write_lines(
            header["host"],
            f"device copy {header['copy TB/s']:.2f} TB/s, int8 {header['int8 TFLOP/s']} TFLOP/s, "
            f"an empty kernel {header['empty us']:.2f} us",
        )
        if rivals:
            for (n, k), m in itertools.product(self._shapes(), args.m):
                for who, us in rivals.cublas(m, n, k, args.repeat).items():
                    self._record(who, "-", m, n, k, us, (1 if "int8" in who else 2) * n * k)
        for name, (n, k) in itertools.product(args.types, self._shapes()):
            self._matrix(Matrix(FORMATS[name], n, self._x[k], args.seed, queue.cupy), llama, rivals)
            if args.json:  # measurements are not lost if a run ends early
                args.json.write_text(json.dumps(self.data, indent=1))
        self._time_terms()
        return self.data

    @property
    def data(self) -> Record:
        """The measurements so far."""
        found = {"header": self.header, "absent": self.absent, "faults": self.faults, "roofs": self.roofs}
        return {**found, "terms": self.terms, "results": self.results}

    def _matrix(self, matrix: Matrix, llama: LlamaCuda | None, rivals: Rivals | None) -> None:
        self._time(matrix, llama, rivals)
        for name in self.args.kernels:
            if name in FAMILIES:
                of = on_host(FAMILIES[name], self.queue).of(matrix.fmt, max(self.args.m), matrix.n, matrix.k)
                self._roof(of, name, matrix)
        self.queue.cupy.get_default_memory_pool().free_all_blocks()

    def _time(self, matrix: Matrix, llama: LlamaCuda | None, rivals: Rivals | None) -> None:
        """Time everything of few tokens before anything of many, after which a GPU seems to be slower for a while. One
        H200: Q2_K with one token took 12.9 µs, and 19.3 right after cuBLAS's products of 4096 tokens, whereas products
        that wait for memory took what they always do (Q8_0 16.6 and 16.3)."""
        ours, hopeless = Ours(self.queue, matrix), set[str]()
        of_rivals = rivals.of(matrix) if rivals and matrix.n in self.args.rivals_n else None
        with ExitStack() as held:
            theirs = self._llama_weights(llama, matrix, held) if llama else None
            for m in sorted(self.args.m):
                if theirs and not self._time_llama(theirs, matrix, m):
                    theirs = None
                if of_rivals:
                    self._time_rivals(of_rivals, matrix, m)
                self._time_ours(ours, m, hopeless)

    def _shapes(self) -> list[tuple[int, int]]:
        return [(n, k) for k in self.args.k for n in self.args.n]

    def _llama(self) -> LlamaCuda | None:
        if not self.args.llama:
            return None
        try:
            return LlamaCuda()
        except (RuntimeError, OSError, ImportError) as error:
            self.absent["llama.cpp"] = str(error)
            print(f"llama.cpp is not timed: {error}", file=sys.stderr)
            return None

    def _rivals(self) -> Rivals | None:
        try:
            rivals = Rivals(self.queue) if self.args.cublas else None
        except ImportError as error:
            self.absent["cuBLAS"] = str(error)
            return None
        if rivals:
            self.absent |= rivals.absent
        return rivals

    # ---- others ------------------------------------------------------------------------------------------------------

    def _llama_weights(self, llama: LlamaCuda, matrix: Matrix, held: ExitStack) -> LlamaWeights | None:
        try:
            return held.enter_context(llama.weights(matrix))
        except (HarnessError, RuntimeError) as error:
            self._fault(str(error))
            return None

    def _time_llama(self, weights: LlamaWeights, matrix: Matrix, m: int) -> bool:
        """Time llama.cpp. Returns False if it cannot multiply such weights."""
        try:
            us = weights.time(m, self.args.repeat)
        except (HarnessError, RuntimeError) as error:
            self._fault(str(error))
            return False
        if us is None:
            self.absent[f"llama.cpp, {matrix.fmt.name}"] = "its CUDA backend does not multiply such weights"
            return False
        self._record(LlamaCuda.name, matrix.fmt.name, m, matrix.n, matrix.k, us, matrix.nbytes)
        return True

    def _time_rivals(self, of: OfMatrix, matrix: Matrix, m: int) -> None:
        name, best = matrix.fmt.name, dict[str, tuple[float, str]]()
        for who, how, us in of.time(m, self.args.repeat, m in figures.SOME_TOKENS):
            if isinstance(us, str):
                self.absent[f"{who}, {how}, {name}, M {m}"] = us
            elif us < best.get(who, (float("inf"), ""))[0]:
                best[who] = us, how
        for who, (us, how) in best.items():
            self._record(who, name, m, matrix.n, matrix.k, us, matrix.nbytes, how or None)

    # ---- ours --------------------------------------------------------------------------------------------------------

    def _candidates(self, fmt: BlockFormat, m: int, n: int, k: int) -> Iterator[tuple[str, ShippedKernel]]:
        """Yield the recorded name of a kernel, and the kernel; the choices of families first."""
        chosen = set()
        for name in self.args.kernels:
            kernel = on_host(find_kernel(name), self.queue).of(fmt, m, n, k)
            chosen.add(kernel.name)
            if self._runs(kernel.spec, fmt):
                yield name, kernel
        for family in self.args.kernels if self.args.members else ():
            for spec in FAMILIES[family].members if family in FAMILIES else ():
                if spec.name not in chosen and self._runs(spec, fmt):
                    yield spec.name, ShippedKernel(spec, self.queue)

    def _runs(self, spec: KernelSpec, fmt: BlockFormat) -> bool:
        return spec.covers(fmt) and spec.cards.target(str(self.queue.sm)) is not None

    def _compile_ahead(self) -> None:
        if self._times_terms:
            self.queue.compile_ahead(probe.source for probe in terms.probes())
        for n, k in self._shapes():
            for name in self.args.types:
                fmt = FORMATS[name]
                self.queue.compile_ahead([Dequantizer.source(fmt)])
                for m in self.args.m:
                    for _, kernel in self._candidates(fmt, m, n, k):
                        self.queue.compile_ahead(kernel.sources(fmt, m, n, k))
        self.queue.await_compilers()

    def _time_ours(self, ours: Ours, m: int, hopeless: set[str]) -> None:
        """Time m tokens: choices, then members, which are compared with them. `hopeless` ones are not launched for more
        tokens."""
        fmt, n, k = ours.matrix.fmt, ours.matrix.n, ours.matrix.k
        every = (fmt.name, m) == _LADDER
        for name, kernel in sorted(self._candidates(fmt, m, n, k), key=lambda of: of[0] not in FAMILIES):
            skipped = kernel.name in hopeless and name not in FAMILIES and not every
            if skipped or 2 * m * n * k > self.args.most * 1e12:
                continue
            if self._time_kernel(ours, kernel, name, m, every) and m >= _MANY:
                hopeless.add(kernel.name)

    def _time_kernel(self, ours: Ours, kernel: ShippedKernel, name: str, m: int, every: bool) -> bool:
        """Check and time a kernel. Returns True if it was not timed: it failed, or one launch takes several times as
        long as its family's choice."""
        matrix = ours.matrix
        of = (kernel.spec.semantics, matrix.fmt.name, m, matrix.n, matrix.k)
        try:
            with self.queue.faults():
                compared = name not in FAMILIES and not every and of in self._best
                if compared and ours.alone(kernel, m) > _HOPELESS * self._best[of]:
                    return True
                ours.check(kernel, m)
                us = ours.time(kernel, m, self.args.repeat)
        except HarnessError as error:
            self._fault(str(error))
            return True
        if name in FAMILIES:
            self._best[of] = us
        by = kernel.name if name in FAMILIES else None
        self._record(name, matrix.fmt.name, m, matrix.n, matrix.k, us, matrix.nbytes, by)
        return False

    def _roof(self, kernel: ShippedKernel, family: str, matrix: Matrix) -> None:
        """Record the instructions of a kernel's inner loop, and the resulting roof."""
        fmt, m, n, k, queue = matrix.fmt, max(self.args.m), matrix.n, matrix.k, self.queue
        sources = [s for s in kernel.sources(fmt, m, n, k) if s.file == kernel.spec.file]
        known = any((r["type"], r["who"]) == (fmt.name, family) for r in self.roofs)
        if self._program is None or not sources or known:
            return
        loops = []
        for source in sources:
            text = sass.disassembled(queue.code(source), self._program)
            loops.append((source, sass.inner_loop(text, source.entry)))
        source, loop = max(loops, key=lambda of: of[1].products if of[1] else 0)
        if loop is None:
            return
        function = queue.load(source.root, source.file, source.entry, source.defines, source.target)
        self.roofs.append({
            "who": family, "by": kernel.name, "type": fmt.name, "M": m, "registers": function.num_regs,
            "local bytes": function.local_size_bytes, "instructions": loop.each(loop.instructions, fmt.group),
            "float instructions": loop.each(loop.floats, fmt.group),
            "TFLOP/s": loop.roof(fmt.group, queue.multiprocessors, queue.clock_ghz), "block bytes": fmt.block_bytes,
            "block values": fmt.block_size,
        })  # fmt: skip

    @property
    def _times_terms(self) -> bool:
        return figures.FAMILY in self.args.kernels and terms.CARDS.target(str(self.queue.sm)) is not None

    def _time_terms(self) -> None:
        """Time the operations that a family's definition requires; last, on a warm GPU."""
        try:
            with self.queue.faults():
                self.terms = terms.measured(self.queue, self.args.repeat) if self._times_terms else []
        except HarnessError as error:
            self._fault(str(error))

    # ---- what is kept ------------------------------------------------------------------------------------------------

    def _record(
        self, who: str, kind: str, m: int, n: int, k: int, us: float, nbytes: int, by: str | None = None
    ) -> None:
        row = {"who": who, "type": kind, "M": m, "N": n, "K": k, "us": us, "TFLOP/s": 2 * m * n * k / us / 1e6,
               "TB/s of weights": nbytes / us / 1e6, "weight bytes": nbytes}  # fmt: skip
        self.results.append(row if by is None else {**row, "by": by})
        if not self.args.quiet:
            write_lines(f"{who:<18} {kind:<7} M {m:<5} N {n:<6} K {k:<6} {us:9.1f} us  {row['TFLOP/s']:7.1f} TFLOP/s  "
                  f"{row['TB/s of weights']:5.2f} TB/s  {by or ''}")  # fmt: skip

    def _fault(self, what: str) -> None:
        if what not in self.faults:
            self.faults.append(what)
            print(f"not timed: {what}", file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kernels`."""
    add = parser.add_argument
    names, weights = [*FAMILIES, *KERNELS], [name for name, fmt in FORMATS.items() if fmt.weights]
    add("--types", nargs="+", choices=sorted(weights), default=weights, metavar="TYPE", help="weight types (all)")
    add("--n", nargs="+", type=int, default=[4096, 14336], help="numbers of rows")
    add("--k", nargs="+", type=int, default=[4096], help="numbers of columns")
    add("-m", nargs="+", type=int, default=[1, 2, 4, 8, 16, 64, 128, 512, 4096], help="numbers of tokens")
    add("--kernels", nargs="+", choices=names, default=list(FAMILIES), metavar="NAME", help="kernels and families")
    add("--members", action="store_true", help="also time every kernel of the families")
    add("--repeat", type=int, default=10, help="number of timed graphs (%(default)s)")
    add("--most", type=float, default=1.0, help="skip products with more TFLOP (%(default)s)")
    add("--rivals-n", nargs="+", type=int, default=[14336], help="numbers of rows for rivals other than llama.cpp")
    add("--no-cublas", dest="cublas", action="store_false", help="time neither cuBLAS nor vLLM's kernels")
    add("--no-llama", dest="llama", action="store_false", help="do not time llama.cpp")
    add("--quiet", action="store_true", help="do not print a line per product")
    add("--seed", type=int, default=0, help="seed of weights and activations")
    add(
        "--from",
        dest="earlier",
        nargs="+",
        type=Path,
        metavar="FILE.json",
        help="use these results, and measure nothing",
    )
    add("--json", type=Path, metavar="FILE", help="write the measurements")
    add("--plot", type=Path, metavar="FILE.svg", help="draw a roofline")
    add("--readme", type=Path, metavar="FILE.md", help="write the tables between this file's markers")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write. Returns the exit code: 1 if a kernel or a rival is incorrect."""
    data = figures.load(args.earlier) if args.earlier else Bench(args).run()
    if args.json:
        args.json.write_text(json.dumps(data, indent=1))
    write_lines(figures.choices(data) or "no family was timed beside its members")
    if args.plot:
        figures.roofline(data, args.plot)
    if args.readme:
        markdown.fill(args.readme, figures.tables(data), "bench")
    return 1 if data.get("faults") else 0
