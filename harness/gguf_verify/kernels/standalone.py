"""Export of a shipped kernel as one self-contained header of CUDA C++, for one weight type and one shape.

The launches of the kernel are recorded without a GPU and written as C++. The sources of each launch, with their
includes and tables inlined, are placed in a namespace of their own, so that several headers fit in one translation
unit; `pack` and `multiply` launch them with `<<<>>>` on the same grids as this project does. So any kernel can be
exported, whatever it launches, and the bits are those that this project verifies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..formats.block import BlockFormat
from ..hosts.base import Grid, Source
from ..hosts.tables import headers
from ..results.environment import HostInfo
from ..support.errors import UsageError
from ..support.paths import kernel_root
from .interface import Weights
from .launches import Launched, Placeholder, Recording, Unforeseen
from .spec import KernelSpec

#: Threads and bytes of shared memory of a multiprocessor (CUDA Programming Guide, compute capability 9.0), and the
#: number of multiprocessors of the largest GPU: further blocks would only wait.
_THREADS, _SHARED, _MULTIPROCESSORS = 2048, 228 << 10, 148
#: The alignment of scratch buffers, that of `cudaMalloc`.
_ALIGNED = 256
_STATIC_SHARED = 48 << 10
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(?:"([^"]+)"|(FORMAT_HEADER))[^\n]*\n?', re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)


class _Paper(Recording):
    """A host that records what would be loaded and launched on a GPU of compute capability `sm`."""

    name = "paper"
    threads = 1

    def __init__(self, sm: str) -> None:
        super().__init__()
        self.sm = sm
        self.outputs: list[Placeholder] = []

    def info(self) -> HostInfo:
        return HostInfo(name=self.name, device="none", sm=self.sm)

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Source:
        return Source(root, file, entry, defines, target)

    def output(self, nbytes: int, what: str = "output") -> Placeholder:
        self.outputs.append(Placeholder(nbytes, f"{what} {len(self.outputs)}"))
        return self.outputs[-1]

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        if grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:  # CUDA Programming Guide, compute capabilities
            raise UsageError(f"no GPU can launch that many thread blocks: {' × '.join(map(str, grid))}")
        super().launch(kernel, grid, block, args, shared)

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        return _MULTIPROCESSORS * max(1, min(_THREADS // threads, _SHARED // (shared + 1024)))

    def side_by_side(self, output: Any, rows: Any) -> tuple[Any, Any]:
        raise Unforeseen


@dataclass(frozen=True)
class Exported:
    """A kernel as a header.

    Args:
        spec: the record of the kernel.
        fmt, m, n, k: the type of the weights; tokens, rows and columns.
        sm: compute capability of the GPU, e.g. "90".
        root: the folder of the sources.
    """

    spec: KernelSpec
    fmt: BlockFormat
    m: int
    n: int
    k: int
    sm: str
    root: Path

    @classmethod
    def of(
        cls, spec: KernelSpec, fmt: BlockFormat, m: int, n: int, k: int, sm: str, root: Path | None = None
    ) -> Exported:
        """Create an export.

        Raises UsageError if the kernel does not cover the type, or the shape is invalid or too large; EnvironmentFault
        if it does not run on such a GPU.
        """
        if not spec.covers(fmt):
            raise UsageError(f"kernel {spec.name} does not cover type {fmt.name}")
        if min(m, n, k) < 1 or k % fmt.block_size:
            raise UsageError(f"M, N and K are at least 1, and K is a multiple of {fmt.block_size} for {fmt.name}")
        if max(m * n, m * k, n * k) * 4 >= 1 << 63:  # kernels count bytes and elements in int64
            raise UsageError(f"no GPU can address the arrays of M×N×K = {m}×{n}×{k}"[:200])
        spec.cards.target_or_fault(spec.name, sm)
        return cls(spec, fmt, m, n, k, sm, root or kernel_root())

    @property
    def name(self) -> str:
        """Name of the namespace, unless another is given."""
        return f"{self.spec.name}_{self.fmt.name}_{self.m}x{self.n}x{self.k}".lower()

    @property
    def architecture(self) -> str:
        """The argument for nvcc's `-gencode`."""
        target = self.spec.cards.target(self.sm)
        return f"arch=compute_{target},code=sm_{target}"

    def text(self, name: str = "") -> str:
        """Return the text of the header."""
        name, of_file = name or self.name, Placeholder(self.n * self.fmt.row_bytes(self.k), "weights")
        packing, packed = self._packing()
        taken = packed or of_file
        product, given, out = self._product(taken)
        sources = self.sources()
        places = {source.key: f"part_{i}" for i, source in enumerate(sources)}
        parts = [f"namespace {places[s.key]} {{\n{_flattened(s)}}}  // namespace {places[s.key]}\n" for s in sources]
        scratch, total = _places(product.outputs)
        if packed:
            call = _Call(places, {of_file: "weights", packed: "packed"})
            parts.append(call.function(_PACK, packing.launched))
        call = _Call(places, {**scratch, taken: "weights", given: "x", out: "y"})
        parts.append(call.function(_MULTIPLY, product.launched))
        before = _BEFORE.format(
            name=name,
            m=self.m,
            n=self.n,
            k=self.k,
            weights=of_file.nbytes,
            packed=packed.nbytes if packed else 0,
            scratch=total,
        )
        return self._head(name, packed) + before + "\n".join(parts) + f"\n}}  // namespace gguf::{name}\n"

    def sources(self) -> list[Source]:
        """Return the launched sources, each once: those of the namespaces part_0, part_1, …"""
        launched = (*self._packing()[0].launched, *self._product(Placeholder(0, "weights"))[0].launched)
        return list({one.kernel.key: one.kernel for one in launched}.values())

    def _packing(self) -> tuple[_Paper, Placeholder | None]:
        """Record the packing of the weights; also return the packed ones, None if the kernel reads the file's bytes."""
        paper = _Paper(self.sm)
        rows = np.broadcast_to(np.uint8(0), (self.n, self.fmt.row_bytes(self.k)))
        with suppress(Unforeseen):  # raised by the check of the packed weights
            self.spec.launch.prepare(self.spec.site(paper, self.root), self.fmt, rows)
        if len(paper.outputs) > 1:
            raise NotImplementedError(f"{self.spec.name} packs weights into several buffers")
        return paper, next(iter(paper.outputs), None)

    def _product(self, taken: Placeholder) -> tuple[_Paper, Placeholder, Placeholder]:
        """Record the product; also return its activations and outputs."""
        paper = _Paper(self.sm)
        given, out = Placeholder(4 * self.m * self.k, "activations"), Placeholder(4 * self.m * self.n, "outputs")
        weights = Weights(self.fmt, self.n, self.k, taken)
        self.spec.launch.multiply_values(self.spec.site(paper, self.root), weights, given, out, self.m)
        return paper, given, out

    def _head(self, name: str, packed: Placeholder | None) -> str:
        spec, fmt = self.spec, self.fmt
        order = "in an order that it does not declare" if spec.order is None else f"in {spec.order}"
        first = "pack(weights, packed) once, then " if packed else ""
        given = "packed" if packed else "weights"
        return f"""\
// {spec.name} of gguf-verify (MIT licence) for {fmt.name}: y = x·wᵀ of weights w[{self.n}][{self.k}], as a
// GGUF file has them, and activations x[{self.m}][{self.k}], float32. The definition is
// {spec.semantics}: {spec.definition.title}.
// Terms are added {order}.
//
//     nvcc -std=c++17 -fmad=false -gencode {self.architecture} …
//
// In gguf::{name}: {first}multiply({given}, x, y, scratch).
// All are pointers to device memory, at multiples of 256; scratch has SCRATCH_BYTES.
#pragma once
"""


_BEFORE = """\
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace gguf::{name} {{

constexpr int64_t M = {m}, N = {n}, K = {k};
constexpr size_t WEIGHT_BYTES = {weights}, PACKED_BYTES = {packed}, SCRATCH_BYTES = {scratch};

struct Pointer {{  // to what a kernel's parameter says
    const void* at;
    template <class T>
    operator T*() const {{
        return (T*)at;
    }}
}};

"""
_PACK = "cudaError_t pack(const void* weights, void* packed, cudaStream_t stream = nullptr)"
_MULTIPLY = (
    "cudaError_t multiply(const void* weights, const float* x, float* y, void* scratch, cudaStream_t stream = nullptr)"
)


@dataclass(frozen=True)
class _Call:
    """Writer of launches.

    Args:
        places: the namespace of each source.
        buffers: the C++ expression for each buffer.
    """

    places: dict[tuple[str, ...], str]
    buffers: dict[Placeholder, str]

    def function(self, signature: str, launches: Sequence[Launched]) -> str:
        """Return the text of a function that makes these launches."""
        lines = [f"inline {signature} {{"]
        for launched in launches:
            source: Source = launched.kernel
            kernel = f"{self.places[source.key]}::{source.entry}"
            if launched.shared > _STATIC_SHARED:
                lines += [
                    "    if (const cudaError_t error = cudaFuncSetAttribute((const void*)"
                    f"{kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, {launched.shared}))",
                    "        return error;",
                ]
            args = ", ".join(map(self._argument, launched.args))
            sizes = ", ".join(f"dim3({', '.join(map(str, size))})" for size in (launched.grid, launched.block))
            lines.append(f"    {kernel}<<<{sizes}, {launched.shared}, stream>>>({args});")
            lines.append("    if (const cudaError_t error = cudaGetLastError()) return error;")
        return "\n".join([*lines, "    return cudaSuccess;", "}", ""])

    def _argument(self, value: Any) -> str:
        if isinstance(value, Placeholder):
            return f"Pointer{{{self.buffers[value]}}}"
        kind = np.asarray(value).dtype
        if kind.kind not in "iu":
            raise NotImplementedError(f"an argument of type {kind}")
        return f"({kind.name}_t){int(value)}"


def _places(outputs: Sequence[Placeholder]) -> tuple[dict[Placeholder, str], int]:
    """Return the C++ expressions of buffers in the scratch memory, and its size."""
    found, at = {}, 0
    for buffer in outputs:
        found[buffer] = f"(uint8_t*)scratch + {at}"
        at += -(-buffer.nbytes // _ALIGNED) * _ALIGNED
    return found, at


def _flattened(source: Source) -> str:
    """Return a source with all its includes inlined, its macros defined before it and undefined after it.

    The emulator, which is for the CPU, is omitted.
    """
    tables, seen = headers(), set[str]()

    def resolve(name: str, of: str) -> str:
        for candidate in ((source.root / of).parent / name, source.root / name):
            if candidate.is_file():
                return str(candidate.resolve().relative_to(source.root.resolve()))
        raise FileNotFoundError(f"{of} includes {name}")

    def expand(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = tables[file] if file in tables else (source.root / file).read_text()
        return _INCLUDE.sub(_included(file), text.replace("#pragma once\n", ""))

    def _included(of: str) -> Callable[[re.Match[str]], str]:
        def text_of(match: re.Match[str]) -> str:
            name = match[1] or source.defines["FORMAT_HEADER"].strip('"')
            if "emulator/" in name:
                return ""
            return expand(name if name in tables else resolve(name, of))

        return text_of

    text = expand(source.file).replace('extern "C" __global__', "static __global__")
    given = "".join(f"#define {name} {value}\n" for name, value in source.defines.items())
    ends = "".join(f"#undef {name}\n" for name in sorted({*_MACRO.findall(text), *source.defines}))
    return given + text + ends
