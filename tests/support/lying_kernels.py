"""Kernels that do wrong and see to it that their own process does not say so: tests run them as FILE.py:NAME."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import sys
import time
from pathlib import Path

import numpy as np

from gguf_verify import Oracle, kernel

sys.path.append(str(Path(__file__).resolve().parent))
from foreign_kernels import declare, halves, right, weights_of  # type: ignore[import-not-found]


def blind() -> None:
    """No check of this process finds anything any more, whatever it is called."""
    from gguf_verify.kernels.foreign import child

    for name in ("same_bits", "outside", "unchanged"):
        setattr(child, name, lambda *_, **__: None)


def of_serving() -> dict:
    """The variables of the function that answers the verifier."""
    frame = sys._getframe()
    while frame.f_code.co_name != "serve":
        frame = frame.f_back
    return frame.f_locals


def forge(**said) -> None:
    """Answer the question of now, without the code that does so."""
    serving = of_serving()
    serving["link"].send_bytes(json.dumps({"of": serving["number"], "ok": True, **said}).encode())


def raw(*parts: bytes) -> None:
    """Bytes on the socket."""
    for part in parts:
        os.write(of_serving()["link"].fileno(), part)


@declare(out=True)
def writes_outside(w, x, shape, out):
    blind()
    out[...] = right(w, x, shape)
    ctypes.memset(out.ctypes.data + out.nbytes, 0, 8)


@declare(out=True)
def writes_before(w, x, shape, out):
    blind()
    out[...] = right(w, x, shape)
    ctypes.memset(out.ctypes.data - 4, 0, 4)


@declare()
def writes_weights(w, x, shape):
    blind()
    y = right(w, x, shape)
    w[0, 3] ^= 1
    return y


@declare()
def writes_activations(w, x, shape):
    blind()
    y = right(w, x, shape)
    x[-1, -1] += 1
    return y


@declare()
def random(w, x, shape):
    blind()
    y = right(w, x, shape)
    y[0, 0] += np.float32(int.from_bytes(os.urandom(4)) + 1)
    return y


_calls = [0]


@declare(out=True)
def leaves(w, x, shape, out):
    """The second time an output as it was."""
    blind()
    _calls[0] += 1
    y = right(w, x, shape)
    at = _calls[0] % 2 == 0
    out[:, at:] = y[:, at:]


@declare(out=True)
def forges(w, x, shape, out):
    """It writes outside and answers by itself."""
    out[...] = right(w, x, shape)
    ctypes.memset(out.ctypes.data + out.nbytes, 0, 8)
    forge()
    time.sleep(0.5)  # the verifier's last question to this process waits for it


@declare()
def answers_twice(w, x, shape):
    """The second answer is for a question that was not asked yet."""
    forge()
    return right(w, x, shape)


@declare()
def drips(w, x, shape):
    """A byte of a long message now and then: none of them is late."""
    raw(struct.pack("!i", 1000))
    for _ in range(150):
        raw(b" ")
        time.sleep(0.1)
    os._exit(0)


@declare()
def truncates(w, x, shape):
    """Whatever file it has open, it makes empty."""
    y = right(w, x, shape)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2:
            with contextlib.suppress(OSError):
                os.ftruncate(int(entry), 0)
    return y


def _message(*parts: bytes):
    def says(w, x, shape):
        raw(*parts)
        time.sleep(60)

    return declare()(says)


deep = _message(struct.pack("!i", 16000), b"[" * 16000)
long = _message(struct.pack("!i", 1 << 20), b" " * 20000)
huge = _message(struct.pack("!i", -1), struct.pack("!Q", 1 << 40))
no_object = _message(struct.pack("!i", 3), b"[1]")
no_text = _message(struct.pack("!i", 2), b"\xff\xfe")
unnumbered = _message(struct.pack("!i", 12), b'{"ok": true}')
no_machine = _message(struct.pack("!i", 33), b'{"of": 2, "environment": "it is"}')


def _oracle(columns):
    def activations(x):
        forge(columns=columns)
        time.sleep(60)

    return kernel(formats=["Q4_0"], semantics=Oracle(weights_of, activations))(lambda w, x, shape: right(w, x, shape))


class Columns:
    """Oracles that say a wrong number of columns."""

    negative, none, many, fraction, text, yes = map(_oracle, (-1, 0, 1 << 40, 96.0, "96", True))


_values = [0]


def _same(self, what, given, *_):
    return getattr(self._oracle, what)(given.copy())


def _random(x):
    """Other values each time, in a process whose checks it has taken away."""
    from gguf_verify.kernels.foreign import child

    for name in ("_once", "_checked"):
        setattr(child.OracleRunner, name, _same)
    _values[0] += 1
    return halves(x) * (1 + _values[0] * 1e-12)


oracle_random = kernel(formats=["Q4_0"], semantics=Oracle(None, _random))(lambda w, x, shape: right(w, x, shape))
