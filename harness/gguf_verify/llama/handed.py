"""The files of a model that a process is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

from ..gguf.mapped import Mapped
from ..gguf.model import PART_NAME, Model, part_paths


@contextmanager
def files_of(model: Model | Path) -> Iterator[list[Mapped]]:
    """Yield the files of a model, the one to load first: those of an open model, or a path and the parts beside it.

    Raises NoSuchFile, EnvironmentFault as `Mapped`.
    """
    if isinstance(model, Model):
        yield [part.mapped for part in model.parts]
        return
    with ExitStack() as stack:
        opened = []
        for path in (model, *_others(model)):
            opened.append(Mapped(path))
            stack.callback(opened[-1].close)
        yield opened


def _others(path: Path) -> list[Path]:
    """Return the other parts beside a file named like a part, up to the first missing one."""
    name = PART_NAME.fullmatch(path.name)
    if name is None:
        return []
    first = path.with_name(f"{name['prefix']}-00001-of-{name['count']}.gguf")
    return [part for part in takewhile(Path.is_file, part_paths(first, int(name["count"]))) if part != path]
