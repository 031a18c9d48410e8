"""Kernels as others might write them, right and wrong: tests run them as FILE.py:NAME."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from pathlib import Path

import numpy as np

from gguf_verify import Oracle, kernel

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
import numpy_q4_0  # type: ignore[import-not-found]

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


class _KeptApart:
    """Its packed weights are no array of NumPy, as a GPU's would not be, and each call changes them."""

    formats, semantics = ("Q4_0",), "f32"

    def pack(self, rows, fmt):
        return [plain.pack(rows, fmt)]

    def __call__(self, w, x, shape):
        y = x @ w[0].T
        w[0][0, 5] += 1.0
        return y


modifies_packed = _KeptApart()


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
def hangs_for_768_rows(w, x, shape):
    while shape.n == 768:  # ffn_gate and ffn_up of the fixtures
        time.sleep(0.01)
    return right(w, x, shape)


@declare()
def crashes(w, x, shape):
    ctypes.string_at(0)


@declare()
def exits(w, x, shape):
    print("last words", flush=True)
    os._exit(7)


@declare()
def crashes_for_128_rows(w, x, shape):
    if (shape.n, shape.k) == (128, 256):  # blk.0.attn_k of the fixtures
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


# -- kernels that quantize their activations themselves ----------------------------------------------------------------


def half_away(v):
    whole = np.trunc(v)
    return whole + np.copysign(np.abs(v - whole) >= 0.5, v)


def quantized(x, rounded=half_away):
    """Q8_1 blocks uint8[M, K/32·36] of float32[M, K], as the definition q8_1 has them; or with another rounding."""
    values = x.reshape(len(x), -1, 32)
    d = np.abs(values).max(axis=-1) / np.float32(127)
    ratio = np.divide(values, d[..., None], out=np.zeros_like(values), where=d[..., None] > 0)
    out = np.zeros(values.shape[:2], numpy_q4_0.Q8_1)
    out["d"], out["qs"] = d, rounded(ratio)
    # in the order of the definition: halves of the block added to each other, again and again
    sums = values
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    out["s"] = sums[..., 0]
    return out.view(np.uint8).reshape(len(x), -1)


def quantized_in_order(x):
    """Likewise, with sums in ascending order."""
    out = quantized(x).copy()
    out.view(numpy_q4_0.Q8_1)["s"] = np.cumsum(x.reshape(len(x), -1, 32), axis=-1, dtype=np.float32)[..., -1]
    return out


@declare(takes="float32")
def sums_in_order(w, x, shape):
    return right(w, quantized_in_order(x), shape)


@declare(takes="float32")
def sums_off(w, x, shape):
    """Every s is the next half."""
    blocks = quantized(x).copy()
    blocks.view(numpy_q4_0.Q8_1)["s"].view(np.uint16)[...] += 1
    return right(w, blocks, shape)


@declare(takes="float32")
def quantizes(w, x, shape):
    assert x.dtype == np.float32
    return right(w, quantized(x), shape)


@declare(takes="float32")
def truncates(w, x, shape):
    return right(w, quantized(x, np.trunc), shape)


@declare(takes="float32")
def off_by_ulps(w, x, shape):
    """As fast math may be: only where x/d is within a few ulps of a half a code moves."""
    return right(w, quantized(x, lambda v: half_away(v * np.float32(1 + 2e-6))), shape)


# -- kernels with an oracle of their own -------------------------------------------------------------------------------


def halves(x):
    return x.astype(np.float16).astype(np.float64)


def weights_of(rows, fmt):
    return plain.pack(rows, fmt).astype(np.float64)


def of_halves(w, x, shape):
    return x.astype(np.float16).astype(np.float32) @ plain.pack(w, "Q4_0").T


def by(oracle, function=of_halves, **more):
    return kernel(formats=["Q4_0"], semantics=oracle, **more)(lambda w, x, shape: function(w, x, shape))


half_activations = Oracle(activations=halves)
own = by(half_activations)
own_both = by(Oracle(weights_of, halves))
#: Wrong by its own oracle: it does not round its activations.
own_wrong = by(half_activations, lambda w, x, shape: x @ plain.pack(w, "Q4_0").T)


def codes_and_sums(x):
    """[d·q | s], L = K + K/32, of Q8_1 blocks."""
    blocks = x.view(numpy_q4_0.Q8_1)
    values = blocks["qs"] * blocks["d"].astype(np.float64)[..., None]
    return np.concatenate([values.reshape(len(x), -1), blocks["s"].astype(np.float64)], axis=1)


def codes_and_minima(rows, fmt):
    """[d·q | -8·d], codes from 0 to 15."""
    blocks = rows.view(numpy_q4_0.Q4_0)
    d = blocks["d"].astype(np.float64)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1)
    return np.concatenate([(codes * d[..., None]).reshape(len(rows), -1), -8 * d], axis=1)


own_blocks = by(Oracle(codes_and_minima, codes_and_sums), right, takes="q8_1")


own_values = by(Oracle(), lambda w, x, shape: x @ plain.pack(w, "Q4_0").T)
own_codes = by(Oracle(), lambda w, x, shape: integer_offset(w, x, shape), takes="mmq")

# -- oracles that are none ---------------------------------------------------------------------------------------------

_calls = [0]
_given: dict = {}


def _raises(*_):
    raise ValueError("no idea")


def _hangs(*_):
    while True:
        time.sleep(0.01)


def _random(x):
    _calls[0] += 1
    return halves(x) + _calls[0] * 1e-9


def _changes(x):
    y = halves(x)
    x[0, 0] += 1
    return y


oracle_raises = by(Oracle(activations=_raises))
oracle_hangs = by(Oracle(activations=_hangs))
oracle_random = by(Oracle(activations=_random))
oracle_changes_inputs = by(Oracle(activations=_changes))
oracle_nan = by(Oracle(activations=lambda x: np.where(np.arange(x.shape[1]) == 3, np.nan, halves(x))))
oracle_infinite = by(Oracle(weights=lambda rows, fmt: weights_of(rows, fmt) / 0.0))
oracle_transposed = by(Oracle(activations=lambda x: halves(x).T))
oracle_floats = by(Oracle(activations=lambda x: halves(x).astype(np.float32)))
oracle_nothing = by(Oracle(activations=lambda x: None))
oracle_wide = by(Oracle(activations=lambda x: np.zeros((len(x), 9 * x.shape[1]))))
oracle_unlike = by(
    Oracle(weights=lambda rows, fmt: np.pad(weights_of(rows, fmt), ((0, 0), (0, 1))), activations=halves)
)
oracle_crashes = by(Oracle(activations=lambda x: ctypes.string_at(0)))


def _noise(w, x, shape):
    """Right to three digits: what a bound that excuses everything would pass."""
    y = of_halves(w, x, shape)
    return y * (1 + np.float32(1e-3) * np.sign(np.cos(np.arange(y.size, dtype=np.float32))).reshape(y.shape))


def _cancelling(values, signs):
    return np.concatenate([values, 1e6 * signs * np.ones_like(values)], axis=1)


#: Terms of ±10⁶ that cancel: the bound grows, the product does not.
oracle_huge = by(
    Oracle(
        lambda rows, fmt: _cancelling(weights_of(rows, fmt), 1),
        lambda x: _cancelling(halves(x), np.where(np.arange(x.shape[1]) % 2, 1, -1)),
    ),
    _noise,
)
#: Another product, which it computes faithfully: its codes have no offset.
_no_offset = Oracle(weights=lambda rows, fmt: codes_and_minima(rows, fmt)[:, : rows.shape[1] // 18 * 32])
oracle_of_another_product = by(
    _no_offset, lambda w, x, shape: x @ codes_and_minima(w, "")[:, : shape.k].T.astype(np.float32)
)


def _remembers(w, x, shape):
    """It drops the last 32 of K, and leaves what it gave for its oracle to find."""
    y = x[:, :-32] @ plain.pack(w, "Q4_0")[:, :-32].T if shape.k > 32 else 0 * of_halves(w, x, shape)
    _given["y"] = y
    return y


def _own_output(rows, fmt):
    return _given["y"].T.astype(np.float64)


oracle_is_own_output = by(Oracle(_own_output, lambda x: np.eye(len(x), x.shape[1])), _remembers)


def _exchanged(w, x, shape):
    """The nibbles of all blocks the wrong way round."""
    blocks = w.view(numpy_q4_0.Q4_0).copy()
    blocks["qs"] = blocks["qs"] >> 4 | blocks["qs"] << 4
    return of_halves(blocks.view(np.uint8).reshape(w.shape), x, shape)


def _by_unit_vectors(rows, fmt):
    k = rows.shape[1] // 18 * 32
    return _exchanged(rows, np.eye(k, dtype=np.float32), None).T.astype(np.float64)


#: The kernel itself as its oracle, by products with unit vectors.
oracle_is_the_kernel = by(Oracle(_by_unit_vectors, halves), _exchanged)


def _without_the_last_code(rows, fmt):
    return weights_of(rows, fmt) * (np.arange(rows.shape[1] // 18 * 32) % 256 != 255)


#: It drops the last of each 256 weights, and its oracle does so too: too little for any distance of the products.
oracle_drops_a_weight = by(
    Oracle(_without_the_last_code, halves),
    lambda w, x, shape: of_halves(w, np.where(np.arange(shape.k) % 256 != 255, x, 0), shape),
)


# -- as if on a GPU ----------------------------------------------------------------------------------------------------


class Device:
    """An array as CuPy has them, in memory of its own."""

    def __init__(self, y):
        self._y = y
        self.__cuda_array_interface__ = {}

    def get(self):
        return self._y.copy()

    def view(self, dtype):
        return self._y.view(dtype)


@declare()
def on_device(w, x, shape):
    return Device(right(w, x, shape))


@declare()
def keeps_on_device(w, x, shape):
    return Device(keeps(w, x, shape))
