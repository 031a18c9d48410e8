"""Names of the devices that a night checks, and the builds of llama.cpp that provide them."""

from __future__ import annotations

import re
from pathlib import Path

from gguf_verify.llama.builds import Build, find

#: Pattern of a device name.
NAME = re.compile(r"[!-~]{1,64}")


def build_in(folder: Path) -> Build | str:
    """Return the build in a folder or below it, or one line that says why there is none."""
    try:
        return find(folder)
    except OSError as error:
        return f"cannot be read ({error.strerror}): {folder}"


def libraries(folder: Path | None) -> tuple[Path, ...]:
    """The libraries of the build in a folder, including its backends'; empty if there is no folder."""
    found = None if folder is None else build_in(folder)
    if found is None or isinstance(found, str):  # removed since the configuration was read; the cells report it
        return ()
    try:
        return tuple(sorted({p.resolve() for p in found.libraries()}))
    except OSError:
        return ()
