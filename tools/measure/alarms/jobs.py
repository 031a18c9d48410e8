"""Jobs of false alarms: matrices of weights, the activations, and the kernels that multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.element import ElementFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.hosts.choice import HOSTS
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ELEMENT_KERNELS
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.rungs.field_classes import every_class, values_of_classes
from gguf_verify.rungs.generated_inputs import any_blocks, special
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.support.errors import EnvironmentFault

from ..inputs import WEIGHTS, Bytes, Floats, Matrix, captured, fits, in_type, requantized, text

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
Kind = Literal["real", "random", "special", "codes of -128", "classes of scales and sums", "classes of encoded fields"]
#: Those that kernels get as blocks, since no quantizer writes them.
ENCODED: tuple[Kind, ...] = ("codes of -128", "classes of encoded fields")
#: Those in which some values overflow the definition's range.
EXTREME: tuple[Kind, ...] = ("special", "classes of scales and sums", "classes of encoded fields")
#: For real activations: number of texts, and tokens per text.
TEXTS, TEXT_TOKENS = 6, 128
SCALES = (1e-3, 0.03, 1.0, 20.0)
ANY_BITS, CLASSES = "any bits", "each class of each field"
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


def random_bytes(fmt: BlockFormat, n: int, k: int, rng: np.random.Generator) -> Bytes:
    """Generate random blocks whose values are finite and below 2^20, uint8[n, row bytes]."""
    rows = n * k // fmt.block_size
    found = np.zeros((0, fmt.block_bytes), np.uint8)
    while len(found) < rows:
        blocks = rng.integers(0, 256, (2 * rows, fmt.block_bytes), np.uint8)
        found = np.concatenate([found, blocks[_small(fmt, blocks)]])
    return np.ascontiguousarray(found[:rows].reshape(n, -1))


def blocks_of_classes(fmt: BlockFormat, n: int, k: int, rng: np.random.Generator) -> Bytes:
    """Generate random blocks with the probe plan's fields at each class of their number format, uint8[n, row bytes].
    Values are finite and below 2^20."""
    own = random_bytes(fmt, n, k, rng).reshape(-1, fmt.block_bytes)
    made = every_class(fmt, own)
    made = made[_small(fmt, made)]
    return np.ascontiguousarray(np.resize(rng.permutation(made), own.shape).reshape(n, -1))


def _small(fmt: BlockFormat, blocks: Bytes) -> npt.NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        return np.asarray(fmt.finite(blocks) & (np.abs(fmt.decode(blocks)) < 2.0**20).all(axis=-1))


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


def activations_of_classes(m: int, k: int, seed: int) -> Floats:
    """Generate float32[m, k] from the probe plan's activations whose scale or sum is at each class of a half."""
    return np.resize(np.random.default_rng((seed, m, k)).permutation(values_of_classes(k)), (m, k))


def blocks_of_activations(fmt: BlockFormat, taken: Bytes, seed: int) -> Bytes:
    """Generate activations uint8[M, row bytes] of `fmt` with each field at each class of its number format, from
    ordinary ones of the same shape."""
    made = np.tile(every_class(fmt, taken[:, : fmt.block_bytes]), (1, taken.shape[1] // fmt.block_bytes))
    return np.resize(np.random.default_rng((seed, *taken.shape)).permutation(made), taken.shape)


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
                    found.append(Matrix(CLASSES, "", fmt, blocks_of_classes(fmt, n, k, rng), x, False))
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
                if matrix.source not in (ANY_BITS, CLASSES) and (short or kind == "random"):
                    jobs.append(Job(i, "llama.cpp", 256 if short else 8, seed, kind))
            if matrix.source in ("drawn", ANY_BITS, CLASSES) and isinstance(matrix.fmt, BlockFormat) and short:
                jobs += [Job(i, of, ODD, seed, "special") for of in ("q8_1", "f32", "f16")]
                jobs += [Job(i, "q8_1", ODD, seed, kind) for kind in ("classes of scales and sums", *ENCODED)]
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
        turn: Sequence[Kind] = ("real", "random", "classes of scales and sums", *ENCODED, "special")
        chosen = turn[number // len(fill) % len(turn)]
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
