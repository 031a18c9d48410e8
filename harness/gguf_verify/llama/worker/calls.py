"""Types of calls in llama.cpp's process, and the libraries that all calls share."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy.typing as npt

from .. import loading

#: A call's result: a JSON object, and arrays.
Reply = tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]
#: A call takes JSON values and arrays by name.
Call = Callable[..., Reply]


class CallFailed(Exception):
    """llama.cpp declined a call in an orderly way."""


class NotLoaded(CallFailed):
    """llama.cpp does not load a file.

    Args:
        words: its own message.
        of_file: whether the file is at fault, and not this llama.cpp, the device or the memory.
    """

    def __init__(self, words: str, of_file: bool) -> None:
        super().__init__(words)
        self.of_file = of_file


class Libraries:
    """llama.cpp's libraries, loaded once and checked. Raises `ggml.AbiMismatch` if their struct layout is different.

    Their output goes to standard error.
    """

    def __init__(self) -> None:
        from .. import bindings, ggml, ggml_layout  # imported late: not needed without llama.cpp

        self.api = bindings.api
        #: The last lines that were logged as errors.
        self.errors: deque[str] = deque(maxlen=16)
        # kept referenced, or ctypes would free the callback
        self._log = self.api.llama_log_callback(lambda level, line, _data: self._take(level, line))
        self.api.llama_log_set(self._log, None)
        with self.quiet():  # hides the expected refusals of unknown types
            ggml_layout.probe()
        ggml.ggml_cpu_init()
        self.api.llama_backend_init()

    def _take(self, level: int, line: bytes | None) -> None:
        if level == loading.ERROR:
            self.errors.append(text(line or b""))
        sys.stderr.buffer.write(line or b"")
        sys.stderr.buffer.flush()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Discard the libraries' output."""
        from .. import ggml

        nothing = ggml.LogCallback(lambda _level, _text, _data: None)
        ggml.ggml_log_set(nothing, None)
        try:
            yield
        finally:
            self.api.llama_log_set(self._log, None)


def text(raw: Any) -> str:
    """Decode a string of the C API."""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
