"""Who examines tensors in place of this process: what they are told, and what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ..gguf.file import Tensor
from ..gguf.model import Model
from .content import Content
from .importance import Importance
from .source import Comparison
from .sources import Source


@dataclass(frozen=True)
class Examined:
    """What is examined, as this process has it open.

    Args:
        model: the file.
        source: what it was quantized from, if that is compared.
        importance: the importance matrix for that, if there is one.
        versions: see `Llama.versions`; None where llama.cpp takes no part.
        digests: of the model's parts; the first call may take long.
    """

    model: Model
    source: Source | None
    importance: Importance | None
    versions: Mapping[str, Any] | None
    digests: Callable[[], Sequence[str]]


class Examiners(Protocol):
    """Those who examine tensors. Results come in the tensors' order.

    Both raise EnvironmentFault, LlamaRefused and MalformedFile, after all that came before it in that order.
    """

    def contents(self, tensors: Sequence[Tensor], on_bytes: Callable[[int], object]) -> Generator[Content]:
        """As `content.contents`."""
        ...

    def comparisons(self, tensors: Sequence[Tensor]) -> Generator[Comparison]:
        """With the source, as `source.compare`."""
        ...


#: Who examines what is open; they may, as long as the block lasts.
Elsewhere = Callable[[Examined], AbstractContextManager[Examiners]]


def runs_of(tensors: Sequence[Tensor], n: int) -> Iterator[tuple[Tensor, ...]]:
    """Consecutive tensors together, so many that each run but the last has more than the n-th part of all bytes."""
    some, nbytes, most = list[Tensor](), 0, sum(t.nbytes for t in tensors) // n
    for i, tensor in enumerate(tensors, 1):
        some.append(tensor)
        nbytes += tensor.nbytes
        if nbytes > most or i == len(tensors):
            yield tuple(some)
            some, nbytes = [], 0
