"""Progress bars on standard error."""

from __future__ import annotations

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
