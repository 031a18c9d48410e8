"""Progress bars on standard error."""

from __future__ import annotations

import contextlib
import sys
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
