"""Foreign kernels without a product, as rungs use them: the verifier's side of `task_runner` and of launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...hosts.schedule import Schedule
from ...processes.sandbox import Sandbox
from ...results.coverage import Execution
from ...results.environment import HostInfo, OpenedFiles
from ...semantics.definition import Semantics
from ...semantics.definitions.f32 import F32
from ...semantics.quantization import encoding
from ...support.errors import KernelFault
from ...support.numbers import NAMES, number_type
from ...support.text import printable
from ..domain import Domain
from ..launches import LargeCall, SparseCall
from ..tasks import UNSEEN, Dequantizer, Packed, Quantizer, Repacker, Task
from .calls import unit_of
from .declaration import arithmetic_of
from .expressions import names_of
from .layouts import Unit
from .operands import Operand
from .process import ForeignKernel
from .products import Given, Products, Runs

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Most bytes that a packing may make: a multiple of the file's, plus a constant.
_MOST_TIMES, _MOST_BESIDE = 16, 1 << 20


class ForeignTask(Task):
    """Base class of foreign tasks.

    Args:
        kernel: its process, declaration and host.
    """

    def __init__(self, kernel: ForeignKernel) -> None:
        self.kernel, self.host, self.declared = kernel, kernel.host, kernel.declaration

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def semantics(self) -> str:
        raise NotImplementedError

    @property
    def beside_definition(self) -> tuple[str, ...]:
        return self.declared.beside

    @property
    def definition(self) -> Semantics:
        return F32  # a placeholder: no rung reads the definition of a kernel without a product

    @property
    def domain(self) -> Domain:
        return self.kernel.domain

    @property
    def opened(self) -> OpenedFiles:
        return self.kernel.opened

    def executed(self) -> Execution | None:
        return self.kernel.executed()

    @property
    def texts(self) -> Mapping[str, str]:
        return self.kernel.texts

    @property
    def impossible(self) -> Mapping[str, Mapping[int, str]]:
        return self.kernel.impossible

    @property
    def sandbox(self) -> Sandbox:
        return self.kernel.sandbox

    def check_fault(self) -> str | None:
        return self.kernel.check_fault()

    def runs_on(self) -> HostInfo:
        return self.kernel.runs_on()

    def covers(self, fmt: WeightFormat) -> bool:
        return fmt.name in self.declared.formats

    def under(self, schedule: Schedule) -> Task | None:
        scheduled = self.kernel.under(schedule)
        return None if scheduled is None else type(self)(scheduled)

    @property
    def address_limits(self) -> Mapping[str, str]:
        return self.kernel.address_limits

    def try_every_address(self) -> None:
        self.kernel.try_every_address()

    def close(self) -> None:
        self.kernel.close()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _load(self, products: Products, fmt: BlockFormat, given: Given, n: int, k: int) -> None:
        """Have a process load weights, for one call."""
        if not products.holds(given, self.kernel.walls):
            products.load(given, self.kernel.walls, [given], {"format": fmt.name, "n": n, "k": k})

    def _call(
        self,
        products: Products,
        fmt: str,
        operands: list[Given],
        names: Mapping[str, int],
        unpacks: bool = False,
        runs: Runs | None = None,
    ) -> tuple[npt.NDArray[Any] | None, dict[str, Any]]:
        """Make a call; return its output, if it has one, and the last message of the process.

        The output of a library may have other bits in the first run, at whose addresses few calls are made.
        """
        own = [Given(*one) for one in self.kernel.operands.own(names).values()]
        made, said = self.kernel.called(products, fmt, [*operands, *own], names, unpacks, runs=runs)
        return made[0].get("output"), said

    def _large(
        self, fmt: str, names: Mapping[str, int], contents: dict[str, Bytes], sizes: dict[str, int]
    ) -> LargeCall | str:
        """Return a call that is too large to make whole, or why it cannot be made. Raises KernelFault."""
        declares = self.kernel.declares
        launched = None if declares is None else declares.launched(names)
        if declares is None or launched is None:
            return UNSEEN
        if len(launched) != 1:
            return f"it makes {len(launched)} launches"
        if not self.declared.layouts.plain:
            return "its operands have declared layouts"
        if not self.host.runs_alone:
            return f"the {self.host.name} host cannot run single thread blocks"
        declares.messages(fmt, names)  # raises where a parameter's type does not hold its number
        call = SparseCall(contents, sizes)
        alone = partial(self.kernel.alone_in, call, fmt, names)
        return LargeCall(launched[0], sizes["output"] // 4, alone)


class ForeignDequantizer(ForeignTask, Dequantizer):
    """A dequantizer."""

    def __init__(self, kernel: ForeignKernel) -> None:
        super().__init__(kernel)
        self.output, self.flushes = self.declared.output, bool(dict(self.declared.more).get("fast_math", False))

    @property
    def semantics(self) -> str:
        names = dict.fromkeys(arithmetic_of(self.declared, fmt) for fmt in self.declared.formats)
        return f"values as {self.output}, arithmetic: {', '.join(names)}"

    def arithmetic(self, fmt: BlockFormat) -> str:
        return arithmetic_of(self.declared, fmt.name)

    def dequantize(self, fmt: BlockFormat, rows: Bytes) -> Floats:
        n, k = len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size
        names = names_of(fmt, 1, n, k)
        operands, loaded = self.kernel.operands, self.kernel.loaded
        self._load(loaded, fmt, operands.weights(fmt, rows, k), n, k)
        made, _ = self._call(loaded, fmt.name, [operands.output(Unit(self.output), n, k, names)], names)
        assert made is not None
        return made

    def large(self, fmt: BlockFormat, blocks: Bytes, n: int, k: int) -> LargeCall | str:
        sizes = {"weights": n * fmt.row_bytes(k), "output": n * k * Unit(self.output).nbytes}
        return self._large(fmt.name, names_of(fmt, 1, n, k), {"weights": blocks.reshape(-1)}, sizes)


class ForeignQuantizer(ForeignTask, Quantizer):
    """A quantizer of activations."""

    def __init__(self, kernel: ForeignKernel) -> None:
        super().__init__(kernel)
        self.encoding, self.takes = self.declared.activations, self.declared.takes or "float32"
        self.ordered = self.declared.ordered
        self.fast_math = bool(dict(self.declared.more).get("fast_math", False))

    @property
    def semantics(self) -> str:
        return f"{self.encoding} of {self.takes}"

    def covers(self, fmt: WeightFormat) -> bool:
        return False

    def quantize(self, x: Floats) -> Bytes:
        blocks = encoding(self.encoding).format
        assert blocks is not None
        (m, k), names = x.shape, names_of(blocks, len(x), 1, x.shape[1])
        given = self.kernel.operands.matrix("activations", Unit(self.takes), _as(x, self.takes), k, names)
        whole = -(-k // blocks.block_size) * blocks.block_size
        output = self.kernel.operands.output(unit_of(blocks), m, whole, names)
        self.kernel.loaded.holds(self, self.kernel.walls)  # starts the process again after a fault
        made, _ = self._call(self.kernel.loaded, "", [given, output], names)
        assert made is not None
        return made

    def large(self, x: Floats, m: int, k: int) -> LargeCall | str:
        blocks = encoding(self.encoding).format
        assert blocks is not None
        contents = {"activations": _as(x.reshape(1, -1), self.takes).reshape(-1)}
        sizes = {"activations": m * k * Unit(self.takes).nbytes, "output": m * blocks.row_bytes(k)}
        return self._large("", names_of(blocks, m, 1, k), contents, sizes)


def _as(x: Floats, dtype: str) -> Bytes:
    """Return the bytes of values float32[M, K] in another type that holds them exactly, uint8[M, row bytes]."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return np.ascontiguousarray(x if dtype == "float32" else x.astype(np.float16)).view(np.uint8)


class ForeignRepacker(ForeignTask, Repacker):
    """A repacking.

    Its `pack` and its `unpack` run in separate processes, which never run at the same time: each call ends the process
    of the other function first. So `unpack` gets the packed bytes and nothing else, because a channel between two
    processes (file locks, sockets) needs both.

    Args:
        apart: the process of `unpack`; None: starts one.
    """

    def __init__(self, kernel: ForeignKernel, apart: Products | None = None) -> None:
        super().__init__(kernel)
        self.unpacks = kernel.unpacks
        self._unpacking = kernel.beside("unpack") if apart is None else apart

    @property
    def semantics(self) -> str:
        return "weights in another layout" + (", and back" if self.unpacks else "")

    def under(self, schedule: Schedule) -> Task | None:
        scheduled = self.kernel.under(schedule)  # shares both processes
        return None if scheduled is None else ForeignRepacker(scheduled, self._unpacking)

    def close(self) -> None:
        self._unpacking.end()
        super().close()

    def forget(self) -> None:
        self._unpacking.end()

    def pack(self, fmt: BlockFormat, rows: Bytes) -> Packed:
        self._unpacking.end()
        n, k = len(rows), rows.shape[1] // fmt.block_bytes * fmt.block_size
        names, products = names_of(fmt, 1, n, k), self.kernel.loaded
        self._load(products, fmt, self.kernel.operands.weights(fmt, rows, k), n, k)
        most = _MOST_TIMES * rows.size + _MOST_BESIDE
        declares = self.kernel.declares
        if declares is not None:
            assert declares.packed is not None
            described: tuple[str, tuple[int, ...]] = "uint8", (declares.packed.value(names),)
        else:
            _, said = self._call(products, fmt.name, [], names, runs=Runs(self.kernel.walls[:1]))
            described = _described(said)
        dtype, shape = described
        nbytes = prod(shape) * number_type(dtype).itemsize
        if not 0 <= nbytes <= most:
            raise KernelFault(f"it packs {rows.size:,} bytes into {nbytes:,}, more than {_MOST_TIMES} times as many")
        output = Given(Operand("output", "output", "uint8", (nbytes,)))
        made, said = self._call(products, fmt.name, [output], names)
        assert made is not None
        if declares is None and _described(said) != (dtype, shape):
            raise KernelFault("it packs the same rows into arrays of different shapes or types")
        return Packed(made, shape, dtype)

    def unpack(self, fmt: BlockFormat, packed: Packed, n: int, k: int) -> Bytes:
        self.kernel.loaded.end()
        names, products = names_of(fmt, 1, n, k), self._unpacking
        operand = Operand("weights", "input", packed.dtype, packed.shape)
        self._load(products, fmt, Given(operand, packed.bytes), n, k)
        output = Operand("output", "output", "uint8", (n, k // fmt.block_size * fmt.block_bytes))
        made, _ = self._call(products, fmt.name, [Given(output)], names, True)
        assert made is not None
        return made


def _described(said: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return type and shape that a process reports for a packed array. Raises KernelFault."""
    dtype, shape = said.get("dtype"), said.get("shape")
    sound = isinstance(shape, list) and len(shape) <= 16
    sound = sound and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 48 for v in shape or ())
    if not sound or not isinstance(dtype, str) or dtype not in NAMES:
        raise KernelFault(f"it packs rows into an array of type {printable(str(dtype), 40)}, which cannot be read")
    assert isinstance(shape, list)
    return dtype, tuple(shape)


def as_task(kernel: ForeignKernel) -> ForeignKernel | ForeignTask:
    """Return the kernel as the task that it declares."""
    kinds: dict[str, type[ForeignTask]] = {
        "dequantize": ForeignDequantizer, "quantize": ForeignQuantizer, "repack": ForeignRepacker,
    }  # fmt: skip
    made = kinds.get(kernel.declaration.computes)
    return kernel if made is None else made(kernel)
