"""Calls of single nodes of any operation on a device, outside any model.

A node is built by hand: tensors of the given types, sizes and strides, with the operation's number, its parameters and
its sources written into the result's struct. So no function of ggml's API is needed for each operation. A node may
violate ggml's assertions; then this process ends, which the parent reports.
"""

from __future__ import annotations

import ctypes as c
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ggml
from .calls import Call, CallFailed, Reply

#: More operations than ggml has.
_MOST_OPS = 512

#: Index in `op_params` that selects the function.
_VARIANT_AT = {"UNARY": 0, "GLU": 0}
#: Further arguments of functions, after a context and a tensor.
_MORE: dict[str, tuple[Any, ...]] = {
    "XIELU": (c.c_float,) * 4,
    "SWIGLU_OAI": (ggml.TensorP, c.c_float, c.c_float), "SWIGLU_CLAMP": (ggml.TensorP, c.c_float),
}  # fmt: skip


class SingleNodes:
    """The devices that were started for single nodes."""

    def __init__(self) -> None:
        self._backends: dict[str, int] = {}

    def calls(self) -> dict[str, Call]:
        """Return the calls by name, for the methods of the same names of `gguf_verify.llama.library.Llama`."""
        return {"compute_node": self.compute_node, "devices": self.devices}

    def devices(self) -> Reply:
        """Return the devices of ggml's registry."""
        return {"devices": ggml.devices()}, ()

    def _backend(self, device: str, threads: int) -> int:
        if device not in self._backends:
            found = ggml.ggml_backend_dev_by_name(device.encode())
            started = ggml.ggml_backend_dev_init(found, None) if found else None
            if not started:
                raise CallFailed(f"llama.cpp has no device {device}, or it does not start")
            self._backends[device] = started
        backend = self._backends[device]
        set_threads = ggml.backend_function(device, "ggml_backend_set_n_threads", None, c.c_void_p, c.c_int)
        if set_threads is not None:
            set_threads(backend, threads)
        return backend

    def compute_node(self, node: dict[str, Any], device: str, threads: int, **spans: npt.NDArray[np.uint8]) -> Reply:
        """Compute the bytes of a node's output; {"unsupported": true} if the device does not support it, or llama.cpp
        has no such operation or function.

        Args:
            node: "op", "variant" (the function of UNARY or GLU, or ""), "parameters" (hex), "sources" (null, or type,
                ne, nb), "output" (type, ne), "view_of".
            spans: the bytes of source i as s{i}; former bytes of the output as "out".
        """
        backend = self._backend(device, threads)
        number = _numbers().get(node["op"])
        function = _variant(node["variant"]) if node["variant"] else 0
        if number is None or function is None:  # this release lacks it
            return {"unsupported": True, "backend": ""}, ()
        ctx = ggml.ggml_init(ggml.InitParams(1 << 20, None, True))
        buffer = None
        try:
            sources = [None if each is None else _tensor(ctx, **each) for each in node["sources"]]
            view_of = node["view_of"]
            out = _tensor(ctx, **node["output"]) if view_of is None else ggml.ggml_view_tensor(ctx, sources[view_of])
            t = out.contents
            t.op = number
            c.memmove(t.op_params, bytes.fromhex(node["parameters"]), c.sizeof(t.op_params))
            if node["variant"]:
                t.op_params[_VARIANT_AT[node["op"]]] = function
            for i, source in enumerate(sources):
                if source is not None:
                    t.src[i] = source
                    ggml.ggml_set_input(source)
            ggml.ggml_set_output(out)
            if not ggml.ggml_backend_dev_supports_op(ggml.ggml_backend_get_device(backend), out):
                return {"unsupported": True, "backend": ""}, ()
            graph = ggml.ggml_new_graph(ctx)
            ggml.ggml_build_forward_expand(graph, out)
            buffer = ggml.ggml_backend_alloc_ctx_tensors(ctx, backend)
            if not buffer:
                raise MemoryError(f"{device} is out of memory for a node")
            ggml.ggml_backend_buffer_clear(buffer, 0)
            for i, source in enumerate(sources):
                if source is not None and spans[f"s{i}"].size:
                    span = spans[f"s{i}"]
                    ggml.ggml_backend_tensor_set(source, ggml.pointer(span), 0, span.nbytes)
            if ggml.ggml_backend_graph_compute(backend, graph) != 0:
                raise RuntimeError(f"{device} failed to compute {node['op']}")
            name = ggml.backend_of(ggml.ggml_backend_get_device(backend))
            return {"unsupported": False, "backend": name}, (ggml.read_bytes(out, 0, ggml.ggml_nbytes(out)),)
        finally:
            if buffer:
                ggml.ggml_backend_buffer_free(buffer)
            ggml.ggml_free(ctx)


def _tensor(ctx: Any, type: int, ne: list[int], nb: list[int]) -> Any:
    """Make a tensor without data, with these strides."""
    made = ggml.ggml_new_tensor_4d(ctx, type, *ne)
    made.contents.nb[:] = nb
    return made


@cache
def _variant(name: str) -> int | None:
    """Return the number of a function of UNARY or GLU in this ggml; releases have renumbered them. It is read from a
    node made by the function's own constructor. None if there is none."""
    function = f"ggml_{name.lower()}"
    if not hasattr(ggml.base, function):
        return None
    make = c.CFUNCTYPE(ggml.TensorP, c.c_void_p, ggml.TensorP, *_MORE.get(name, ()))((function, ggml.base))
    ctx = ggml.ggml_init(ggml.InitParams(1 << 16, None, True))
    try:
        a = ggml.ggml_new_tensor_2d(ctx, ggml.F32, 4, 4)
        made = make(ctx, a, *(a if kind is ggml.TensorP else 1.0 for kind in _MORE.get(name, ())))
        op = ggml.ggml_op_name(made.contents.op).decode()
        return int(made.contents.op_params[_VARIANT_AT[op]])
    finally:
        ggml.ggml_free(ctx)


@cache
def _numbers() -> dict[str, int]:
    """Return operation → its number in this ggml."""
    found: dict[str, int] = {}
    for number in range(_MOST_OPS):
        name = ggml.ggml_op_name(number).decode()
        found[name] = number
        if name == "GLU":  # the last of `enum ggml_op`; reading further is invalid
            return found
    return found
