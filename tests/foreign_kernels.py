"""Kernels as others might write them, right and wrong: test_foreign.py runs them as FILE.py:NAME."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from pathlib import Path

import numpy as np

from harness.foreign import kernel

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import numpy_q4_0

right = numpy_q4_0.gemm
declare = functools.partial(kernel, formats=["Q4_0"], semantics="q8_1")
undeclared = 3


class Plain:
    """An object, without the decorator; weights are repacked by its own function."""

    formats = ("Q4_0",)
    semantics = "f32"

    def pack(self, rows, fmt):
        blocks = rows.view(numpy_q4_0.Q4_0)
        codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32)
        return ((codes - 8) * blocks["d"].astype(np.float32)[..., None]).reshape(len(rows), -1)

    def __call__(self, weights, activations, shape):
        return activations @ weights.T


class Tensor:
    """Something that is no NumPy array and speaks DLPack."""

    def __init__(self, y):
        self._y = y

    def __dlpack__(self, **options):
        return self._y.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._y.__dlpack_device__()


plain = Plain()


@declare()
def dlpack(w, x, shape):
    return Tensor(right(w, x, shape))


@declare(out=True)
def into_out(w, x, shape, out):
    out[...] = right(w, x, shape)


@declare()
def prints(w, x, shape):
    print("noise")
    return right(w, x, shape)


@declare()
def raises(w, x, shape):
    raise ValueError("first line\nsecond line")


@declare()
def leaves(w, x, shape):
    sys.exit("goodbye")


@declare()
def transposed(w, x, shape):
    return right(w, x, shape).T


@declare()
def doubles(w, x, shape):
    return right(w, x, shape).astype(np.float64)


@declare()
def nothing(w, x, shape):
    right(w, x, shape)


@declare()
def writes_weights(w, x, shape):
    w[0, 3] ^= 1
    return right(w, x, shape)


@declare()
def writes_activations(w, x, shape):
    y = right(w, x, shape)
    x[-1, -1] += 1
    return y


@declare(out=True)
def writes_outside(w, x, shape, out):
    out[...] = right(w, x, shape)
    ctypes.memset(out.ctypes.data + out.nbytes, 0, 8)


@declare()
def random(w, x, shape):
    y = right(w, x, shape)
    y[0, 0] += np.float32(int.from_bytes(os.urandom(4)) + 1)
    return y


_kept: dict = {}


@declare()
def keeps(w, x, shape):
    """Writes all of a buffer of its own the first time, and all but one output later."""
    known = shape in _kept
    y = _kept.setdefault(shape, np.empty((shape.m, shape.n), np.float32))
    y[:, known:] = right(w, x, shape)[:, known:]
    return y


@declare()
def hangs(w, x, shape):
    while True:
        time.sleep(0.01)


@declare()
def crashes(w, x, shape):
    ctypes.string_at(0)


@declare()
def exits(w, x, shape):
    print("last words", flush=True)
    os._exit(7)


@declare()
def crashes_for_128_rows(w, x, shape):
    if shape.n == 128:
        ctypes.string_at(0)
    return right(w, x, shape)


@declare()
def nan(w, x, shape):
    y = right(w, x, shape)
    y[0, 5] = np.nan
    return y


@declare(out=True)
def partial(w, x, shape, out):
    out[:, :-1] = right(w, x, shape)[:, :-1]


@declare()
def drops_s(w, x, shape):
    x = x.copy()
    x.view(numpy_q4_0.Q8_1)["s"] = 0
    return right(w, x, shape)


@declare(semantics="f32")
def float_activations(w, x, shape):
    return x @ plain.pack(w, "Q4_0").T


def integer_offset(w, x, shape):
    """As MMQ computes: the offset is subtracted from the codes."""
    blocks, xs = w.view(numpy_q4_0.Q4_0), x.view(numpy_q4_0.Q8_1)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32) - 8
    products = np.einsum("mbj,nbj->mnb", xs["qs"].astype(np.float32), codes)
    return np.einsum("mnb,mb,nb->mn", products, xs["d"].astype(np.float32), blocks["d"].astype(np.float32))


as_mmq = declare(semantics="mmq")(lambda w, x, shape: integer_offset(w, x, shape))
as_q8_1 = declare()(lambda w, x, shape: integer_offset(w, x, shape))
