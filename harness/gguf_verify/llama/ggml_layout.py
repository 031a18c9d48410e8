"""Check of ggml's struct layouts and numbers against this project's, by calls of its library."""

from __future__ import annotations

import ctypes as c

from ..formats.tensor_types import tensor_type
from . import bindings, ggml
from .ggml import AbiMismatch

#: Bytes that `ggml_new_tensor` takes from a context besides the tensor itself: `struct ggml_object`.
_OBJECT = 32
_INPUT, _OUTPUT = 1, 2  # enum ggml_tensor_flag
_Q4_0, _Q8_0 = 2, 8


def probe() -> None:
    """Build tensors through the API and read them back by our layout; compare the type tables.

    Raises:
        AbiMismatch: names the first member or type that differs.
    """
    ctx = ggml.ggml_init(ggml.InitParams(1 << 16, None, False))
    try:
        _tensors(ctx)
    finally:
        ggml.ggml_free(ctx)
    ctx = ggml.ggml_init(ggml.InitParams(1 << 16, None, True))
    try:
        # Check `buffer` and `data` of an allocated tensor.
        room = (c.c_ubyte * 4096)()
        start = -(-c.addressof(room) // 64) * 64
        buffer = ggml.ggml_backend_cpu_buffer_from_ptr(start, 1024)
        try:
            t = ggml.ggml_new_tensor_2d(ctx, ggml.F32, 4, 4)
            _expect("buffer of a tensor without memory", t.contents.buffer, None)
            ggml.ggml_backend_tensor_alloc(buffer, t, ggml.ggml_backend_buffer_get_base(buffer))
            _expect("buffer", t.contents.buffer, buffer)
            _expect("data in a buffer", t.contents.data, start)
        finally:
            ggml.ggml_backend_buffer_free(buffer)
    finally:
        ggml.ggml_free(ctx)
    # Check that types with the same number have the same name, and the same values and bytes per block.
    for number in ggml.type_ids():
        ours, theirs = tensor_type(number), ggml.ggml_get_type_traits(number).contents
        if ours is None or theirs.type_name is None:
            continue
        got = (theirs.type_name.decode().upper(), theirs.blck_size, theirs.type_size)
        _expect(f"type {number}", got, (ours.name.upper(), ours.block_size, ours.block_bytes))


def _expect(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise AbiMismatch(
            f"struct layout differs in {bindings.name()} (ggml {ggml.version()}): "
            f"{what} is {got!r}, expected {expected!r}"
        )


def _tensors(ctx: int) -> None:
    a = ggml.ggml_new_tensor_2d(ctx, _Q8_0, 64, 3)  # blocks of 34 bytes
    ggml.ggml_set_name(a, b"probe")
    b = ggml.ggml_new_tensor_2d(ctx, ggml.F32, 64, 5)
    view = ggml.ggml_view_3d(ctx, b, 32, 2, 2, 256, 128, 128)
    y = ggml.ggml_mul_mat(ctx, a, b)
    t = a.contents
    _expect("the size of a tensor", ggml.ggml_tensor_overhead(), c.sizeof(ggml.Tensor) + _OBJECT)
    _expect("type", t.type, _Q8_0)
    _expect("ne", list(t.ne), [64, 3, 1, 1])
    _expect("nb", list(t.nb), [34, 68, 204, 204])
    _expect("name", t.name, b"probe")
    _expect("data", t.data, ggml.ggml_get_data(a))
    _expect("view_offs", view.contents.view_offs, 128)
    _expect("op_params", list(view.contents.op_params[:3]), [128, 0, 0])  # the offset, 8 bytes
    _expect("view_src", c.addressof(view.contents.view_src.contents), c.addressof(b.contents))
    _expect("src[0]", c.addressof(y.contents.src[0].contents), c.addressof(a.contents))
    _expect("src[1]", c.addressof(y.contents.src[1].contents), c.addressof(b.contents))
    _expect("src[2]", bool(y.contents.src[2]), False)
    _expect("op", ggml.ggml_op_name(y.contents.op), b"MUL_MAT")
    _expect("flags", t.flags, 0)
    ggml.ggml_set_input(a)
    ggml.ggml_set_output(b)
    _expect("flags of an input and an output", (t.flags, b.contents.flags), (_INPUT, _OUTPUT))
    traits = ggml.ggml_get_type_traits(_Q8_0).contents
    _expect("type traits", (traits.type_name, traits.blck_size, traits.type_size), (b"q8_0", 32, 34))
    _expect("cpu type traits", ggml.ggml_get_type_traits_cpu(_Q4_0).contents.vec_dot_type, _Q8_0)
