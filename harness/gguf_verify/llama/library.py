"""llama.cpp as a library, without a model: its types, conversions, quantizers and single products."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import tensor_type
from ..support import scratch
from ..support.array_types import Bytes, Floats
from ..support.errors import EnvironmentFault, LlamaFault
from . import answers
from .child import Child
from .files import FilePasses
from .handed import files_of
from .installed import why_missing
from .model import LoadedModel
from .node import NUMBERED, Node, span_bytes
from .process import TIME_LIMIT, LlamaProcess


def block_of(type_id: int) -> int:
    """Return the number of values per block of a type; 32 for a type without blocks."""
    kind = tensor_type(type_id)
    return kind.block_size if kind is not None and kind.quantized else 32


def _function_of(node: Node) -> str:
    """Return the function selected by the parameters of a UNARY or GLU node; "" if unknown, and for other nodes."""
    known = NUMBERED.get(node.op, ())
    number = int.from_bytes(node.parameters[:4], "little")
    return known[number] if number < len(known) else ""


class WithoutLlama(LlamaProcess):
    """A process like llama.cpp's that does not load llama.cpp. It can only scan files, by our own decoders, without a
    comparison.

    Args: as for `LlamaProcess`.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, verbose: bool = False, child: Child | None = None) -> None:
        super().__init__(time_limit, verbose, child or Child(verbose, llama=False))
        self.files = FilePasses(self)


class Llama(LlamaProcess):
    """A llama.cpp process, and the calls of its library. `backend` is a name of `gguf_verify.llama.backends`.

    Args:
        build: the folder of llama.cpp's libraries; None: those of llama-cpp-python.
        others: as for `LlamaProcess`.
    """

    def __init__(
        self,
        time_limit: float = TIME_LIMIT,
        verbose: bool = False,
        child: Child | None = None,
        build: Path | None = None,
    ) -> None:
        if build is not None and child is None:
            child = Child(verbose, build=build)
        missing = None if build is not None else why_missing()
        if missing is not None:
            if child is not None:
                child.close()
            raise EnvironmentFault(missing)
        super().__init__(time_limit, verbose, child)
        #: Passes over the tensors of a file.
        self.files = FilePasses(self)
        #: The model that this process loads.
        self.model = LoadedModel(self)

    def versions(self) -> dict[str, Any]:
        """Return versions of llama-cpp-python, llama.cpp and ggml, the build's features, and its table of types."""
        result, _ = self.ask("hello")
        return msgspec.structs.asdict(self.typed("hello", result, answers.Hello))

    def _array(
        self, call: str, out: Sequence[npt.NDArray[Any]], number: type[np.generic], *shape: int | None
    ) -> npt.NDArray[Any]:
        """Return the only array of an answer. Raises LlamaFault if it is not as expected."""
        with self.valid(call):
            (one,) = out
            return answers.expect(one, number, *shape)

    def activations(self, definition: str, x: Floats, backend: str) -> Bytes:
        """Quantize activations float32[M, K] as a backend does for products of one of its definitions, uint8[M, row
        bytes]."""
        _, out = self.ask("activations", {"x": x}, definition=definition, backend=backend)
        return self._array("activations", out, np.uint8, len(x), None)

    def to_float(self, type_id: int, raw: Bytes, n: int) -> Floats:
        """Apply llama.cpp's `to_float` to n values. Raises LlamaRefused for a type without it (F32, integers)."""
        _, out = self.ask("to_float", {"raw": raw}, type=type_id, n=n)
        return self._array("to_float", out, np.float32, n)

    def from_float(self, type_id: int, x: Floats) -> Bytes:
        """Quantize activations float32[M, K] as llama.cpp's CPU backend does, uint8[M, row bytes]."""
        _, out = self.ask("from_float", {"x": x}, type=type_id)
        return self._array("from_float", out, np.uint8, len(x), None)

    def quantize(self, type_id: int, x: Floats, importance: Floats | None = None) -> Bytes:
        """Call `ggml_quantize_chunk`: weights float32[rows, K], importance float32[K] → uint8[rows, row bytes].
        Raises LlamaRefused if K is not a whole number of blocks."""
        arrays = {"x": x} | ({} if importance is None else {"importance": importance})
        _, out = self.ask("quantize", arrays, type=type_id)
        return self._array("quantize", out, np.uint8, len(x), None)

    def validate(self, type_id: int, raw: Bytes) -> bool:
        """Call `ggml_validate_row_data`."""
        result, _ = self.ask("validate", {"raw": raw}, type=type_id)
        return self.typed("validate", result, answers.Valid).valid

    def block_products(self, type_id: int, w: Bytes, x: Floats, threads: int = 1, backend: str = "cpu") -> Floats:
        """Compute every block × block product, float32[K/32, M, N], of weights uint8[N, row bytes] and float32[M, K].
        For a type without blocks, 32 values count as a block; the last one of a row may have fewer."""
        _, out = self.ask("block_products", {"w": w, "x": x}, type=type_id, threads=threads, backend=backend)
        return self._array("block_products", out, np.float32, -(-x.shape[1] // block_of(type_id)), len(x), len(w))

    def multiply(self, type_id: int, w: Bytes, x: Floats, threads: int = 1, backend: str = "cpu") -> Floats:
        """Compute the product float32[M, N] of weights uint8[N, row bytes] and float32[M, K], outside a model."""
        _, out = self.ask("multiply", {"w": w, "x": x}, type=type_id, threads=threads, backend=backend)
        return self._array("multiply", out, np.float32, len(x), len(w))

    def devices(self) -> list[answers.DeviceSaid]:
        """Return the devices of ggml's registry, in its order."""
        result, _ = self.ask("devices")
        return self.typed("devices", result, answers.Devices).devices

    def compute_node(self, node: Node, device: str = "CPU", threads: int = 1) -> Node | None:
        """Compute a node of any operation on a device of ggml's registry, outside any model; returns it with its
        output. None if the device does not support it, or this llama.cpp has no such operation or function.

        Raises:
            LlamaRefused: there is no such device.
            LlamaFault: the process died, as it does if the node violates one of ggml's assertions.
        """
        described = {
            "op": node.op, "variant": _function_of(node), "parameters": node.parameters.hex(), "view_of": node.view_of,
            "sources": [None if s is None else {"type": s.type_id, "ne": s.ne, "nb": s.nb} for s in node.sources],
            "output": {"type": node.output.type_id, "ne": node.output.ne, "nb": node.output.nb},
        }  # fmt: skip
        spans = {f"s{i}": s.span for i, s in enumerate(node.sources) if s is not None}
        result, out = self.ask("compute_node", spans, node=described, device=device, threads=threads)
        made = self.typed("compute_node", result, answers.Computed)
        if made.unsupported:
            return None
        held = node.output if node.view_of is None else node.source(node.view_of)
        span = self._array("compute_node", out, np.uint8, span_bytes(held.type_id, held.ne, held.nb))
        output = replace(held, name=node.output.name, span=span)
        return replace(node, output=output, backend=made.backend, device=device)

    def quantize_file(self, source: Path, target: Path, ftype: int, pure: bool, threads: int = 1) -> None:
        """Call `llama_model_quantize` in a separate process that can write only into one folder beside the target.
        Raises LlamaRefused; EnvironmentFault, also if the target cannot be written."""
        folder = Path(tempfile.mkdtemp(prefix=".gguf-verify-", dir=target.parent))
        try:
            made = folder / "made.gguf"
            child = Child(self._verbose, folder=folder, room=2 * source.stat().st_size)
            with files_of(source) as files, Llama(self._time_limit, child=child) as own:
                ((path, *_),) = own.give(files)
                own.ask(
                    "quantize_file", source=path, target=os.path.abspath(made), ftype=ftype, pure=pure, threads=threads
                )
            if not stat.S_ISREG(made.lstat().st_mode):
                raise LlamaFault("llama.cpp did not write a regular file")
            made.replace(target)
        finally:
            scratch.remove_folder(folder)
