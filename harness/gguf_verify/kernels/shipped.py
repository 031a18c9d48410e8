"""The kernels that this project ships, and how they are called: bytes in, float32 out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import ELEMENTS, BlockFormat, ElementFormat, WeightFormat
from ..hosts.base import Host
from ..semantics import ASCENDING, Order
from ..support.errors import UsageError
from ..support.paths import kernel_root
from .interface import Kernel, Weights
from .launch import ANY_CARD, MAX_GRID, THREAD_AN_OUTPUT, Cards, Launch, Tiles
from .packed import SPLIT, Gemv, SplitK, Wgmma

_THREADS = 256


@dataclass(frozen=True)
class KernelSpec:
    """One GEMM of `kernels/gemm`.

    Args:
        name: what `--kernel` takes.
        file: the source, below `kernels/`.
        semantics: the definition of the product that it declares (`gguf_verify.semantics`).
        order: the order in which it adds the terms of an output, so that its bits are known beforehand; None: it
            declares none.
        title: one phrase for listings.
        launch: how it is given its weights and run.
        formats: names of the quantized types that it covers; None for all.
        cards: the GPUs that it runs on.
        defines: macros that it is compiled with, beside the format's.
    """

    name: str
    file: str
    semantics: str
    order: Order | None
    title: str
    launch: Launch = THREAD_AN_OUTPUT
    formats: frozenset[str] | None = None
    cards: Cards = ANY_CARD
    defines: dict[str, str] = field(default_factory=dict)

    def covers(self, fmt: WeightFormat) -> bool:
        """Whether it multiplies such weights."""
        return self.formats is None or fmt.name in self.formats

    def defines_for(self, fmt: WeightFormat) -> dict[str, str]:
        """The macros that it is compiled with for such weights."""
        kind = "ELEMENT" if isinstance(fmt, ElementFormat) else "FORMAT"
        return {kind: fmt.name, "BLOCK_BYTES": str(fmt.block_bytes), **self.defines}

    def on(self, host: Host) -> ShippedKernel:
        """The kernel there."""
        return ShippedKernel(self, host)


#: Blocks of 32 values under one half scale.
LEGACY = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"})

KERNELS: dict[str, KernelSpec] = {
    k.name: k
    for k in (
        KernelSpec("f32_naive", "gemm/f32/01_naive.cu", "f32", ASCENDING, "W4A16/W8A16, one thread an output"),
        KernelSpec(
            "f32_tiled", "gemm/f32/02_tiled.cu", "f32", ASCENDING,
            "W4A16/W8A16, tiles of dequantized weights in shared memory", Tiles(16, 16),
        ),
        KernelSpec(
            "f32_vectorized", "gemm/f32/03_vectorized.cu", "f32", ASCENDING,
            "W4A16/W8A16, tiles in registers, loads of 16 bytes", Tiles(64, 128),
        ),
        KernelSpec("q8_1_naive", "gemm/q8_1/01_naive.cu", "q8_1", ASCENDING, "W4A8/W8A8, one thread an output"),
        KernelSpec(
            "q8_1_tiled", "gemm/q8_1/02_tiled.cu", "q8_1", ASCENDING,
            "W4A8/W8A8, tiles of unpacked codes in shared memory", Tiles(16, 16),
        ),
        KernelSpec(
            "q8_1_vectorized", "gemm/q8_1/03_vectorized.cu", "q8_1", ASCENDING,
            "W4A8/W8A8, tiles in registers, loads of 16 bytes", Tiles(64, 64),
        ),
        KernelSpec("q8_1_dp4a", "gemm/q8_1/04_dp4a.cu", "q8_1", ASCENDING, "W4A8/W8A8, four products an instruction"),
        KernelSpec(
            "q8_1_dp4a_tiled", "gemm/q8_1/05_dp4a_tiled.cu", "q8_1", ASCENDING,
            "W4A8/W8A8, four products an instruction, tiles in registers", Tiles(64, 64),
        ),
        KernelSpec(
            "q8_1_mma", "gemm/q8_1/06_mma.cu", "q8_1", ASCENDING,
            "W4A8/W8A8, tensor cores", Tiles(128, 128, 512), formats=LEGACY,
        ),
        KernelSpec(
            "q8_1_wgmma", "gemm/q8_1/07_wgmma.cu", "q8_1", ASCENDING,
            "W4A8/W8A8, pipelined tensor cores, packed weights", Wgmma(), formats=LEGACY, cards=Cards(exact="90a"),
        ),
        KernelSpec(
            "q8_1_gemv", "gemm/q8_1/08_gemv.cu", "q8_1", ASCENDING,
            "W4A8/W8A8, few tokens, packed weights read once", Gemv(), formats=LEGACY,
        ),
        KernelSpec(
            "q8_1_split_k", "gemm/q8_1/09_split_k.cu", "q8_1", Order(SPLIT), "W4A8/W8A8, as q8_1_wgmma, rows in parts",
            SplitK(), formats=LEGACY, cards=Cards(exact="90a"),
        ),
    )
}  # fmt: skip
#: By type: what multiplies weights that are not quantized, whichever kernel is chosen for the others.
ELEMENT_KERNELS: dict[str, KernelSpec] = {
    name: KernelSpec(
        f"{name.lower()}_elements", "gemm/elements/01_naive.cu", name.lower(), ASCENDING, "one thread an output"
    )
    for name in ELEMENTS
}
QUANTIZER = "quantize/q8_1.cu"
__all__ = ["ELEMENT_KERNELS", "KERNELS", "LEGACY", "QUANTIZER", "Kernel", "KernelSpec", "Multiply", "Weights"]
Multiply = Callable[["ShippedKernel", "Weights", Any, Any, int], None]


class ShippedKernel(Kernel):
    """A shipped kernel on a host.

    Args:
        spec: which one.
        host: where it runs.
        root: the folder of the sources; a test gives an altered copy.
    """

    def __init__(self, spec: KernelSpec, host: Host, root: Path | None = None) -> None:
        self.spec = spec
        self.host = host
        self.root = root or kernel_root()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def semantics(self) -> str:
        return self.spec.semantics

    @property
    def order(self) -> Order | None:
        return self.spec.order

    @property
    def any_shape(self) -> bool:
        return True

    @property
    def layout(self) -> str:
        return self.spec.launch.layout

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        """The kernel that multiplies [m, k] by such weights [n, k]: this one, or, beside it, that of weights that are
        not quantized."""
        return self if isinstance(fmt, BlockFormat) else ShippedKernel(ELEMENT_KERNELS[fmt.name], self.host, self.root)

    def covers(self, fmt: WeightFormat) -> bool:
        """Whether this kernel, or the one beside it, multiplies such weights."""
        return isinstance(fmt, ElementFormat) or self.spec.covers(fmt)

    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Activations `float32[M, K]` to what `gemm` takes: Q8_1 bytes `[M, K/32·36]`, or x itself where the
        semantics takes float32."""
        if self.semantics != "q8_1":
            return np.ascontiguousarray(x, np.float32).view(np.uint8)
        m, k = x.shape
        return self.host.download(self.quantized(self.host.upload(x.copy()), m * k // 32)).reshape(m, k // 32 * 36)

    def quantized(self, x: Any, n_blocks: int) -> Any:
        """`quantize` from a buffer of float32 to another; x itself where the semantics takes float32."""
        if self.semantics != "q8_1":
            return x
        out = self.host.output(n_blocks * 36)
        kernel = self.host.load(self.root, QUANTIZER, "quantize", {})
        grid = (min(-(-n_blocks // (_THREADS // 4)), MAX_GRID), 1, 1)
        self.host.launch(kernel, grid, (_THREADS, 1, 1), [x, out, np.int64(n_blocks)])
        return out

    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        """Weights `uint8[N, row_bytes]` in the file's layout, kept on the host for any number of calls.

        Raises UsageError for a type that the kernel does not cover.
        """
        if not self.covers(fmt):
            raise UsageError(f"kernel {self.name} does not cover type {fmt.name}")
        buffer = self.spec.launch.prepare(self, fmt, rows)
        return Weights(fmt, rows.shape[0], rows.shape[1] // fmt.block_bytes * fmt.block_size, buffer)

    def compiled(
        self, entry: str, fmt: WeightFormat, file: str | None = None, macros: dict[str, str] | None = None
    ) -> Any:
        """The function `entry` of the kernel's source, or of another `file`, for such weights, with further macros.

        Raises EnvironmentFault where it does not compile or this GPU cannot run it.
        """
        sm = self.host.sm
        target = None if sm is None else self.spec.cards.target_or_fault(self.name, sm)
        defines = {**self.spec.defines_for(fmt), **(macros or {})}
        return self.host.load(self.root, file or self.spec.file, entry, defines, target)

    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """`float32[M, N]` from activations as `quantize` returns them. Raises KernelFault."""
        return self._outputs(self.spec.launch.multiply, weights, x)

    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """`float32[M, N]` from activations `float32[M, K]`, quantized on the way. Raises KernelFault."""
        return self._outputs(self.spec.launch.multiply_values, weights, np.ascontiguousarray(x, np.float32))

    def _outputs(self, multiply: Multiply, weights: Weights, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        m, n = x.shape[0], weights.n
        out = self.host.output(4 * m * n)
        # a copy: a kernel that writes its input must not reach what it is judged by
        multiply(self, weights, self.host.upload(x.copy()), out, m)
        return self.host.download(out).view(np.float32).reshape(m, n)
