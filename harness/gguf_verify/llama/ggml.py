"""ctypes bindings to the ggml libraries of llama-cpp-python; `ggml_layout` checks their struct layout.

This module runs in child processes only, because it loads the libraries. The wheel has copies of each library under
three names. libllama uses the sonames (`.so.0`); another name would load a second library with its own state.
"""

from __future__ import annotations

import ctypes as c
import os
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import bindings

MAX_DIMS, MAX_SRC, MAX_NAME, MAX_OP_PARAMS = 4, 10, 64, 64

ToFloat = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_int64)
FromFloat = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_int64)
#: Arguments: level, text, user data.
LogCallback = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


class Tensor(c.Structure):
    """`struct ggml_tensor` of ggml/include/ggml.h (ggml 0.25)."""


Tensor._fields_ = [
    ("type", c.c_int),
    ("buffer", c.c_void_p),
    ("ne", c.c_int64 * MAX_DIMS),
    ("nb", c.c_size_t * MAX_DIMS),
    ("op", c.c_int),
    ("op_params", c.c_int32 * (MAX_OP_PARAMS // 4)),
    ("flags", c.c_int32),
    ("src", c.POINTER(Tensor) * MAX_SRC),
    ("view_src", c.POINTER(Tensor)),
    ("view_offs", c.c_size_t),
    ("data", c.c_void_p),
    ("name", c.c_char * MAX_NAME),
    ("extra", c.c_void_p),
    ("padding", c.c_char * 8),
]
TensorP = c.POINTER(Tensor)


class TypeTraits(c.Structure):
    """`struct ggml_type_traits` of ggml.h."""

    _fields_ = [
        ("type_name", c.c_char_p),
        ("blck_size", c.c_int64),
        ("blck_size_interleave", c.c_int64),
        ("type_size", c.c_size_t),
        ("is_quantized", c.c_bool),
        ("to_float", ToFloat),
        ("from_float_ref", FromFloat),
    ]


class CpuTypeTraits(c.Structure):
    """`struct ggml_type_traits_cpu` of ggml-cpu.h."""

    _fields_ = [("from_float", FromFloat), ("vec_dot", c.c_void_p), ("vec_dot_type", c.c_int), ("nrows", c.c_int64)]


class InitParams(c.Structure):
    """`struct ggml_init_params` of ggml.h."""

    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


class GgufInitParams(c.Structure):
    """`struct gguf_init_params` of gguf.h: whether to skip reading the data, and where to put the ggml context."""

    _fields_ = [("no_alloc", c.c_bool), ("ctx", c.POINTER(c.c_void_p))]


class AbiMismatch(RuntimeError):
    """The loaded libraries do not have the layout that this module expects."""


def _library(name: str) -> c.CDLL:
    path = bindings.BUILD.library(name)
    if path is None:
        raise AbiMismatch(f"{bindings.name()} holds no lib{name}.so")
    return c.CDLL(str(path))


base = _library("ggml-base")
backends = _library("ggml")


def _cpu_library() -> c.CDLL:
    """Return the library of the CPU backend, which this module calls directly.

    If backends are separate libraries that ggml loads itself, all of the build's are loaded here, and of several for
    the CPU the one for this processor.
    """
    if bindings.BUILD.library("ggml-cpu") is not None:
        return _library("ggml-cpu")
    load = backends.ggml_backend_load_all_from_path
    load.restype, load.argtypes = None, [c.c_char_p]
    load(os.fsencode(bindings.BUILD.path))
    mapped = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    for path in (line.split(maxsplit=5)[-1] for line in mapped):
        if os.path.basename(path).startswith("libggml-cpu"):
            return c.CDLL(path)
    raise AbiMismatch(f"{bindings.name()} holds no libggml-cpu*.so for this processor")


cpu = _cpu_library()


def _declare(library: c.CDLL, name: str, result: Any, *args: Any) -> Any:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise AbiMismatch(f"{bindings.name()} has no function {name}") from None
    function.restype = result
    function.argtypes = list(args)
    return function


ggml_version = _declare(base, "ggml_version", c.c_char_p)
ggml_commit = _declare(base, "ggml_commit", c.c_char_p)
ggml_init = _declare(base, "ggml_init", c.c_void_p, InitParams)
ggml_free = _declare(base, "ggml_free", None, c.c_void_p)
ggml_new_tensor_2d = _declare(base, "ggml_new_tensor_2d", TensorP, c.c_void_p, c.c_int, c.c_int64, c.c_int64)
ggml_view_3d = _declare(base, "ggml_view_3d", TensorP, c.c_void_p, TensorP, *[c.c_int64] * 3, *[c.c_size_t] * 3)
ggml_mul_mat = _declare(base, "ggml_mul_mat", TensorP, c.c_void_p, TensorP, TensorP)
ggml_new_tensor_4d = _declare(base, "ggml_new_tensor_4d", TensorP, c.c_void_p, c.c_int, *[c.c_int64] * 4)
ggml_view_tensor = _declare(base, "ggml_view_tensor", TensorP, c.c_void_p, TensorP)
ggml_set_input = _declare(base, "ggml_set_input", None, TensorP)
ggml_set_output = _declare(base, "ggml_set_output", None, TensorP)
ggml_op_desc = _declare(base, "ggml_op_desc", c.c_char_p, TensorP)
ggml_set_name = _declare(base, "ggml_set_name", TensorP, TensorP, c.c_char_p)
ggml_get_data = _declare(base, "ggml_get_data", c.c_void_p, TensorP)
ggml_tensor_overhead = _declare(base, "ggml_tensor_overhead", c.c_size_t)
ggml_nbytes = _declare(base, "ggml_nbytes", c.c_size_t, TensorP)
ggml_op_name = _declare(base, "ggml_op_name", c.c_char_p, c.c_int)
ggml_new_graph = _declare(base, "ggml_new_graph", c.c_void_p, c.c_void_p)
ggml_build_forward_expand = _declare(base, "ggml_build_forward_expand", None, c.c_void_p, TensorP)
ggml_type_size = _declare(base, "ggml_type_size", c.c_size_t, c.c_int)
ggml_get_type_traits = _declare(base, "ggml_get_type_traits", c.POINTER(TypeTraits), c.c_int)
ggml_quantize_chunk = _declare(
    base, "ggml_quantize_chunk", c.c_size_t, c.c_int, c.c_void_p, c.c_void_p, *[c.c_int64] * 3, c.c_void_p
)
ggml_quantize_requires_imatrix = _declare(base, "ggml_quantize_requires_imatrix", c.c_bool, c.c_int)
ggml_validate_row_data = _declare(base, "ggml_validate_row_data", c.c_bool, c.c_int, c.c_void_p, c.c_size_t)
ggml_backend_tensor_get = _declare(base, "ggml_backend_tensor_get", None, TensorP, c.c_void_p, c.c_size_t, c.c_size_t)
ggml_backend_tensor_set = _declare(base, "ggml_backend_tensor_set", None, TensorP, c.c_void_p, c.c_size_t, c.c_size_t)
ggml_backend_buffer_name = _declare(base, "ggml_backend_buffer_name", c.c_char_p, c.c_void_p)
ggml_backend_buffer_get_usage = _declare(base, "ggml_backend_buffer_get_usage", c.c_int, c.c_void_p)
ggml_backend_buffer_clear = _declare(base, "ggml_backend_buffer_clear", None, c.c_void_p, c.c_uint8)
ggml_backend_buffer_get_base = _declare(base, "ggml_backend_buffer_get_base", c.c_void_p, c.c_void_p)
ggml_backend_buffer_free = _declare(base, "ggml_backend_buffer_free", None, c.c_void_p)
ggml_backend_cpu_buffer_from_ptr = _declare(
    base, "ggml_backend_cpu_buffer_from_ptr", c.c_void_p, c.c_void_p, c.c_size_t
)
ggml_backend_tensor_alloc = _declare(base, "ggml_backend_tensor_alloc", c.c_int, c.c_void_p, TensorP, c.c_void_p)
ggml_backend_alloc_ctx_tensors = _declare(base, "ggml_backend_alloc_ctx_tensors", c.c_void_p, c.c_void_p, c.c_void_p)
ggml_backend_graph_compute = _declare(base, "ggml_backend_graph_compute", c.c_int, c.c_void_p, c.c_void_p)
ggml_backend_dev_init = _declare(base, "ggml_backend_dev_init", c.c_void_p, c.c_void_p, c.c_char_p)
ggml_backend_dev_count = _declare(backends, "ggml_backend_dev_count", c.c_size_t)
ggml_backend_dev_get = _declare(backends, "ggml_backend_dev_get", c.c_void_p, c.c_size_t)
ggml_backend_dev_by_name = _declare(backends, "ggml_backend_dev_by_name", c.c_void_p, c.c_char_p)
ggml_backend_dev_name = _declare(base, "ggml_backend_dev_name", c.c_char_p, c.c_void_p)
ggml_backend_dev_type = _declare(base, "ggml_backend_dev_type", c.c_int, c.c_void_p)
ggml_backend_dev_memory = _declare(
    base, "ggml_backend_dev_memory", None, c.c_void_p, c.POINTER(c.c_size_t), c.POINTER(c.c_size_t)
)
ggml_backend_dev_backend_reg = _declare(base, "ggml_backend_dev_backend_reg", c.c_void_p, c.c_void_p)
ggml_backend_dev_supports_op = _declare(base, "ggml_backend_dev_supports_op", c.c_bool, c.c_void_p, TensorP)
ggml_backend_reg_name = _declare(base, "ggml_backend_reg_name", c.c_char_p, c.c_void_p)
ggml_backend_reg_get_proc_address = _declare(
    base, "ggml_backend_reg_get_proc_address", c.c_void_p, c.c_void_p, c.c_char_p
)
ggml_backend_get_device = _declare(base, "ggml_backend_get_device", c.c_void_p, c.c_void_p)
ggml_backend_buffer_get_type = _declare(base, "ggml_backend_buffer_get_type", c.c_void_p, c.c_void_p)
ggml_backend_buft_is_host = _declare(base, "ggml_backend_buft_is_host", c.c_bool, c.c_void_p)
ggml_backend_buft_get_device = _declare(base, "ggml_backend_buft_get_device", c.c_void_p, c.c_void_p)
ggml_backend_dev_description = _declare(base, "ggml_backend_dev_description", c.c_char_p, c.c_void_p)
ggml_backend_dev_by_type = _declare(backends, "ggml_backend_dev_by_type", c.c_void_p, c.c_int)
ggml_log_set = _declare(base, "ggml_log_set", None, LogCallback, c.c_void_p)
gguf_init_from_file = _declare(base, "gguf_init_from_file", c.c_void_p, c.c_char_p, GgufInitParams)
gguf_free = _declare(base, "gguf_free", None, c.c_void_p)
gguf_get_data_offset = _declare(base, "gguf_get_data_offset", c.c_size_t, c.c_void_p)
gguf_get_n_tensors = _declare(base, "gguf_get_n_tensors", c.c_int64, c.c_void_p)
gguf_get_tensor_name = _declare(base, "gguf_get_tensor_name", c.c_char_p, c.c_void_p, c.c_int64)
gguf_get_tensor_type = _declare(base, "gguf_get_tensor_type", c.c_int, c.c_void_p, c.c_int64)
ggml_get_tensor = _declare(base, "ggml_get_tensor", TensorP, c.c_void_p, c.c_char_p)
gguf_get_tensor_offset = _declare(base, "gguf_get_tensor_offset", c.c_size_t, c.c_void_p, c.c_int64)
gguf_get_tensor_size = _declare(base, "gguf_get_tensor_size", c.c_size_t, c.c_void_p, c.c_int64)
ggml_cpu_init = _declare(cpu, "ggml_cpu_init", None)
ggml_get_type_traits_cpu = _declare(cpu, "ggml_get_type_traits_cpu", c.POINTER(CpuTypeTraits), c.c_int)
ggml_graph_compute_with_ctx = _declare(cpu, "ggml_graph_compute_with_ctx", c.c_int, c.c_void_p, c.c_void_p, c.c_int)


def _declare_if(library: c.CDLL, name: str, result: Any, *args: Any) -> Any:
    """Declare a function that older releases lack; returns None there."""
    return _declare(library, name, result, *args) if hasattr(library, name) else None


_gguf_get_tensor_ne = _declare_if(base, "gguf_get_tensor_ne", c.POINTER(c.c_int64), c.c_void_p, c.c_int64)
_gguf_init_from_buffer = _declare_if(base, "gguf_init_from_buffer", c.c_void_p, c.c_char_p, c.c_size_t, GgufInitParams)

F32, F16, BF16 = 0, 1, 30
DEVICE_CPU, DEVICE_GPU = 0, 1  # enum ggml_backend_dev_type
#: Device types that can hold layers of a model: GPU, integrated GPU.
DEVICES_WITH_LAYERS = (1, 2)
_USAGE_WEIGHTS = 1  # enum ggml_backend_buffer_usage
_COMPUTE = 16  # GGML_TENSOR_FLAG_COMPUTE of enum ggml_tensor_flag


def version() -> str:
    """Return ggml's version and commit."""
    return f"{ggml_version().decode()} ({ggml_commit().decode()})"


#: Names of enum ggml_backend_dev_type, by number.
_DEVICE_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "several devices")


def devices() -> list[dict[str, str | int]]:
    """Return each device of ggml's registry: its name, its backend's name, a description, and its memory in bytes."""
    found: list[dict[str, str | int]] = []
    for i in range(ggml_backend_dev_count()):
        device = ggml_backend_dev_get(i)
        free, total = c.c_size_t(), c.c_size_t()
        ggml_backend_dev_memory(device, c.byref(free), c.byref(total))
        kind = ggml_backend_dev_type(device)
        found.append(
            {
                "name": device_name(device),
                "backend": backend_of(device),
                "description": description_of(device),
                "kind": _DEVICE_KINDS[kind] if 0 <= kind < len(_DEVICE_KINDS) else f"kind {kind}",
                "free": free.value,
                "total": total.value,
            }
        )
    return found


def backend_of(device: Any) -> str:
    """Return ggml's name of a device's backend."""
    return _said(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)))


def description_of(device: Any) -> str:
    """Describe a device, for example by a GPU's name."""
    return _said(ggml_backend_dev_description(device))


def device_of(t: Any) -> Any:
    """Return the device that computed a node: the one whose memory holds its result, or the CPU if that is host
    memory, regardless of which backend allocated it."""
    s = t.contents
    buffer = s.view_src.contents.buffer if s.view_src else s.buffer
    kind = ggml_backend_buffer_get_type(buffer) if buffer else None
    found = None if kind is None or ggml_backend_buft_is_host(kind) else ggml_backend_buft_get_device(kind)
    return found or ggml_backend_dev_by_type(DEVICE_CPU)


def device_name(device: Any) -> str:
    """Return ggml's name of a device, such as "Vulkan0"."""
    return _said(ggml_backend_dev_name(device))


def is_computed(node: Any) -> bool:
    """Whether the graph computes an operation's node: see `marks_computed`."""
    return not marks_computed() or bool(node.flags & _COMPUTE)


@cache
def marks_computed() -> bool:
    """Whether this ggml marks the nodes that a graph computes.

    If it does, backends skip all other nodes: those of branches that `ggml_build_forward_select` did not select. Older
    releases compute every node.
    """
    ctx = ggml_init(InitParams(1 << 20, None, False))
    try:
        a = ggml_new_tensor_2d(ctx, F32, 32, 1)
        node = ggml_mul_mat(ctx, a, a)
        ggml_build_forward_expand(ggml_new_graph(ctx), node)
        return bool(node.contents.flags & _COMPUTE)
    finally:
        ggml_free(ctx)


def same_root(t: Any, node: Any) -> bool:
    """Whether a tensor is, or is a view of, the tensor that a node's result is a view of."""
    root = t.contents.view_src if t.contents.view_src else t
    return c.addressof(root.contents) == c.addressof(node.view_src.contents)


def backend_function(device: str, name: str, result: Any, *args: Any) -> Any:
    """Return a function that a device's backend offers besides ggml's API; None if there is none of this name."""
    registered = ggml_backend_dev_backend_reg(ggml_backend_dev_by_name(device.encode()))
    address = ggml_backend_reg_get_proc_address(registered, name.encode())
    return c.CFUNCTYPE(result, *args)(address) if address else None


def _said(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")


@cache
def type_ids(stop: int = 256) -> list[int]:
    """Return the tensor types below `stop` that the library knows.

    Its functions on types read past their tables for unknown numbers. But its file reader knows the end of the tables,
    so it is given a file with a tensor of each type. (Its messages about refused ones go to ggml's log.)
    """
    params = GgufInitParams(True, None)
    known = []
    for t in range(stop):
        # one tensor "x", no metadata: magic, version, counts; length and letters of the name, 1 dimension; type, offset
        file = struct.pack("<4sIqq Q1sIq Iq", b"GGUF", 3, 1, 0, 1, b"x", 1, 1 << 20, t, 0)
        file += bytes(-len(file) % 32)
        context = _gguf_of(file, params)
        if context:
            known.append(t)
            gguf_free(context)
    return known


def _gguf_of(file: bytes, params: GgufInitParams) -> Any:
    """Open the bytes of a file with ggml's reader; None if it refuses them."""
    if _gguf_init_from_buffer is not None:
        return _gguf_init_from_buffer(file, len(file), params)
    with tempfile.NamedTemporaryFile() as written:
        written.write(file)
        written.flush()
        return gguf_init_from_file(os.fsencode(written.name), params)


def gguf_shape(file: Any, context: Any, i: int) -> list[int]:
    """Return ne of tensor i of a file that was opened with a context for its tensors."""
    if _gguf_get_tensor_ne is not None:
        return list(_gguf_get_tensor_ne(file, i)[:MAX_DIMS])
    return list(ggml_get_tensor(context, gguf_get_tensor_name(file, i)).contents.ne)


def pointer(array: npt.NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    return int(array.ctypes.data)


def empty(nbytes: int) -> npt.NDArray[np.uint8]:
    """Allocate uninitialized memory."""
    return np.empty(nbytes, np.uint8)


def read_tensor(
    t: Any, dtype: npt.DTypeLike = np.float32, empty: Callable[[int], npt.NDArray[np.uint8]] = empty
) -> npt.NDArray[Any]:
    """Read a tensor of 4-byte elements, strided or not, as a contiguous array with flattened rows: [ne3·ne2·ne1, ne0].
    The array is in memory from `empty`, unless the tensor is strided."""
    s = t.contents
    raw = empty(ggml_nbytes(t))
    ggml_backend_tensor_get(t, pointer(raw), 0, raw.nbytes)
    shape, strides = tuple(s.ne)[::-1], tuple(s.nb)[::-1]
    values = np.lib.stride_tricks.as_strided(raw.view(dtype), shape, strides)
    return np.ascontiguousarray(values).reshape(-1, s.ne[0])


def read_bytes(t: Any, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """Read bytes of a tensor, from `offset` of its data."""
    raw = empty(nbytes)
    ggml_backend_tensor_get(t, pointer(raw), offset, raw.nbytes)
    return raw


def from_float(type_id: int, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Quantize rows float32[M, K] as the CPU backend quantizes activations, uint8[M, row bytes]. If K is not a multiple
    of the type's block, returns no bytes: no product of this width takes such activations."""
    traits = ggml_get_type_traits(type_id).contents
    if x.shape[1] % traits.blck_size:
        return np.zeros((len(x), 0), np.uint8)
    out = np.zeros((len(x), x.shape[1] // traits.blck_size * traits.type_size), np.uint8)
    convert = ggml_get_type_traits_cpu(type_id).contents.from_float
    for row, target in zip(x, out, strict=True):
        convert(pointer(row), pointer(target), x.shape[1])
    return out


def readable(t: Any) -> bool:
    """Whether a weight's bytes can be read back; the buffer of repacked weights has no function for it."""
    name = buffer_name(t)
    return bool(name) and b"REPACK" not in name


def is_weight(t: Any) -> bool:
    """Whether a tensor is, or is a view of, one loaded from the model's file: no cache and no result."""
    s = t.contents
    buffer = s.view_src.contents.buffer if s.view_src else s.buffer
    return bool(buffer) and ggml_backend_buffer_get_usage(buffer) == _USAGE_WEIGHTS


def buffer_name(t: Any) -> bytes:
    """Return ggml's name of a tensor's buffer: a node's result lies where it was computed."""
    s = t.contents
    buffer = s.view_src.contents.buffer if s.view_src else s.buffer
    return ggml_backend_buffer_name(buffer) if buffer else b""


def write_tensor(t: Any, values: npt.NDArray[np.float32]) -> None:
    """Overwrite a contiguous float32 tensor."""
    if values.nbytes != ggml_nbytes(t):
        raise ValueError(f"{values.nbytes} bytes for a tensor of {ggml_nbytes(t)}")
    contiguous = np.ascontiguousarray(values, np.float32)
    ggml_backend_tensor_set(t, pointer(contiguous), 0, contiguous.nbytes)
