"""Shipped kernels: a kernel of the ladder on a host, from bytes to float32 outputs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat
from ..formats.q8_1 import Q8_1
from ..formats.tensor_types import ELEMENTS, WeightFormat
from ..hosts.base import Blocks, Host, Source, Sparse, Written
from ..hosts.schedule import Schedule
from ..semantics.definition import Semantics
from ..semantics.order import ASCENDING, Order
from ..support.errors import UsageError
from ..support.paths import kernel_root
from ..support.stages import stage
from .interface import Kernel, Weights
from .launch import Launch, Multiply
from .launches import Foresight, Launched, Placeholder, Recorder, SparseProduct, Unforeseen
from .operands import fitting, whole_blocks, whole_rows
from .spec import KernelSpec

#: The kernels for weights that are not quantized, by type, whichever kernel is under test.
ELEMENT_KERNELS: dict[str, KernelSpec] = {
    name: KernelSpec(
        f"{fmt.llama.cpu}_elements", "gemm/elements/01_naive.cu", fmt.llama.cpu, ASCENDING, "one thread an output"
    )
    for name, fmt in ELEMENTS.items()
}


class ShippedKernel(Kernel):
    """A shipped kernel on a host.

    Args:
        spec: the record of the kernel.
        host: where it runs.
        root: the folder of the sources; tests pass modified copies.
        older: compile it as for a GPU before sm_90, if its source distinguishes.
    """

    def __init__(self, spec: KernelSpec, host: Host, root: Path | None = None, older: bool = False) -> None:
        self.spec = spec
        self.host = host
        self.root = root or kernel_root()
        self._older = older and spec.launch.knows_older
        #: The environment of its launches.
        self.site = spec.site(host, self.root, self._older)
        #: The sparse product, or the values to quantize, of the last block that ran alone, and the uploaded contents.
        self._contents: tuple[object, dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def unset(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.host.unset

    @property
    def semantics(self) -> str:
        return self.spec.semantics

    @property
    def definition(self) -> Semantics:
        return self.spec.definition

    @property
    def order(self) -> Order | None:
        return self.spec.order

    @property
    def layout(self) -> str:
        return self.spec.launch.layout

    @property
    def _blocks(self) -> BlockFormat | None:
        """The block type of its activations; None: values."""
        return Q8_1 if self.site.quantizes else None

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> ShippedKernel:
        """Return this kernel, or the one for a type that is not quantized."""
        return self if isinstance(fmt, BlockFormat) else element_kernel(fmt, self.host, self.root)

    def covers(self, fmt: WeightFormat) -> bool:
        return isinstance(fmt, ElementFormat) or self.spec.covers(fmt)

    def under(self, schedule: Schedule) -> ShippedKernel | None:
        host = self.host.under(schedule)
        return None if host is None else ShippedKernel(self.spec, host, self.root, schedule.older)

    def launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...]:
        """Return the launches of `product`, then those of `gemm`."""
        launch = self.spec.launch
        return (*self._recorded(launch.multiply_values, fmt, m, n, k), *self._recorded(launch.multiply, fmt, m, n, k))

    def _recorded(self, multiply: Multiply, fmt: WeightFormat, m: int, n: int, k: int) -> list[Launched]:
        recorder = Recorder(self.host)
        site = self.spec.site(recorder, self.root, self._older)
        weights = Weights(fmt, n, k, Placeholder(0, "weights"))
        multiply(site, weights, Placeholder(0, "activations"), Placeholder(4 * m * n, "output"), m)
        return recorder.launched

    def sources(self, fmt: WeightFormat, m: int, n: int, k: int) -> list[Source]:
        foresight, launch = Foresight(self.host), self.spec.launch
        site = self.spec.site(foresight, self.root, self._older)
        weights = Weights(fmt, n, k, Placeholder(0, "weights"))
        rows = np.broadcast_to(np.uint8(0), (n, k // fmt.block_size * fmt.block_bytes))
        with suppress(Unforeseen):
            launch.prepare(site, fmt, rows)
        for multiply in (launch.multiply_values, launch.multiply):
            multiply(site, weights, Placeholder(0, "activations"), Placeholder(0, "output"), m)
        site.quantized(Placeholder(0, "activations"), m * k // 32)
        return foresight.sources

    def only_launch(self, fmt: WeightFormat, m: int, n: int, k: int) -> Launched | str:
        if not self.host.runs_alone:
            return f"the {self.host.name} host cannot run single thread blocks"
        if self.layout != Launch.layout:
            return "its weights are packed by a launch before"
        recorded = self._recorded(self.spec.launch.multiply, fmt, m, n, k)
        return recorded[0] if len(recorded) == 1 else f"one of its {len(recorded)} launches needs another's outputs"

    def alone(self, product: SparseProduct, number: int) -> Written:
        launched = self.only_launch(product.fmt, product.m, product.n, product.k)
        return self._alone(launched, product, product.contents, product.sizes, number)

    def quantizer_launch(self, m: int, k: int) -> Launched | str | None:
        if not (self.site.quantizes or self.site.halves):
            return None
        if not self.host.runs_alone:
            return f"the {self.host.name} host cannot run single thread blocks"
        recorder = Recorder(self.host)
        site = self.spec.site(recorder, self.root, self._older)
        site.quantized(Placeholder(0, "activations"), m * k // 32)
        return recorder.launched[0]

    def quantizer_alone(self, values: npt.NDArray[np.float32], m: int, k: int, number: int) -> Written:
        sizes = {"activations": 4 * m * k, "quantized activations": m * k // 32 * self.site.block_bytes}
        return self._alone(self.quantizer_launch(m, k), values, {"activations": values}, sizes, number)

    def _alone(
        self,
        launched: Launched | str | None,
        of: object,
        contents: dict[str, npt.NDArray[Any]],
        sizes: dict[str, int],
        number: int,
    ) -> Written:
        assert isinstance(launched, Launched)
        if self._contents is None or self._contents[0] is not of:
            self._contents = of, {what: self.host.upload(content, what) for what, content in contents.items()}
        held = self._contents[1]
        args = [
            Sparse(sizes[a.what], held.get(a.what), a.what, "input" if a.what in held else "output")
            if isinstance(a, Placeholder)
            else a
            for a in launched.args
        ]
        blocks = Blocks(launched.kernel, launched.grid, launched.block, args, launched.shared, (number,))
        return self.host.launch_alone([blocks])

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int] | None:
        return self.spec.launch.tile(fmt, m, n)

    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Return Q8_1 bytes uint8[M, K/32·36], or halves uint8[M, 2·K], of activations float32[M, K].

        Returns x itself if the kernel takes float32. Raises UsageError if K is no whole number of blocks; KernelFault.
        """
        whole_blocks(x, Q8_1 if self.site.quantizes or self.site.halves else None)
        if not (self.site.quantizes or self.site.halves):
            return np.ascontiguousarray(x, np.float32).view(np.uint8)
        m, k = x.shape
        if not m:
            return np.empty((0, k // 32 * self.site.block_bytes), np.uint8)
        with stage("upload"):
            given = self.host.upload(x.copy(), "activations")
        blocks = self.site.quantized(given, m * k // 32)
        with stage("download"):
            return self.host.download(blocks).reshape(m, k // 32 * self.site.block_bytes)

    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        if not self.covers(fmt):
            raise UsageError(f"kernel {self.name} does not cover type {fmt.name}")
        whole_rows(rows, fmt)
        with stage("upload" if self.layout == Launch.layout else "pack"):
            buffer = self.spec.launch.prepare(self.site, fmt, rows)
        return Weights(fmt, rows.shape[0], rows.shape[1] // fmt.block_bytes * fmt.block_size, buffer)

    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        fitting(x, weights, self._blocks, quantized=True, value_bytes=2 if self.site.halves else 4)
        return self._outputs(self.spec.launch.multiply, weights, x)

    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        fitting(x, weights, self._blocks, quantized=False)
        return self._outputs(self.spec.launch.multiply_values, weights, np.ascontiguousarray(x, np.float32))

    def _outputs(self, multiply: Multiply, weights: Weights, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        m, n = x.shape[0], weights.n
        if not m:  # CUDA refuses an empty grid
            return np.empty((0, n), np.float32)
        with stage("upload"):
            out = self.host.output(4 * m * n)
            # a copy: a kernel that overwrites its input must not change the data that judge it
            given = self.host.upload(x.copy(), "activations")
        with stage("launch"):
            multiply(self.site, weights, given, out, m)
        with stage("download"):
            y = self.host.download(out).view(np.float32).reshape(m, n)
            self.host.settle()
        return y


def element_kernel(fmt: WeightFormat, host: Host, root: Path | None = None) -> ShippedKernel:
    """Return the kernel for weights of a type that is not quantized."""
    return ShippedKernel(ELEMENT_KERNELS[fmt.name], host, root)
