"""The devices whose graphs a night judges, and the builds of llama.cpp that have them."""

from __future__ import annotations

import re
from pathlib import Path

from gguf_verify.llama.builds import Build, find

#: What a device may be called.
NAME = re.compile(r"[!-~]{1,64}")


def build_in(folder: Path) -> Build | str:
    """The build in a folder or below it, or why there is none, in one line."""
    try:
        return find(folder)
    except OSError as error:
        return f"it cannot be read ({error.strerror}): {folder}"


def libraries(folder: Path | None) -> tuple[Path, ...]:
    """The files of the build in a folder: its own libraries and those of its backends. None of no folder."""
    found = None if folder is None else build_in(folder)
    if found is None or isinstance(found, str):  # it was removed since the configuration was read: the cells say so
        return ()
    try:
        return tuple(sorted({p.resolve() for p in found.libraries()}))
    except OSError:
        return ()
