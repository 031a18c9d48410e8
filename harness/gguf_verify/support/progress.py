"""Progress on standard error: bars for counted work, a line for other work; in a log file, occasional lines."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .partial_import import submodule
from .text import printable

if TYPE_CHECKING:
    from tqdm import tqdm

#: Seconds after which a bar appears.
DELAY = 1.0


def progress_bar(what: str, total: int | None, unit: str, shown: bool, initial: int = 0) -> tqdm[Any]:
    """Return a bar that appears after a second and vanishes at the end.

    If standard error is neither a terminal nor a notebook, returns `Lines` instead: a log file would keep each step of
    a bar.

    Args:
        initial: the amount done before.
    """
    if shown and sys.stderr is not None and not _redraws():
        return Lines(what, total, unit, initial)  # type: ignore[return-value]
    shown = shown and sys.stderr is not None
    bar: tqdm[Any] = _tqdm()(
        desc=what,
        total=total,
        initial=initial,
        unit=unit,
        unit_scale=unit == "B",
        unit_divisor=1024,
        file=sys.stderr,
        delay=DELAY,
        leave=False,
        disable=not shown,
        dynamic_ncols=True,
    )
    return bar


def _redraws() -> bool:
    """Whether standard error shows a line that is written again in its place: a terminal, or a notebook's cell."""
    return sys.stderr is not None and (sys.stderr.isatty() or _is_notebook())


def _is_notebook() -> bool:
    """Whether standard error is the output of a notebook's cell."""
    return type(sys.stderr).__module__.startswith("ipykernel.")


def _tqdm() -> type[tqdm[Any]]:
    """Return tqdm's class, with a lock for threads only, unless the caller set one.

    tqdm's default lock is shared between processes: a forked child (a Python function as a kernel runs in one) could
    take it and never release it.
    """
    kind: type[tqdm[Any]] = submodule("tqdm.std").tqdm
    if not hasattr(kind, "_lock"):
        kind.set_lock(threading.RLock())
    return kind


class Lines:
    """Log lines in place of a bar: at most one in `PERIOD` seconds, none for work that ends sooner. It implements the
    part of tqdm's interface that is used here."""

    #: Seconds between two lines.
    PERIOD = 30.0
    #: Returns the time in seconds.
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, what: str, total: int | None, unit: str, initial: int = 0) -> None:
        self.total, self.n, self.bar_format = total, float(initial), ""
        self._what, self._unit, self._initial, self._doing = what, unit, initial, ""
        self._begun = self._told = self.clock()

    def set_postfix_str(self, words: str, refresh: bool = True) -> None:
        """Set the description of the current step."""
        self._doing = words

    def update(self, n: float | None = 1) -> bool:
        """Add to the amount done."""
        self.n += 0 if n is None else n
        now = self.clock()
        if now - self._told < self.PERIOD:
            return False
        self._told = now
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{self._line(now - self._begun)}\n")
            sys.stderr.flush()
        return True

    def _line(self, seconds: float) -> str:
        rate = (self.n - self._initial) / seconds
        parts = [self._sized(self.n), f"{self._sized(rate)}/s"]
        if self.total:
            parts[0] = (
                f"{min(100, int(100 * self.n / self.total))} % ({self._sized(self.n)} of {self._sized(self.total)})"
            )
        if self.total and rate > 0:
            parts.append(f"{self._time(max(0.0, self.total - self.n) / rate)} left")
        return f"{self._what}: {', '.join(filter(None, [*parts, self._doing]))}"

    def _sized(self, n: float) -> str:
        if self._unit == "B":
            return f"{_tqdm().format_sizeof(n, divisor=1024)}B"
        return f"{n:.3g} {self._unit}"

    @staticmethod
    def _time(seconds: float) -> str:
        return str(_tqdm().format_interval(seconds))

    def close(self) -> None:
        """Do nothing; part of tqdm's interface."""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def under_way(bar: tqdm[Any], name: str) -> None:
    """Show the name of a bar's next step. A visible bar is refreshed at once, because the step may take long."""
    if isinstance(bar, Lines):
        bar.set_postfix_str(printable(name, 64))
    elif not bar.disable:
        bar.set_postfix_str(printable(name, 40), refresh=time.time() - bar.start_t >= DELAY)


class Steps:
    """`with Steps(shown) as told: told("compiling Q4_K")`: a line that names the current step and counts its seconds.

    Like a bar it appears after a second, vanishes at the end, and is shown only on a terminal or in a notebook. A
    thread of its own writes it, because the main thread is busy compiling or loading.
    """

    #: Seconds until the line appears, and between two updates.
    DELAY, PERIOD = 1.0, 0.5

    def __init__(self, shown: bool) -> None:
        self._shown = shown and _redraws()
        #: What clears the line: a notebook knows no escape sequence for it.
        self._clear = f"\r{' ' * 76}\r" if _is_notebook() else "\r\x1b[K"
        self._step: tuple[str, float] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, words: str) -> None:
        """Begin a step."""
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
                self._put(f"{self._clear}{words[:60]} … {time.monotonic() - since:.0f} s")
        if written:
            self._put(self._clear)

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
    """Print lines on standard error above the visible bars. (`tqdm.write` would also show bars that are not visible
    yet, and never clear them.)"""
    kind = _tqdm()
    bars = [b for b in list(getattr(kind, "_instances", ())) if b.last_print_t >= b.start_t + b.delay]
    with contextlib.suppress(OSError):
        for bar in bars:
            bar.clear()
        sys.stderr.write(text)
        sys.stderr.flush()
        for bar in bars:
            bar.refresh()
