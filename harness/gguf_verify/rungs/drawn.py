"""A kernel without a model: the blocks and layers rungs on random weights and activations.

A random matrix is made for each type and shape, quantized by llama.cpp, and laid into a GGUF file of this run's scratch
folder, so that everything that reads a model reads it. The "graph" is then one product of each matrix and number of
tokens, which llama.cpp computes outside of any model. Without llama.cpp (`NoReference`), the weights are
random bits of the type under finite scales, and the kernel is judged by the exact product alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ..formats.block import BlockFormat
from ..formats.tensor_types import ACTIVATION_FORMATS, FORMATS, WeightFormat
from ..gguf.file import Tensor
from ..gguf.model import Model, open_model
from ..kernels.domain import Extent
from ..kernels.interface import Candidate
from ..llama.answers import Started
from ..llama.backends import Backend
from ..llama.evaluations import Evaluation
from ..llama.gemms import Gemm
from ..llama.library import Llama
from ..llama.process import LlamaRefused
from ..results.environment import FileInfo
from ..results.options import Options
from ..results.products import DrawnData, DrawnProduct
from ..semantics.definition import Semantics
from ..semantics.definitions import SEMANTICS, llama_cpu_semantics
from ..support import scratch
from ..support.errors import UsageError
from ..support.near import nearest
from .generated_inputs import any_blocks, representable
from .run import Run
from .session import opened_llama

if TYPE_CHECKING:
    from .session import Session

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: The value of `--reference` for no llama.cpp.
NONE = "none"
#: The rungs that need no model.
DRAWN_RUNGS = ("blocks", "layers", "values", "codes", "packing")
#: What the report calls the file.
NAME = "random weights"
#: The default shape: it is small, since the probe plan has the others.
M, N, K = 4, 64, 1024
#: The most values of one matrix of weights, activations or outputs.
MOST_VALUES = 1 << 26
#: One activation in this number is an outlier, by this factor, as in real models.
_OUTLIERS, _FACTOR = 128, 40.0
_ALIGNMENT = 32


@dataclass(frozen=True)
class Drawn:
    """Random data in place of a model, for `verify` and `identify_model`.

    Args:
        types: of the weights; empty for all that the kernel takes.
        m: numbers of tokens, each at least 1; empty for a small one of the kernel's domain.
        n, k: numbers of rows and columns, of which every pair is a matrix; empty likewise.

    Raises UsageError for a type that does not exist, and a size that is none or too large.
    """

    types: tuple[str, ...] = ()
    m: tuple[int, ...] = ()
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in self.types:
            if name not in FORMATS:
                there = f"there are: {', '.join(FORMATS)}"
                raise UsageError(f"no type of weights is called {ascii(name)[:60]}; {nearest(name, FORMATS)}{there}")
        for what, sizes in (("M", self.m), ("N", self.n), ("K", self.k)):
            if any(size < 1 for size in sizes):
                raise UsageError(f"-{what} must be at least 1")
        m, n, k = (max(sizes, default=1) for sizes in (self.m, self.n, self.k))
        for what, size in (("M·K", m * k), ("N·K", n * k), ("M·N", m * n)):
            if size > MOST_VALUES:
                raise UsageError(f"{what} is {size:,} values; at most {MOST_VALUES:,} are generated")

    @property
    def wanted(self) -> frozenset[str] | None:
        """The types of weights that a kernel is needed for; None for all that it takes."""
        return frozenset(self.types) or None

    def matrices(self, kernel: Candidate) -> list[tuple[BlockFormat, int, int]]:
        """Type, rows and columns of each matrix. Raises UsageError where the kernel takes no type, and where K is no
        whole number of blocks."""
        formats = [FORMATS[t] for t in dict.fromkeys(self.types)] or [f for f in FORMATS.values() if kernel.covers(f)]
        if not formats:
            raise UsageError(
                f"kernel {kernel.name} takes no type of quantized weights, so random ones do not serve it; a quantizer "
                "of activations is verified on a model: gguf-verify MODEL.gguf --kernel …"
            )
        domain = kernel.domain
        rows = self.n or (domain.n.up(N) or domain.n.down(N) or N,)
        found = []
        for fmt in formats:
            unit = fmt.block_size
            if wrong := [size for size in self.k if size % unit]:
                near = -(-wrong[0] // unit) * unit
                raise UsageError(
                    f"-K {wrong[0]} is no whole number of {fmt.name} blocks of {unit} values; -K {near} is"
                )
            columns = self.k or (_near(domain.k, K, unit),)
            found += [(fmt, n, k) for n in rows for k in columns]
        return found

    def tokens(self, kernel: Candidate) -> tuple[int, ...]:
        """The numbers of tokens."""
        domain = kernel.domain.m
        return tuple(dict.fromkeys(self.m)) or (domain.down(M) or domain.up(M) or M,)


def _near(extent: Extent, value: int, unit: int) -> int:
    """The nearest multiple of `unit` in the extent; `value` where there is none, which is then reported as outside."""
    for step, start in ((extent.up, value), (extent.down, value)):
        found = step(start)
        for _ in range(unit):
            if found is None or found % unit == 0:
                break
            found = step(found + (1 if step == extent.up else -1))
        if found is not None and found > 0 and found % unit == 0:
            return found
    return value


# ---- random data -----------------------------------------------------------------------------------------------------


def draw_activations(m: int, k: int, seed: int) -> Floats:
    """float32[M, K]: Gaussian values, of which one in 128 is up to 40 times as large, as real activations have."""
    rng = np.random.default_rng((1, seed, m, k))
    x = rng.standard_normal((m, k))
    x *= np.where(rng.integers(0, _OUTLIERS, (m, k)) == 0, rng.uniform(1.0, _FACTOR, (m, k)), 1.0)
    return np.asarray(x, np.float32)


def draw_weights(fmt: BlockFormat, n: int, k: int, seed: int, llama: Llama | None) -> tuple[Bytes, bool]:
    """uint8[N, row bytes], and whether llama.cpp quantized them: Gaussian rows of several sizes. Otherwise (there is no
    llama.cpp, or it cannot make the type) they are random bits under finite scales."""
    if llama is not None:
        rng = np.random.default_rng((2, seed, n, k))
        values = rng.standard_normal((n, k)) * rng.choice([0.003, 0.02, 0.02, 0.3], (n, 1))
        try:
            return llama.quantize(fmt.type_id, np.asarray(values, np.float32)), True
        except LlamaRefused:
            pass
    return any_blocks(fmt, n * k // fmt.block_size, seed).reshape(n, -1), False


def write_file(path: Path, tensors: Mapping[str, tuple[BlockFormat, Bytes]]) -> None:
    """A GGUF file of version 3 (ggml/docs/gguf.md) with these matrices, rows uint8[N, row bytes] each, and no keys."""
    infos, data = b"", bytearray()
    for name, (fmt, rows) in tensors.items():
        k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        infos += struct.pack("<Q", len(name)) + name.encode()
        infos += struct.pack("<IQQIQ", 2, k, len(rows), fmt.type_id, len(data))
        data += rows.tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 0) + infos
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)


# ---- llama.cpp, which need not be there ------------------------------------------------------------------------------


class NoReference(Backend):
    """No llama.cpp: nothing is compared with it. What its CPU backend would compute is known (`llama_cpu_semantics`),
    and only the gap to that definition's exact product is reported."""

    compared = False

    def __init__(self) -> None:
        self.name, self.title, self.properties = NONE, "no llama.cpp", Started("", "", "")

    def describe(self) -> str:
        return "llama.cpp was not run"

    def definition(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        return llama_cpu_semantics(fmt)

    def token_counts(self, m: int) -> tuple[int, ...]:
        return ()


class _Products:
    """In place of a model in llama.cpp's process: the products of the random matrices."""

    def __init__(self, run: DrawnRun) -> None:
        self._run = run

    def capture(self, tokens: list[int], *_: Any, **__: Any) -> Iterator[Gemm | Evaluation]:
        """Each product, then what the graph does beside them, which is nothing."""
        run = self._run
        for tensor in run.model.tensors.values():
            fmt = tensor.type.format
            assert fmt is not None
            for m in run.tokens_of(fmt):
                yield self._product(tensor, fmt, m)
        yield Evaluation(np.zeros((0, 0), np.float32), {}, {}, {})

    def _product(self, tensor: Tensor, fmt: BlockFormat, m: int) -> Gemm:
        run, rows = self._run, self._run.row_bytes(tensor)
        x = draw_activations(m, tensor.k, run.options.seed)
        if run.kernel.computes in ("gemm", "experts"):
            x = representable(run.semantics(fmt), fmt, rows, x)
        definition = run.backend.definition(fmt, m)
        # not a number: what llama.cpp did not compute is never correct
        y = np.full((m, len(rows)), np.nan, np.float32)
        gemm = Gemm(tensor.name, f"{tensor.name}, M={m}", fmt.type_id, x, y, {}, zlib.crc32(rows.data), tokens=m)
        if not run.backend.compared:
            for semantics in (definition, SEMANTICS["q8_1"]):
                if semantics.activations is not None:
                    gemm.quantized[semantics.activations.type_id] = semantics.bytes_of(x)
            return gemm
        for kind in ACTIVATION_FORMATS.values():
            if tensor.k % kind.block_size == 0:
                gemm.quantized[kind.type_id] = run.library.from_float(kind.type_id, x)
        quantized = gemm.quantized
        gemm = run.backend.computed(gemm, definition, fmt, rows, run.options.threads)
        gemm.quantized.update({kind: taken for kind, taken in quantized.items() if kind not in gemm.quantized})
        return gemm


class _Session:
    """As `Session`, for the random products."""

    def __init__(self, run: DrawnRun) -> None:
        self.llama = _Products(run)
        self.prompt: list[int] = []
        self.note = None if run.backend.compared else (
            "llama.cpp was not run: the kernel was judged by exact products alone, also on activations as this "
            "project encodes them for llama.cpp"
        )  # fmt: skip

    def passes(self) -> Iterator[tuple[list[int], int]]:
        """One."""
        yield [], 0

    def close(self) -> None:
        """Nothing is open."""


def check_reference(path: object, options: Options) -> None:
    """Raises UsageError where there can be no such reference for this data."""
    if options.reference == NONE and not isinstance(path, Drawn):
        raise UsageError(
            "--reference none: only llama.cpp knows a model's graph; random data need no reference (gguf-verify kernel)"
        )
    if not options.reference:
        raise UsageError("--reference needs a device's name; `gguf-verify devices` lists them")


@dataclass(frozen=True)
class DrawnRun(Run):
    """A verification on random data."""

    tokens: tuple[int, ...] = (M,)
    data: DrawnData = field(default_factory=lambda: DrawnData(seed=0))

    @property
    def backend(self) -> Backend:
        if self.options.reference == NONE:
            return self.resources.get("backend", NoReference)
        return super().backend

    @property
    def versions(self) -> dict[str, Any]:
        if self.options.reference == NONE:
            return dict.fromkeys(("llama_cpp_python", "llama_cpp", "ggml", "system"), "not asked")
        return super().versions

    @property
    def session(self) -> Session:
        return self.resources.get("session", lambda: _Session(self))  # type: ignore[return-value]

    def tokens_of(self, fmt: BlockFormat) -> tuple[int, ...]:
        """The requested numbers of tokens, and one more for each other path of llama.cpp's backend."""
        seen = {self.backend.path(self.backend.definition(fmt, m)) for m in self.tokens}
        return (*self.tokens, *(m for path, m in self.backend.paths.items() if path not in seen))

    @property
    def blocks_are(self) -> str:
        return "drawn blocks"

    def file_info(self, wait: bool = True) -> FileInfo:
        return replace(super().file_info(wait), path=NAME)


@contextmanager
def drawn_run(drawn: Drawn, kernel: Candidate, options: Options) -> Iterator[DrawnRun]:
    """A run of a kernel on random data, whose file exists meanwhile.

    Raises UsageError if no data suit the kernel; EnvironmentFault.
    """
    llama = None if options.reference == NONE else opened_llama(options)
    try:
        tensors: dict[str, tuple[BlockFormat, Bytes]] = {}
        made = True
        for fmt, n, k in drawn.matrices(kernel):
            rows, by_llama = draw_weights(fmt, n, k, options.seed, llama)
            tensors[f"drawn.{fmt.name}.{n}x{k}"] = fmt, rows
            made &= by_llama
        tokens = drawn.tokens(kernel)
        folder = scratch.folder("drawn")
        try:
            write_file(folder / "drawn.gguf", tensors)
            with open_model(folder / "drawn.gguf") as model:
                yield _run(model, kernel, options, tokens, made, llama)
        finally:
            scratch.remove_folder(folder)
    finally:
        if llama is not None:
            llama.close()


def _run(
    model: Model, kernel: Candidate, options: Options, tokens: tuple[int, ...], made: bool, llama: Llama | None
) -> DrawnRun:  # fmt: skip
    products = tuple(
        DrawnProduct(type=t.type.name, m=m, n=t.n_rows, k=t.k) for t in model.tensors.values() for m in tokens
    )
    data = DrawnData(
        products=products, seed=options.seed, compared=llama is not None,
        weights="Gaussian values, quantized by llama.cpp" if made else "random bits under finite scales",
        activations=f"Gaussian values, one in {_OUTLIERS} an outlier of up to {_FACTOR:g} times",
    )  # fmt: skip
    run = DrawnRun(model, kernel, options, tokens=tokens, data=data)
    if llama is not None:
        run.resources.get("library", lambda: llama)  # the process that quantized; after a crash, the run starts another
    return run
