"""A case of `--save-case` from another user: its description, and arrays in NumPy's format."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from gguf_verify.captured import judge_case, read_case
from gguf_verify.support.errors import UsageError
from gguf_verify.support.npy import open_array
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line

M, N, K = 2, 3, 32
NAMES = ("case.json", "x.npy", "y.npy", "w.bin")


def npy(array: np.ndarray) -> bytes:
    """The array as NumPy writes it."""
    made = io.BytesIO()
    np.save(made, array, allow_pickle=True)
    return made.getvalue()


@cache
def whole() -> tuple[bytes, ...]:
    """The files of a case: zeros of Q8_0."""
    said = {"case": 1, "tensor": "w", "type": "Q8_0", "definition": "q8_1", "m": M, "n": N, "k": K}
    return (
        json.dumps(said).encode(), npy(np.ones((M, K), np.float32)), npy(np.zeros((M, N), np.float32)), bytes(34 * N),
    )  # fmt: skip


def seeds() -> Iterator[bytes]:
    """The four files as messages, right, and with one of them wrong."""
    yield mutations.framed(*whole())
    strange = (
        npy(np.ones((M, K))), npy(np.ones((K, M), np.float32).T), npy(np.array({"a": 1})), npy(np.ones(3, np.float32)),
        npy(np.ones((M, K), "f4,f4")), npy(np.zeros((0, K), np.float32)), npy(np.ones((M, K), np.float16)),
        npy(np.full((M, K), np.nan, np.float32)), whole()[1][:-1], b"\x93NUMPY\x02\0" + whole()[1][8:], b"", b"PK\3\4",
        whole()[1].replace(b"(2, 32)", b"(2**9, 3)"), whole()[1].replace(b"(2, 32)", b"(-1, 32)"),
        whole()[1].replace(b"(2, 32)", b"(" * 30 + b")" * 30), whole()[1].replace(b"<f4", b"|O8"),
    )  # fmt: skip
    for array in strange:
        yield mutations.framed(whole()[0], array, *whole()[2:])
        yield mutations.framed(*whole()[:2], array, whole()[3])
    changes: tuple[dict[str, object], ...] = (
        {"m": 0}, {"m": True}, {"k": 33}, {"type": "\x1b"}, {"definition": "auto"}, {"n": 1 << 39}, {"m": {}},
    )  # fmt: skip
    for change in changes:
        yield mutations.framed(json.dumps(json.loads(whole()[0]) | change).encode(), *whole()[1:])
    for text in (b"[]", b"[" * 5000, b"{", b"\xff", b""):
        yield mutations.framed(text, *whole()[1:])
    yield mutations.framed(*whole()[:3], bytes(33))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One file changed: the description as JSON, an array's header as text."""
    files = mutations.frames(data)
    if not files:
        return mutations.of_bytes(data, rng)
    at = rng.randrange(len(files))
    header = files[at][:80]
    if at == 0:
        files[0] = mutations.of_json(files[0], rng)
    elif rng.randrange(2):
        files[at] = mutations.of_number(header, rng) + files[at][80:]
    else:
        words = (b"<f4", b"|O8", b">f4", b"True", b"'descr'", b"(", b")", b",", b"{", b"1L", b"\x93NUMPY\1\0")
        files[at] = mutations.of_bytes(header, rng, words) + files[at][80:]
    return mutations.framed(*files)


def check(folder: Path, data: bytes) -> None:
    """A case is judged, or refused in one line; nothing in it is unpickled, and no array is longer than its file."""
    files = mutations.frames(data)
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
    for name, content in zip(NAMES, files, strict=False):
        (folder / name).write_bytes(content)
    with refused_in_one_line(UsageError):
        case = read_case(folder)
        assert min(case.m, case.n, case.k) > 0
    for name in ("x.npy", "y.npy"):
        with refused_in_one_line(UsageError), open_array(name, folder / name, (None, K), ("float32",)) as array:
            assert array.dtype.kind == "f"
            assert array.nbytes <= (folder / name).stat().st_size
            float(np.asarray(array, np.float64).sum())
    with refused_in_one_line(UsageError):
        judged = judge_case(folder, threads=1)
        assert judged.exit_code in (0, 1, 5)
        assert 0 <= judged.outputs <= judged.m * judged.n
        assert judged.exit_code or judged.outputs == judged.m * judged.n > 0


TARGET = Target("case", "the files of a captured product", seeds, check, mutate, inputs=80)
