"""Interface for examining tensors outside this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..gguf.file import Tensor

if TYPE_CHECKING:
    from ..gguf.model import Model
    from .content import Content
    from .importance import Importance
    from .source import Comparison
    from .sources import Source


@dataclass(frozen=True)
class Examined:
    """The open files to examine.

    Args:
        model: the file.
        source: the source to compare it with, or None.
        importance: the importance matrix for that comparison, or None.
        versions: see `Llama.versions`; None if llama.cpp is not used.
        digests: returns the digests of the model's parts; the first call may take long.
    """

    model: Model
    source: Source | None
    importance: Importance | None
    versions: Mapping[str, Any] | None
    digests: Callable[[], Sequence[str]]


class Examiners(Protocol):
    """Examines tensors. Results come in the tensors' order.

    Both methods raise EnvironmentFault, LlamaRefused and MalformedFile, after all results before it in that order.
    """

    def contents(self, tensors: Sequence[Tensor], on_bytes: Callable[[int], object]) -> Generator[Content]:
        """Like `content.contents`."""
        ...

    def comparisons(self, tensors: Sequence[Tensor]) -> Generator[Comparison]:
        """Compare with the source, like `source.compare`."""
        ...


#: Opens examiners for the open files; they are usable inside the block.
Elsewhere = Callable[[Examined], AbstractContextManager[Examiners]]


def runs_of(tensors: Sequence[Tensor], n: int) -> Iterator[tuple[Tensor, ...]]:
    """Group consecutive tensors: each group but the last has more than 1/n of all bytes."""
    some, nbytes, most = list[Tensor](), 0, sum(t.nbytes for t in tensors) // n
    for i, tensor in enumerate(tensors, 1):
        some.append(tensor)
        nbytes += tensor.nbytes
        if nbytes > most or i == len(tensors):
            yield tuple(some)
            some, nbytes = [], 0
