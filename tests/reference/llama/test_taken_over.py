"""A llama.cpp process that a file has taken over: it may send wrong numbers, or end the run with a fault in one line;
never a traceback, a hang, or names, sizes and indices that were not checked."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.llama import backends
from gguf_verify.llama.answers import Figures, Started
from gguf_verify.llama.backends import BACKENDS, Backend
from gguf_verify.llama.backends.cpu import CpuBackend
from gguf_verify.llama.evaluations import Evaluation
from gguf_verify.llama.files import ScannerOf
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.processes.given import Taken
from gguf_verify.support import protocol, scratch
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EnvironmentFault, LlamaFault
from gguf_verify.support.numbers import CODES
from tests.support.tools import FIXTURES

Message = tuple[dict[str, Any], list[Any]] | bytes
X = np.zeros((2, 32), np.float32)
W = np.zeros((3, 18), np.uint8)


class FakeChild:
    """In place of llama.cpp's process: a thread that answers each request with the next of these messages, then ends.
    Messages that are bytes are sent as they are."""

    lanes = None

    def __init__(self, answers: list[list[Message]]) -> None:
        ours, theirs = socket.socketpair()
        self.link, self._theirs = Connection(ours.detach()), Connection(theirs.detach())
        self._answers = answers
        self.pid = os.getpid()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, EOFError), self._theirs:
            protocol.send(self._theirs, {"ready": True})
            files = Taken(self._theirs)
            for messages in self._answers:
                header, _ = protocol.receive(self._theirs)
                files.take(header)
                for message in messages:
                    if isinstance(message, bytes):
                        os.write(self._theirs.fileno(), message)
                    else:
                        protocol.send(self._theirs, message[0], *message[1])

    def kill(self) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        self.link.close()

    def wait(self, seconds: float | None = None) -> int:
        return -9

    def last_lines(self, nbytes: int) -> list[str]:
        return ["last \x1b[31mwords"]

    def close(self) -> None:
        self.link.close()
        self._thread.join()


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before it reads the first file, the thread changes to a new folder, as llama.cpp's process does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(scratch.VARIABLE, str(tmp_path))


@pytest.fixture(scope="module")
def tiny() -> Iterator[Model]:
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as model:
        yield model


def scan(llama: Llama, tiny: Model) -> object:
    tensors = [t for t in tiny.tensors.values() if t.type.name == "Q4_0"][:2]
    found = llama.files.scans(tensors, {"Q4_0": ScannerOf(b"none", [(1, 0, 0)], 4)})
    with contextlib.closing(found):
        return list(found)


def requantize(llama: Llama, tiny: Model) -> object:
    from gguf_verify.gguf.origin import Origin

    tensor = next(iter(tiny.tensors.values()))
    return llama.files.requantize(tensor, Origin.of(tensor))


def capture(llama: Llama, _tiny: Model) -> object:
    return [g if isinstance(g, Evaluation) else g.shape for g in llama.model.capture([1, 2], idle=True)]


def vec_dot_type(llama: Llama, _tiny: Model) -> object:
    return CpuBackend("cpu", BACKENDS["CPU"], llama, Started("CPU", "CPU", "")).definition(FORMATS["Q4_0"])


CALLS: dict[str, Callable[[Llama, Model], object]] = {
    "versions": lambda llama, _: llama.versions(),
    "start_backend": lambda llama, _: backends.start("cpu", llama),
    "vec_dot_type": vec_dot_type,
    "activations": lambda llama, _: llama.activations("q8_1", X, "cpu"),
    "to_float": lambda llama, _: llama.to_float(2, W, 32),
    "from_float": lambda llama, _: llama.from_float(8, X),
    "quantize": lambda llama, _: llama.quantize(2, X),
    "validate": lambda llama, _: llama.validate(2, W),
    "block_products": lambda llama, _: llama.block_products(2, W, X),
    "multiply": lambda llama, _: llama.multiply(2, W, X),
    "open": lambda llama, tiny: llama.model.open(tiny, 1),
    "make_context": lambda llama, _: llama.model.make_context(8),
    "tokenize": lambda llama, _: llama.model.tokenize("Once"),
    "pieces": lambda llama, _: llama.model.pieces([1, 2]),
    "generate": lambda llama, _: llama.model.generate([1], 3),
    "evaluate": lambda llama, _: llama.model.evaluate([1, 2]),
    "capture": capture,
    "record": lambda llama, _: llama.model.record([1, 2]),
    "windows": lambda llama, _: list(llama.model.windows([1, 2], [(2, 4)])),
    "graft": lambda llama, _: llama.model.graft([1, 2], lambda gemm: gemm.y),
    "scans": scan,
    "requantize": requantize,
}

GEMM = {
    "event": "gemm", "tensor": "t", "node": "n", "type": 2, "first_rows": [0, 3], "on_backend": True, "experts": False,
    "tokens": 2, "activations": [],
}  # fmt: skip
DEVICE = {"backend": "Vulkan", "device": "Vulkan0", "name": "a card"}
HELLO = {
    "llama_cpp_python": "", "folder": "", "llama_cpp": "", "ggml": "", "system": "", "types": {}, "libraries": [],
}  # fmt: skip
SEEN: dict[str, Any] = {"lookup": {}, "unsupported": {}, "used": {}}
NODE = {"op": "ADD", "name": "n", "device": "CPU", "reads": [], "use": 0, "graph": 1}
BYTES = np.zeros(4, np.uint8)
INTS = np.zeros(2, np.int32)
FIGURES = {
    "blocks": 1, "zero_scales": 0, "zero_blocks": 0, "subnormal_scales": 0, "negative_scales": 0, "not_finite": 0,
    "differing": 0, "first_not_finite": [], "first_differing": [], "first_subnormal": -1, "obeying": [0],
    "scale": None, "minimum": None, "duplicate_rows": None, "duplicate": None, "zeros_at_start": 0, "zeros_at_end": 0,
    "runs": 0, "first_runs": [], "repeats": [],
}  # fmt: skip
SCAN_ARRAYS = [np.zeros((1, 256), np.int64), np.zeros(72, np.uint8), np.zeros(128, np.float32), np.zeros(0, np.float32)]

#: A call, and messages that are no answer to it.
WRONG: dict[str, tuple[str, Message]] = {
    "no result": ("versions", ({}, [])),
    "a result of nothing": ("versions", ({"result": None}, [])),
    "types by name": ("versions", ({"result": {"types": {"x": {}}}}, [])),
    "no array": ("to_float", ({"result": {}}, [])),
    "two arrays": ("to_float", ({"result": {}}, [X, X])),
    "fewer values": ("to_float", ({"result": {}}, [np.zeros(31, np.float32)])),
    "other values": ("to_float", ({"result": {}}, [np.zeros(32, np.float64)])),
    "a product of another shape": ("multiply", ({"result": {}}, [np.zeros((3, 2), np.float32)])),
    "tokens in words": ("tokenize", ({"result": {"tokens": ["a"]}}, [])),
    "a token of 2^40": ("tokenize", ({"result": {"tokens": [1 << 40]}}, [])),
    "too few pieces": ("pieces", ({"result": {"pieces": ["a"]}}, [])),
    "too few tokens": ("generate", ({"result": {"tokens": [1]}}, [])),
    "a device that is a list": ("start_backend", ({"result": []}, [])),
    **{
        f"a device without its {field}": (
            "start_backend", ({"result": {name: value for name, value in DEVICE.items() if name != field}}, []),
        )
        for field in DEVICE
    },
    "a card without its compute capability": ("start_backend", ({"result": DEVICE | {"backend": "CUDA"}}, [])),
    "a compute capability of 0": ("start_backend", ({"result": DEVICE | {"backend": "CUDA", "sm": 0}}, [])),
    "a type that is not known": ("vec_dot_type", ({"result": HELLO}, [])),
    "a type without its product": ("vec_dot_type", ({"result": HELLO | {"types": {"2": {"name": "q4_0"}}}}, [])),
    "logits of one dimension": (
        "evaluate", ({"result": {"seen": {"lookup": {}, "unsupported": {}, "used": {}}}}, [X[0]]),
    ),
    "names that are none": ("evaluate", ({"result": {"seen": {"lookup": [], "unsupported": {}, "used": {}}}}, [X])),
    "a product without arrays": ("capture", (GEMM, [])),
    "a matrix that is not there": ("capture", (GEMM, [X, X, INTS + 2, INTS])),
    "a matrix below zero": ("capture", (GEMM, [X, X, INTS - 1, INTS])),
    "a row that is not there": ("capture", (GEMM, [X, X, INTS, INTS + 2])),
    "a row below zero": ("graft", (GEMM, [X, X, INTS, INTS - 1])),
    "fewer rows than outputs": ("graft", (GEMM, [X, X, INTS[:1], INTS])),
    "no nodes": ("record", ({"result": {"seen": SEEN}}, [X])),
    "a node that reads itself": ("record", ({"result": {"seen": SEEN, "nodes": [NODE | {"reads": [1]}]}}, [X])),
    "a node that is read by none": ("record", ({"result": {"seen": SEEN, "nodes": [NODE | {"use": 2}]}}, [X])),
    "a window that was not asked for": ("windows", ({"event": "fused", "number": 2, "first": 1, "last": 4}, [BYTES])),
    "a node outside its window": ("windows", ({"event": "fused", "number": 5, "first": 2, "last": 4}, [BYTES])),
    "an output of numbers": ("windows", ({"event": "fused", "number": 2, "first": 2, "last": 4}, [X])),
    "windows that were not counted": ("windows", ({"result": {"seen": SEEN}}, [X])),
    "no matrix": ("capture", (GEMM | {"first_rows": []}, [X, X, INTS, INTS])),
    "too few checksums": ("capture", (GEMM | {"crc32": [1]}, [X, X, INTS, INTS])),
    "activations that are missing": ("capture", (GEMM | {"activations": [8]}, [X, X, INTS, INTS])),
    "activations of other rows": ("capture", (GEMM | {"activations": [8]}, [X, X, INTS, INTS, W])),
    "progress in words": ("scans", ({"event": "bytes", "n": "many"}, [])),
    "progress backwards": ("scans", ({"event": "bytes", "n": -1}, [])),
    "no figures": ("scans", ({"event": "scan"}, SCAN_ARRAYS)),
    "figures of another tensor": ("scans", ({"event": "scan", "figures": [FIGURES]}, SCAN_ARRAYS)),
    "figures of too many tensors": ("scans", ({"event": "scan", "figures": [FIGURES] * 9}, SCAN_ARRAYS)),
    "blocks that differ and are not there": ("requantize", ({"result": {
        "differing": 1, "first": 1 << 40, "energy": None, "error": None, "made_error": None, "zeros": 0,
    }}, [np.zeros(18, np.uint8)])),
    "no block that differs": ("requantize", ({"result": {
        "differing": 1, "first": 0, "energy": None, "error": None, "made_error": None, "zeros": 0,
    }}, [np.zeros(0, np.uint8)])),
    "what is no message": ("versions", b"\x00\x00\x00\x02[]"),
    "a list": ("to_float", b"\x00\x00\x00\x03[]\n"),
}  # fmt: skip


def asked(call: str, tiny: Model, *messages: Message) -> object:
    child = FakeChild([list(messages)])
    with Llama(60.0, child=child) as llama:  # type: ignore[arg-type]
        return CALLS[call](llama, tiny)


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_not_valid(name: str, tiny: Model) -> None:
    call, message = WRONG[name]
    with pytest.raises(LlamaFault, match="sent an invalid answer in") as caught:
        asked(call, tiny, message)
    assert str(caught.value).isprintable()


def test_a_missing_field_is_named(tiny: Model) -> None:
    with pytest.raises(LlamaFault, match=r"start_backend \(.*missing required field `device`.*\); it said: ") as caught:
        asked("start_backend", tiny, ({"result": {"backend": "Vulkan", "name": "a card"}}, []))
    assert caught.value.exit_code == EXIT_ENVIRONMENT


def test_devices_of_any_backend_are_taken(tiny: Model) -> None:
    for said in (DEVICE, DEVICE | {"backend": "CUDA", "sm": 90}):
        made = asked("start_backend", tiny, ({"result": said}, []))
        assert isinstance(made, Backend)
        assert "on a card" in made.describe()


def test_words_are_escaped(tiny: Model) -> None:
    nasty = "\x1b]0;x\x07\n" * 10_000
    for header, kind in (
        ({"refused": nasty}, LlamaRefused),
        ({"error": nasty}, LlamaFault),
        ({"error": 7}, LlamaFault),
    ):
        with pytest.raises(kind) as caught:
            asked("versions", tiny, (header, []))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 4000
    with pytest.raises(EnvironmentFault) as caught:
        asked("start_backend", tiny, ({"result": {"missing": nasty}}, []))
    assert str(caught.value).isprintable()


def test_a_valid_answer_is_taken(tiny: Model) -> None:
    assert asked("multiply", tiny, ({"result": {}}, [np.ones((2, 3), np.float32)])) is not None
    end: Message = ({"result": {"seen": {"lookup": {"a": "F32"}, "unsupported": {}, "used": {"b": ["ADD"]}}}}, [X])
    assert isinstance(asked("evaluate", tiny, end), Evaluation)
    child = FakeChild([[(GEMM, [X, X, INTS, INTS])], [end]])
    with Llama(60.0, child=child) as llama:  # type: ignore[arg-type]
        assert [getattr(g, "shape", None) for g in llama.model.capture([1, 2])] == [(2, 32, 32), None]


def _plain() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-2, 300) | st.integers() | st.floats() | st.text(max_size=5)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )  # fmt: skip


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    """A valid answer with some of its parts replaced, and arrays of any type and small shape."""
    base: dict[str, Any] = draw(st.sampled_from([
        GEMM, {"event": "scan", "figures": [FIGURES]}, {"event": "bytes", "n": 1}, {"event": "token"},
        {"result": {"seen": {"lookup": {}, "unsupported": {}, "used": {}}}}, {"result": {"tokens": [1, 2, 3]}},
        {"result": {"pieces": ["a", "b"]}}, {"result": {}}, {"refused": "no"}, {"error": "no"}, {},
    ]))  # fmt: skip
    made: dict[str, Any] = {**base}
    for key in draw(st.lists(st.sampled_from([*made, "event", "result", "figures", "first_rows"]), max_size=2)):
        made[key] = draw(_plain())
    arrays = draw(st.lists(st.tuples(
        st.sampled_from(sorted(CODES)), st.lists(st.sampled_from([0, 1, 2, 3, 32]), max_size=3),
    ), max_size=5))  # fmt: skip
    if draw(st.booleans()):
        return made, [X, X, INTS, INTS]
    return made, [np.ones(shape, kind) for kind, shape in arrays]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(CALLS)), st.lists(_messages(), max_size=3), st.binary(max_size=40))
def test_garbage_is_a_fault(tiny: Model, call: str, messages: list[Message], rest: bytes) -> None:
    with contextlib.suppress(EnvironmentFault, LlamaRefused):
        asked(call, tiny, *messages, rest)


@pytest.mark.parametrize(("field", "value"), [
    ("blocks", 5), ("not_finite", 9), ("zero_blocks", 9), ("differing", 1), ("first_differing", [0]),
    ("subnormal_scales", 1), ("obeying", []), ("obeying", [9]), ("duplicate", [0, 7]),
    ("zeros_at_start", 73), ("zeros_at_end", 73), ("runs", 1), ("first_runs", [[0, 4]]), ("repeats", [[9, 99]]),
])  # fmt: skip
def test_figures_that_contradict_each_other(field: str, value: object) -> None:
    import msgspec

    good = msgspec.convert({**FIGURES, "blocks": 4}, Figures)
    good.check(4, 2, 1, 72)
    with pytest.raises(protocol.ProtocolError):
        msgspec.structs.replace(good, **{field: value}).check(4, 2, 1, 72)
