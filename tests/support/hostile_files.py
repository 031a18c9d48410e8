"""Hostile GGUF files by kind and size: each makes a reader work, or keep something, for every few of its bytes.

They are made in a test's folder and never stored. Every kind is a valid start of a GGUF file; some are refused later.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

U8, U32, F32_VALUE, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9
F32, Q4_0, Q8_0 = 0, 2, 8
_ALIGNMENT = 32
_LARGE = (1 << 63) - 1


def _u32(n: int) -> bytes:
    return struct.pack("<I", n)


def _u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def _text(raw: bytes) -> bytes:
    return _u64(len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key.encode()) + _u32(kind) + value


def _file(pairs: list[bytes], infos: list[bytes] = [], data: bytes = b"") -> bytes:  # noqa: B006 - never changed
    head = b"GGUF" + _u32(3) + _u64(len(infos)) + _u64(len(pairs)) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % _ALIGNMENT if infos else 0) + data


def _info(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = b"".join(map(_u64, shape))
    return _text(name.encode()) + _u32(len(shape)) + sizes + _u32(kind) + _u64(offset)


_MODEL = [_pair("general.architecture", STRING, _text(b"llama"))]


def _tokens(element: bytes) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        n = size // len(element)
        head = _u32(STRING) + _u64(n)
        return _file([*_MODEL, _pair("tokenizer.ggml.tokens", ARRAY, head + element * n)])

    return make


def _tensors(shape: tuple[int, ...], kind: int, nbytes: int, step: int = 0) -> Callable[[int], bytes]:
    """Tensors of `nbytes` of data each, at every `step` bytes (default: packed)."""

    def make(size: int) -> bytes:
        each = step or -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        infos, held, i = [], 0, 0
        while held < size:
            infos.append(_info(f"blk.{i}.w", shape, kind, each * i))
            held += len(infos[-1]) + each
            i += 1
        return _file(_MODEL, infos, b"\1" * (each * i) if step else bytes(each * i))

    return make


def _shuffled(size: int) -> bytes:
    n = size // 84
    places = list(range(n))
    random.Random(1).shuffle(places)
    return _file(_MODEL, [_info(f"t{i}", (1,), F32, 32 * places[i]) for i in range(n)], bytes(32 * n))


def _claims(size: int) -> bytes:
    """Arrays in arrays, each of which claims 2^63 - 1 elements."""
    value = _u32(ARRAY) + (_u64(_LARGE) + _u32(ARRAY)) * (size // 12) + _u64(_LARGE)
    return _file([_pair("a", ARRAY, value)])


def _deep(size: int) -> bytes:
    """Arrays of one array, as deep as the file is long."""
    return _file([_pair("a", ARRAY, (_u32(ARRAY) + _u64(1)) * (size // 12) + _u32(U8) + _u64(0))])


def _wide(size: int) -> bytes:
    n = min(size // 13, (1 << 14) - 2)
    return _file([_pair("a", ARRAY, _u32(ARRAY) + _u64(n) + (_u32(U8) + _u64(1) + b"\1") * n)])


def _keys(size: int) -> bytes:
    return _file([_pair(f"k{i:07}", U8, b"\1") for i in range(min(size // 21, 65536))])


def _long_keys(size: int) -> bytes:
    return _file([_pair(f"{i:04}" + "k" * 60_000, U8, b"\1") for i in range(min(size // 60_017, 130))])


def _bad_bools(size: int) -> bytes:
    return _file([_pair("b", ARRAY, _u32(BOOL) + _u64(size) + b"\2" * size)])


def _long_string(size: int) -> bytes:
    return _file([_pair("s", STRING, _text(b"x" * size))])


def _control_string(size: int) -> bytes:
    return _file([_pair("general.architecture", STRING, _text(b"\x1b" * size))])


#: By kind, what makes the bytes of a file of about so many bytes.
KINDS: dict[str, Callable[[int], bytes]] = {
    "empty tokens": _tokens(_text(b"")),
    "tokens of a byte": _tokens(_text(b"a")),
    "tokens that are not UTF-8": _tokens(_text(b"\xff")),
    "arrays that claim 2^63 elements": _claims,
    "deep arrays": _deep,
    "wide arrays": _wide,
    "keys": _keys,
    "long keys": _long_keys,
    "bad bools": _bad_bools,
    "a long string": _long_string,
    "a long architecture": _control_string,
    "tensors": _tensors((32,), Q8_0, 34),
    "single values": _tensors((1,), F32, 4),
    "empty tensors": _tensors((0,), F32, 0),
    "gaps": _tensors((1,), F32, 4, 64),
    "shuffled tensors": _shuffled,
}


def make(kind: str, size: int, path: Path) -> Path:
    """Write a file of a kind, of at most about `size` bytes; returns its path."""
    path.write_bytes(KINDS[kind](size))
    return path


def kinds() -> Iterator[str]:
    return iter(KINDS)
