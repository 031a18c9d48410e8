"""Progress on standard error: bars for what is counted, a line for what is not."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .partial_import import submodule

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_bar(what: str, total: int | None, unit: str, shown: bool) -> tqdm[Any]:
    """A bar that appears after a second and vanishes at the end. There is none where standard error is no terminal,
    since a file would keep each of its steps."""
    shown = shown and sys.stderr is not None and sys.stderr.isatty()
    bar: tqdm[Any] = submodule("tqdm.std").tqdm(
        desc=what,
        total=total,
        unit=unit,
        unit_scale=unit == "B",
        unit_divisor=1024,
        file=sys.stderr,
        delay=1.0,
        leave=False,
        disable=not shown,
        dynamic_ncols=True,
    )
    return bar


class Steps:
    """`with Steps(shown) as told: told("compiling Q4_K")`: a line that names what is being done and counts its seconds.

    Like a bar it appears after a second, vanishes at the end, and is shown on a terminal alone. A thread writes it,
    since whoever compiles or loads something cannot.
    """

    #: Seconds after which the line appears, and between two of its changes.
    DELAY, PERIOD = 1.0, 0.5

    def __init__(self, shown: bool) -> None:
        self._shown = shown and sys.stderr is not None and sys.stderr.isatty()
        self._step: tuple[str, float] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, words: str) -> None:
        """Something is begun."""
        self._step = words, time.monotonic()
        if self._shown and self._thread is None:
            self._thread = threading.Thread(target=self._write, name="gguf-verify progress", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        begun, written = time.monotonic(), False
        while not self._over.wait(self.PERIOD):
            if self._step is not None and time.monotonic() - begun >= self.DELAY:
                words, since = self._step
                written = True
                self._put(f"\r\x1b[K{words[:60]} … {time.monotonic() - since:.0f} s")
        if written:
            self._put("\r\x1b[K")

    @staticmethod
    def _put(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def print_above_bars(text: str) -> None:
    """Print lines on standard error; a bar that is shown there stays below them. `tqdm.write` would also show those
    that are not shown yet, and never clear them."""
    kind = submodule("tqdm.std").tqdm
    bars = [b for b in list(getattr(kind, "_instances", ())) if b.last_print_t >= b.start_t + b.delay]
    with contextlib.suppress(OSError):
        for bar in bars:
            bar.clear()
        sys.stderr.write(text)
        sys.stderr.flush()
        for bar in bars:
            bar.refresh()
