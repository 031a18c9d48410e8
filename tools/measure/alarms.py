"""False alarms: the number of correct outputs that the verifier rejects. It should be zero.

Outputs of every shipped kernel and of llama.cpp, on real and random weights and activations, are judged like in the
rungs, including their bits. The bytes of the activation quantizer are compared with those of the encoder. The inputs
include the values of the probe plan (zeros of both signs, blocks of zeros, subnormal scales, outliers, codes of -128,
random blocks) and odd numbers of tokens, rows and blocks. Jobs and values depend on the requested seeds, models and
numbers, not on the number of processes. A run resumes where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gguf_verify.formats import BlockFormat, ElementFormat, WeightFormat
from gguf_verify.hosts.choice import HOSTS, make_host
from gguf_verify.kernels.by_name import on_host
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ELEMENT_KERNELS, ShippedKernel
from gguf_verify.llama import Llama, LlamaRefused
from gguf_verify.rungs.generated_inputs import any_blocks, special, with_least_codes
from gguf_verify.rungs.plan import PLAN
from gguf_verify.semantics.accumulation import LANES_LIMIT
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS, llama_cpu_semantics
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import Order
from gguf_verify.semantics.sums import Product
from gguf_verify.support import scratch
from gguf_verify.support.errors import EnvironmentFault, KernelFault, UsageError
from gguf_verify.support.output import write_lines

from . import results
from .inputs import QUANTIZED, UNQUANTIZED, WEIGHTS, Bytes, Floats, Matrix, captured, fits, in_type, requantized, text
from .measure import Measure
from .workers import workers

#: Kernels that are fast on a CPU. The others, whose barriers are emulated there, get few tokens.
QUICK = frozenset({
    "q8_1_naive", "q8_1_dp4a", "f32_naive", "f16_naive", "q8_1", "f32", "f16",
    *(k.name for k in ELEMENT_KERNELS.values()),
})  # fmt: skip
#: Numbers of tokens at which kernels and families select different code.
OTHER_M = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 131)
#: Tokens of a job, and of a slow kernel on a CPU.
TOKENS, FEW = 1024, 33
#: Tokens of the jobs that only increase the number of outputs, with short rows.
MANY = 4096
#: Maximum rows of the model's own matrices, and of matrices that are quantized here or random.
OWN_ROWS, OTHER_ROWS = 256, 47
#: Number of tokens for the probe plan's values.
ODD = 129
#: Kinds of activations: from the model, random, and from the probe plan.
Kind = Literal["real", "random", "special", "codes of -128"]
#: For real activations: number of texts, and tokens per text.
TEXTS, TEXT_TOKENS = 6, 128
SCALES = (1e-3, 0.03, 1.0, 20.0)
LISTED = 100
#: The number of the first job that replaces outputs that could not be judged.
MORE = 100_000
ANY_BITS = "any bits"
#: With larger activations, the sum of 32 overflows s, which is a half.
_LARGEST = 1500.0


@dataclass(frozen=True)
class Job:
    """One matrix, the activations, and the kernels that multiply them.

    Args:
        matrix: its index among the prepared ones.
        semantics: "q8_1", "f32", "f16", or the definition of an element type; "llama.cpp" for its own outputs.
        m: tokens.
        seed: of the activations.
        kind: of the activations.
        fill: whether the job only increases the number of outputs; then fewer kernels run on a CPU.
        every: whether the kernels also run with OTHER_M tokens.
    """

    matrix: int
    semantics: str
    m: int
    seed: int
    kind: Kind
    fill: bool = False
    every: bool = False


#: Properties by which outputs are counted.
_BY = ("kernel", "type", "weights", "activations", "K")


@dataclass
class Tally:
    """Counts of judged outputs and of failures. `cpu` has seconds of processor time."""

    outputs: int = 0
    quantized: int = 0
    by: dict[str, Counter[str]] = field(default_factory=lambda: {k: Counter() for k in _BY})
    n_alarms: int = 0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    utilisation: dict[str, float] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=lambda: {"exact products": 0.0, "judging": 0.0, "kernels": 0.0})

    def add(self, other: Tally) -> None:
        self.outputs += other.outputs
        self.quantized += other.quantized
        self.n_alarms += other.n_alarms
        self.alarms = sorted(self.alarms + other.alarms, key=lambda a: json.dumps(a, sort_keys=True))[:LISTED]
        for name, counts in other.by.items():
            self.by[name].update(counts)
        for mine, theirs in ((self.utilisation, other.utilisation), (self.score, other.score)):
            for who, value in theirs.items():
                mine[who] = max(mine.get(who, 0.0), value)
        for name, seconds in other.cpu.items():
            self.cpu[name] += seconds


# -- inputs ------------------------------------------------------------------------------------------------------------


def random_bytes(fmt: BlockFormat, n: int, k: int, rng: np.random.Generator) -> Bytes:
    """Generate random blocks whose values are finite and below 2^20, uint8[n, row bytes]."""
    rows = n * k // fmt.block_size
    found = np.zeros((0, fmt.block_bytes), np.uint8)
    while len(found) < rows:
        blocks = rng.integers(0, 256, (2 * rows, fmt.block_bytes), np.uint8)
        blocks = blocks[fmt.finite(blocks)]
        with np.errstate(all="ignore"):
            sound = (np.abs(fmt.decode(blocks)) < 2.0**20).all(axis=-1)
        found = np.concatenate([found, blocks[sound]])
    return np.ascontiguousarray(found[:rows].reshape(n, -1))


def random_activations(m: int, k: int, seed: int) -> Floats:
    """Generate rows of several scales, float32[m, k]; in three of four, some values are outliers or zero."""
    rng = np.random.default_rng((seed, m, k))
    x = rng.standard_normal((m, k), np.float32)
    x *= np.asarray(SCALES, np.float32)[rng.integers(len(SCALES), size=(m, 1))]
    outliers = (rng.random((m, k), np.float32) < 0.01) & (rng.random((m, 1)) < 0.5)
    x = np.where(outliers, x * np.float32(60), x)
    zeros = (rng.random((m, k), np.float32) < 0.05) & (rng.random((m, 1)) < 0.5)
    return np.ascontiguousarray(np.clip(np.where(zeros, np.float32(0), x), -_LARGEST, _LARGEST), np.float32)


def real_activations(x: Floats, m: int, seed: int) -> Floats:
    """Select m of the captured rows, float32[m, K]. A row that is used again is scaled, not by a power of two."""
    rng = np.random.default_rng((seed, m))
    rows = rng.permutation(len(x))
    picked = np.resize(rows, m)
    again = (np.arange(m) >= len(x)) * rng.uniform(0.5, 2, m)
    return np.ascontiguousarray(x[picked] * np.where(again, again, 1)[:, None], np.float32)


def special_activations(m: int, k: int, seed: int, quantized: bool) -> Floats:
    """Generate float32[m, k] from the probe plan's special values, each row scaled by another factor below 1."""
    rows = special(k, random_activations(1, k, seed), 1e4 if quantized else 1e6)
    factors = np.random.default_rng((seed, m, k)).uniform(0.3, 1, (m, 1)).astype(np.float32)
    return np.ascontiguousarray(np.resize(rows, (m, k)) * factors)


def prepared(models: Sequence[Path], seeds: Sequence[int], types: Sequence[str], small: bool = False) -> list[Matrix]:
    """Return the models' own matrices, some of them in every other type, and random ones.

    Raises EnvironmentFault if llama.cpp rejects a model.
    """
    found: list[Matrix] = []
    with Llama() as llama:
        for path in models:
            texts = [text(seed * TEXTS + i, TEXT_TOKENS) for seed in seeds for i in range(1 if small else TEXTS)]
            try:
                own = captured(path, texts, TEXT_TOKENS)
            except LlamaRefused as error:
                raise EnvironmentFault(f"{path.name}: {error}") from None
            own = [replace(m, rows=m.rows[:OWN_ROWS]) for m in own if m.x.any()]
            found += [m for m in own if m.fmt.name in types]
            first = {m.k: m for m in own if m.tensor != "output.weight"}
            for matrix in first.values():
                for name in types:
                    if fits(WEIGHTS[name], matrix.k) and name != matrix.fmt.name:
                        found.append(requantized(matrix, WEIGHTS[name], llama, OTHER_ROWS))
        rng = np.random.default_rng(list(seeds))
        for name in types:
            fmt = WEIGHTS[name]
            for k in (32, 96, 256) if small else (32, 64, 96, 256, 288, 512, 768, 4096, 14336):
                if not fits(fmt, k) or (isinstance(fmt, ElementFormat) and k > 4096):
                    continue
                n = 8 if k > 512 else OTHER_ROWS
                w = (rng.standard_t(4, (n, k)) * 0.05).astype(np.float32)
                x = np.zeros((1, k), np.float32)
                found.append(Matrix("drawn", "Student's t", fmt, in_type(fmt, w, llama), x, False))
                if isinstance(fmt, BlockFormat) and k <= 512:
                    found.append(Matrix("random bytes", "", fmt, random_bytes(fmt, n, k, rng), x, False))
                    blocks = any_blocks(fmt, n * k // fmt.block_size, int(rng.integers(1 << 30)))
                    found.append(Matrix(ANY_BITS, "", fmt, blocks.reshape(n, -1), x, False))
    return found


def jobs_for(matrices: Sequence[Matrix], seeds: Sequence[int], outputs: int, host: str) -> list[Job]:
    """Return jobs for each seed, matrix and kernel, and then with more tokens until there are `outputs` outputs."""
    jobs: list[Job] = []
    seen: set[tuple[object, ...]] = set()
    for seed in seeds:
        for i, matrix in enumerate(matrices):
            n, k = len(matrix.rows), matrix.k
            kinds: list[Kind] = ["random"] if not matrix.own and not matrix.x.any() else ["real", "random"]
            short = k <= 768
            for kind in kinds:
                element = isinstance(matrix.fmt, ElementFormat)
                definitions = [matrix.fmt.name.lower()] if element else ["q8_1", "f32", "f16"]
                for of in definitions:
                    shape = (matrix.fmt.name, n, k, of)
                    m = (TOKENS if of == "q8_1" else 192) if short else (48 if k <= 4096 and of == "q8_1" else 8)
                    jobs.append(Job(i, of, m, seed, kind, every=n * k <= 1 << 16 and shape not in seen))
                    seen.add(shape)
                if matrix.source != ANY_BITS and (short or kind == "random"):
                    jobs.append(Job(i, "llama.cpp", 256 if short else 8, seed, kind))
            if matrix.source in ("drawn", ANY_BITS) and isinstance(matrix.fmt, BlockFormat) and short:
                jobs += [Job(i, of, ODD, seed, "special") for of in ("q8_1", "f32", "f16")]
                jobs.append(Job(i, "q8_1", ODD, seed, "codes of -128"))
    left = outputs - sum(planned(job, matrices[job.matrix], host) for job in jobs)
    jobs += filling(matrices, left, host)
    # shuffled, so that a run cut short by the time limit has jobs of all kinds
    return [jobs[i] for i in np.random.default_rng(len(jobs)).permutation(len(jobs))]


def filling(matrices: Sequence[Matrix], outputs: int, host: str, first: int = 0) -> list[Job]:
    """Return jobs with this number of outputs. The first `first` jobs of the sequence are skipped."""
    fill = [
        i for i, m in enumerate(matrices)
        if m.fmt.block_size == 32 and m.k <= 256 and (m.own or m.source == "drawn" or m.k <= 128)
    ]  # fmt: skip
    jobs: list[Job] = []
    while outputs > 0 and fill:
        number = first + len(jobs)
        i = fill[number % len(fill)]
        turn: Sequence[Kind] = ("real", "random", "special", "codes of -128")
        chosen = turn[number // len(fill) % 4]
        kind = "random" if chosen == "real" and not matrices[i].x.any() else chosen
        jobs.append(Job(i, "q8_1", MANY - 1, 1000 + number, kind, fill=True))
        outputs -= planned(jobs[-1], matrices[i], host)
    return jobs


def calls(job: Job, fmt: WeightFormat, host: str) -> list[tuple[str, int]]:
    """Return (kernel or family, tokens) of each product in the job."""
    if job.semantics == "llama.cpp":
        return [("llama.cpp", job.m)]
    if isinstance(fmt, ElementFormat):
        found = [(ELEMENT_KERNELS[fmt.name].name, job.m)]
        return found + ([(found[0][0], m) for m in OTHER_M if m < job.m] if job.every else [])
    names = [name for name, spec in KERNELS.items() if spec.semantics == job.semantics and spec.covers(fmt)]
    found = []
    for name in names:
        if not HOSTS[host].emulated or name in QUICK:
            found.append((name, job.m))
        elif not job.fill or job.seed % 8 == 0:
            found.append((name, min(job.m, FEW)))
    if job.every:
        found += [(name, m) for name in (*names, job.semantics) for m in OTHER_M if m < job.m]
    return found


def definition_of(name: str, fmt: WeightFormat) -> Semantics:
    """Return the definition of this name for these weights; `f16` has another meaning for F16 weights."""
    declared = (spec.definition for spec in KERNELS.values() if spec.semantics == name)
    return next(declared, SEMANTICS[name]) if isinstance(fmt, BlockFormat) else SEMANTICS[name]


def planned(job: Job, matrix: Matrix, host: str) -> int:
    """The number of outputs that the job judges."""
    return len(matrix.rows) * sum(m for _, m in calls(job, matrix.fmt, host))


# -- work --------------------------------------------------------------------------------------------------------------


class Worker:
    """Does jobs on one host.

    Args:
        host: its name.
        matrices: the matrices that jobs refer to by index.
    """

    def __init__(self, host: str, matrices: Sequence[Matrix]) -> None:
        self.host, self.matrices = make_host(host, 1), matrices

    @cached_property
    def llama(self) -> Llama:
        return Llama()

    def close(self) -> None:
        if "llama" in self.__dict__:
            self.llama.close()

    def kernel(self, name: str, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        found = FAMILIES.get(name) or KERNELS.get(name) or ELEMENT_KERNELS[fmt.name]
        return on_host(found, self.host).of(fmt, m, n, k)

    def runs(self, name: str, fmt: WeightFormat, m: int, n: int, k: int) -> bool:
        """Whether this GPU has the kernel's instructions; always true for a CPU."""
        kernel = self.kernel(name, fmt, m, n, k)
        return self.host.sm is None or kernel.spec.cards.target(self.host.sm) is not None

    def do(self, job: Job) -> Tally:
        """Multiply and judge. Raises EnvironmentFault."""
        matrix, tally = self.matrices[job.matrix], Tally()
        if job.kind == "real":
            x = real_activations(matrix.x, job.m, job.seed)
        elif job.kind == "special":
            x = special_activations(job.m, matrix.k, job.seed, job.semantics == "q8_1")
        else:
            x = random_activations(job.m, matrix.k, job.seed)
        if job.semantics == "llama.cpp":
            self._llama(job, matrix, x, tally)
        else:
            self._kernels(job, matrix, x, tally)
        return tally

    def _llama(self, job: Job, matrix: Matrix, x: Floats, tally: Tally) -> None:
        fmt = matrix.fmt
        semantics = llama_cpu_semantics(fmt)
        start = time.process_time()
        y = self.llama.multiply(fmt.type_id, matrix.rows, x)
        tally.cpu["kernels"] += time.process_time() - start
        taken = semantics.bytes_of(x)
        if semantics.activations is not None:
            theirs = self.llama.from_float(semantics.activations.type_id, x)
            self._bytes(job, matrix, "llama.cpp's quantizer", theirs.reshape(taken.shape), taken, tally)
        self._judged(job, matrix, "llama.cpp", y, self._product(semantics.name, matrix, taken, None, tally), 0, tally)

    def _kernels(self, job: Job, matrix: Matrix, x: Floats, tally: Tally) -> None:
        fmt, n, k = matrix.fmt, len(matrix.rows), matrix.k
        taken, given = definition_of(job.semantics, fmt).bytes_of(x), job.kind == "codes of -128"
        if given:
            taken = with_least_codes(taken)
        if job.kind == "special" or job.semantics == "f16":  # outputs may overflow the definition's range
            finite = np.isfinite(self._product(job.semantics, matrix, taken, None, tally).exact)
            rows = finite.any(axis=0)
            tokens = finite[:, rows].all(axis=1)
            matrix = replace(matrix, rows=matrix.rows[rows])
            x, taken, n = x[tokens], taken[tokens], len(matrix.rows)
            if not tokens.any() or not rows.any():
                return
        products: dict[Order | None, Product] = {}
        uploaded: dict[str, Weights] = {}
        checked: set[int] = set()
        for name, m in calls(job, fmt, self.host.name):
            if not self.runs(name, fmt, m, n, k):
                continue
            kernel = self.kernel(name, fmt, m, n, k)
            # a random window of few tokens
            m = min(m, len(x))
            at = int(np.random.default_rng((job.seed, m)).integers(len(x) - m + 1))
            start = time.process_time()
            try:
                if kernel.layout not in uploaded:
                    uploaded[kernel.layout] = kernel.upload(fmt, matrix.rows)
                if given:
                    y = kernel.gemm(uploaded[kernel.layout], taken[at : at + m])
                else:
                    y = kernel.product(uploaded[kernel.layout], x[at : at + m])
                if m not in checked and job.semantics == "q8_1" and not given:
                    self._bytes(job, matrix, name, kernel.quantize(x[at : at + m]), taken[at : at + m], tally)
                    checked.add(m)
            except KernelFault as fault:
                self._alarm(job, matrix, name, {"what": str(fault)}, 1, tally)
                continue
            tally.cpu["kernels"] += time.process_time() - start
            if kernel.order not in products:
                products[kernel.order] = self._product(job.semantics, matrix, taken, kernel.order, tally)
            expected = products[kernel.order]
            part = expected if m == len(x) else expected.rows(np.arange(at, at + m))
            self._judged(job, matrix, name, y, part, at, tally)

    def _product(self, semantics: str, matrix: Matrix, taken: Bytes, order: Order | None, tally: Tally) -> Product:
        start = time.process_time()
        found = product(definition_of(semantics, matrix.fmt), matrix.fmt, matrix.rows, taken, order)
        tally.cpu["exact products"] += time.process_time() - start
        return found

    def _judged(
        self, job: Job, matrix: Matrix, who: str, y: Floats, expected: Product, first: int, tally: Tally
    ) -> None:
        start = time.process_time()
        found = judge(y, expected)
        tally.outputs += y.size
        names = (who, matrix.fmt.name, matrix.source, job.kind, str(matrix.k))
        for what, name in zip(_BY, names, strict=True):
            tally.by[what][name] += y.size
        tally.utilisation[who] = found.utilisation
        tally.score[who] = found.score
        if not found.passed:
            m, n = (int(i) for i in np.argwhere(found.bad)[0])
            exact, bound = float(expected.exact[m, n]), float(expected.bound[m, n])
            shown = {
                "what": "output", "token": first + m, "row": n, "got": float(y[m, n]), "exact": exact,
                "utilisation": abs(float(y[m, n]) - exact) / bound if bound else None,
                "score": abs(float(y[m, n]) - exact) / float(expected.spread[m, n]) if expected.spread[m, n] else None,
                "bits of the order": None if expected.ordered is None else bool(y[m, n] == expected.ordered[m, n]),
            }  # fmt: skip
            self._alarm(job, matrix, who, shown, int(found.bad.sum()), tally)
        tally.cpu["judging"] += time.process_time() - start

    def _bytes(self, job: Job, matrix: Matrix, who: str, got: Bytes, expected: Bytes, tally: Tally) -> None:
        tally.quantized += len(got) * matrix.k
        wrong = (got != expected).any(axis=1)
        if wrong.any():
            shown = {"what": "bytes of the quantizer", "token": int(np.argmax(wrong))}
            self._alarm(job, matrix, who, shown, int(wrong.sum()), tally)

    @staticmethod
    def _alarm(job: Job, matrix: Matrix, who: str, shown: dict[str, Any], count: int, tally: Tally) -> None:
        tally.n_alarms += count
        tally.alarms.append(
            {"by": who, "type": matrix.fmt.name, "weights": f"{matrix.source} {matrix.tensor}".strip(),
             "shape": [job.m, len(matrix.rows), matrix.k], "activations": job.kind, "seed": job.seed,
             "count": count, **shown}
        )  # fmt: skip


# -- processes ---------------------------------------------------------------------------------------------------------


def save(matrices: Sequence[Matrix], folder: Path) -> None:
    """Write matrices for `load` to array files; activations shared by several matrices are written once."""
    first = {id(matrix.x): i for i, matrix in reversed(list(enumerate(matrices)))}
    for i, matrix in enumerate(matrices):
        np.save(folder / f"rows{i}.npy", matrix.rows)
    for i in first.values():
        np.save(folder / f"x{i}.npy", matrices[i].x)
    named = [(m.source, m.tensor, m.fmt.name, m.own, first[id(m.x)]) for m in matrices]
    (folder / "matrices.json").write_text(json.dumps(named))


def load(folder: Path) -> list[Matrix]:
    """Read the output of `save` as memory maps, which the processes share."""
    found = []
    for i, (source, tensor, kind, own, of_x) in enumerate(json.loads((folder / "matrices.json").read_text())):
        rows, x = (np.load(folder / name, mmap_mode="r") for name in (f"rows{i}.npy", f"x{of_x}.npy"))
        found.append(Matrix(source, tensor, WEIGHTS[kind], rows, x, own))
    return found


_worker: Worker | None = None


def kept(path: Path, what: str) -> tuple[int, Tally]:
    """Return the number of jobs done by an earlier run, and their tally. Raises UsageError if its options differ."""
    if not path.exists():
        return 0, Tally()
    try:
        whole = json.loads(path.read_text())
        tally = Tally(**whole["tally"])
        tally.by = {name: Counter(counts) for name, counts in tally.by.items()}
        if whole["run"] != what:
            raise UsageError(f"{path} is of another run: {whole['run']}; this one is: {what}")
        return int(whole["done"]), tally
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} holds no checkpoint: {error!r}") from None


def keep(path: Path, what: str, done: int, tally: Tally) -> None:
    """Write the checkpoint for `kept`, atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"run": what, "done": done, "tally": vars(tally)}))
    part.replace(path)


def _start(host: str, folder: Path) -> None:
    global _worker
    _worker = Worker(host, load(folder))


def _do(job: Job) -> Tally:
    assert _worker is not None
    return _worker.do(job)


def done(host: str, matrices: Sequence[Matrix], jobs: Sequence[Job], processes: int) -> Iterator[Tally]:
    """Yield a tally for each job. Raises EnvironmentFault."""
    try:
        with scratch.temporary("measure") as folder:
            save(matrices, folder)
            with workers(processes, _start, host, folder) as over:
                yield from over(_do, jobs)
    finally:
        if _worker is not None:  # with one process, the worker is in this process
            _worker.close()


# -- the measure -------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add("models", nargs="*", type=Path, help="also use the matrices of these GGUF files")
    add("--host", choices=list(HOSTS), default="cpu", help="host that runs the kernels (%(default)s)")
    add("--outputs", type=lambda s: int(float(s)), default=10**9, help="minimum number of outputs to judge (1e9)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of texts and random values")
    add("-j", "--jobs", type=int, default=0, help="number of processes (default: one per core)")
    add("--time-limit", type=float, default=0, metavar="S", help="stop after S seconds")
    add("--types", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS), metavar="TYPE", help="weight types to use")
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="save the progress here; a later run with the same options resumes from it",
    )
    add("--small", action="store_true", help="only use short rows and texts, for a quick trial")
    results.add_argument(parser)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures for JSON. Raises EnvironmentFault if the host or llama.cpp is missing."""
    host = make_host(options.host, 1)
    began = time.perf_counter()
    matrices = prepared([*QUANTIZED, UNQUANTIZED, *options.models], options.seeds, options.types, options.small)
    jobs = jobs_for(matrices, options.seeds, options.outputs, options.host)
    processes = options.jobs or len(os.sched_getaffinity(0))
    what = f"plan {PLAN}, {options.host}, seeds {options.seeds}, {len(jobs)} jobs, {len(matrices)} matrices"
    first, total = kept(options.checkpoint, what) if options.checkpoint else (0, Tally())
    start, before = time.perf_counter(), total.outputs
    shown_at = start
    print(f"prepared in {start - began:.0f} s: {len(jobs)} jobs", file=sys.stderr)
    for number, tally in enumerate(done(options.host, matrices, jobs[first:], processes), first + 1):
        total.add(tally)
        now = time.perf_counter()
        late = options.time_limit and now - start > options.time_limit
        if options.checkpoint and (late or number == len(jobs) or now - shown_at > 20):
            keep(options.checkpoint, what, number, total)
        if late:
            break
        if now - shown_at > 20:
            shown_at = now
            rate = (total.outputs - before) / (now - start)
            print(f"{total.outputs:.3g} outputs, {rate:.3g} per second, {total.n_alarms} alarms", file=sys.stderr)
    else:  # some planned outputs overflowed and were not judged
        missing = options.outputs - total.outputs
        for tally in done(options.host, matrices, filling(matrices, missing, options.host, MORE), processes):
            total.add(tally)
    seconds = time.perf_counter() - start
    return {
        "plan": PLAN, "host": options.host, "device": host.describe(), "outputs": total.outputs,
        "alarms": total.n_alarms, "listed": total.alarms, "activations quantized": total.quantized,
        "seeds": list(options.seeds), "processes": processes, "seconds": round(seconds, 1),
        "seconds of preparation": round(start - began, 1),
        "cpu seconds": {name: round(value, 1) for name, value in total.cpu.items()},
        "by": {name: dict(sorted(counts.items())) for name, counts in total.by.items()},
        "utilisation": dict(sorted(total.utilisation.items())), "score": dict(sorted(total.score.items())),
    }  # fmt: skip


def rows(figures: dict[str, Any]) -> list[list[str]]:
    """Return table rows: quantity, measured, goal."""

    def highest(name: str) -> str:
        of_kernels = [value for who, value in figures[name].items() if who != "llama.cpp"]
        return f"kernels {max(of_kernels, default=0):.2g}, llama.cpp {figures[name].get('llama.cpp', 0):.2g}"

    where = f"host {figures['host']}"
    return [
        [
            f"false alarms, {where}, probe plan {figures['plan']}" if "plan" in figures else f"false alarms, {where}",
            f"{figures['alarms']:,} of {figures['outputs']:,} correct outputs",
            "0 of ≥ 10⁹",
        ],
        [f"of which llama.cpp's outputs, {where}", f"{figures['by']['kernel'].get('llama.cpp', 0):,}", ""],
        [f"highest utilisation of the bound, {where}", highest("utilisation"), "≤ 1"],
        [f"highest score, {where}", highest("score"), f"≤ {LANES_LIMIT:g}; higher ones are judged by lanes"],
    ]


def _run(options: argparse.Namespace) -> int:
    of_hosts = results.load(options.results).get("alarms", {})
    figures = measured(options)
    results.update(options.results, alarms=of_hosts | {options.host: figures})
    alarms = [f"ALARM {json.dumps(alarm)}" for alarm in figures["listed"]]
    write_lines("\n".join([*(" | ".join(row) for row in rows(figures)), *alarms]))
    return 1 if alarms else 0


MEASURE = Measure("alarms", "whether correct outputs fail", __doc__ or "", add_arguments, _run)
