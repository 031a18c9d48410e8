"""The shipped kernels on one weight matrix: checked, then timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.support.errors import KernelFault

from .gpu import Queue, copies_of, few_us, graph_us, once_us, rounds_of
from .matrices import CHECKED_ROWS, CHECKED_TOKENS, FEW_ROWS, Matrix, ends

#: A product launched by itself may take this many µs because of Python and CUDA, even if the kernel takes few. Without
#: this allowance, members that take 24 µs were not timed beside choices of 20 µs on one H200.
_LAUNCHES_US, _FEW_PRODUCTS = 400.0, 8


class Ours:
    """The kernels on several copies of one matrix."""

    def __init__(self, queue: Queue, matrix: Matrix) -> None:
        self.queue, self.matrix, self.cupy = queue, matrix, queue.cupy
        self._kept: dict[str, list[Weights]] = {}

    def weights(self, kernel: ShippedKernel) -> list[Weights]:
        """Return the copies, in the kernel's layout; kernels of one layout share them. Raises KernelFault."""
        layout = kernel.layout
        if layout not in self._kept:
            first = kernel.upload(self.matrix.fmt, self.matrix.rows)
            more = range(copies_of(self.matrix.nbytes) - 1)
            copies = [Weights(first.fmt, first.n, first.k, _copied(first.buffer)) for _ in more]
            self._kept[layout] = [first, *copies]
        return self._kept[layout]

    def works(self, kernel: ShippedKernel, m: int, out: Any) -> list[Callable[[], None]]:
        """Return a function per copy that multiplies it by m tokens, all into one buffer."""
        x = self.matrix.x.on_gpu[:m].reshape(-1).view(np.uint8)

        def work(of: Weights) -> Callable[[], None]:
            return lambda: kernel.spec.launch.multiply_values(kernel.site, of, x, out, m)

        return [work(of) for of in self.weights(kernel)]

    def check(self, kernel: ShippedKernel, m: int) -> None:
        """Check the timed product at the first and last rows. Raises KernelFault if it is incorrect.

        A kernel that adds in ascending k must have the naive kernel's bits for every token; another, at the first and
        last tokens, those of the exact product in its order. One that declares no order is judged there as in a
        verification.
        """
        matrix, n = self.matrix, self.matrix.n
        out = self.queue.output(4 * m * n)
        out.fill(0xFF)  # NaN: reused memory may hold the outputs of another kernel
        self.works(kernel, m, out)[0]()
        y, naive = out.view(np.float32).reshape(m, n), KERNELS.get(f"{kernel.semantics}_naive")
        if naive is not None and kernel.order == naive.order == ASCENDING and kernel.name != naive.name:
            right = self._as_naive(naive, y, m)
        else:
            right = self._as_exact(kernel, y, m)
        if not right:
            what = "incorrect bits" if kernel.order is not None else "outputs outside the bound"
            raise KernelFault(f"{kernel.name} has {what}: {matrix.fmt.name}, M {m}, N {n}, K {matrix.k}")

    def _as_naive(self, naive: KernelSpec, y: Any, m: int) -> bool:
        matrix, rows = self.matrix, ends(self.matrix.n, CHECKED_ROWS)
        of, expected = ShippedKernel(naive, self.queue), self.queue.output(4 * m * len(rows))
        expected.fill(0x7F)
        x = matrix.x.on_gpu[:m].reshape(-1).view(np.uint8)
        naive.launch.multiply_values(of.site, of.upload(matrix.fmt, matrix.rows[rows]), x, expected, m)
        got = self.cupy.ascontiguousarray(y[:, self.cupy.asarray(rows)]).reshape(-1).view(np.uint8)
        return bool((got == expected).all())

    def _as_exact(self, kernel: ShippedKernel, y: Any, m: int) -> bool:
        matrix, semantics = self.matrix, kernel.definition
        rows, tokens = ends(matrix.n, FEW_ROWS), ends(m, CHECKED_TOKENS)
        given = semantics.bytes_of(matrix.x.values[tokens])
        exact = product(semantics, matrix.fmt, matrix.rows[rows], given, kernel.order)
        got = self.cupy.asnumpy(y[self.cupy.asarray(tokens)])[:, rows]
        if exact.ordered is not None:
            return bool(got.tobytes() == exact.ordered.tobytes())
        return judge(np.ascontiguousarray(got), exact).passed

    def alone(self, kernel: ShippedKernel, m: int) -> float:
        """Return the microseconds of one unchecked product, launched by itself: an estimate. If this may be the time of
        its launches, a few products in a graph are timed instead."""
        works = self.works(kernel, m, self.queue.output(4 * m * self.matrix.n))
        us = once_us(works[0], self.cupy)
        return us if us > _LAUNCHES_US else few_us(works[:_FEW_PRODUCTS], self.cupy)

    def time(self, kernel: ShippedKernel, m: int, repeat: int) -> float:
        """Return the microseconds of a product."""
        works = self.works(kernel, m, self.queue.output(4 * m * self.matrix.n))
        return graph_us(works * rounds_of(m), repeat, self.cupy)


def _copied(buffer: Any) -> Any:
    return tuple(map(_copied, buffer)) if isinstance(buffer, tuple) else buffer.copy()
