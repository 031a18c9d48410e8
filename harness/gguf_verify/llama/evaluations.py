"""Parameters and results of evaluations of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Evaluation:
    """The result of one pass over the graph.

    Args:
        logits: float32[tokens, vocabulary]; for an embedding model float32[tokens, width], or a reranker's score.
        lookup: weights whose rows were looked up, name → type.
        unsupported: products that could not be tapped, name → why.
        used: weights used by nodes other than products and look-ups, name → ggml's names of the operations.
    """

    logits: npt.NDArray[np.float32]
    lookup: dict[str, str]
    unsupported: dict[str, str]
    used: dict[str, list[str]]


@dataclass(frozen=True)
class FusedOutput:
    """An output whose bits differ from the record's.

    Args:
        number: number of the node.
        window: the first and the last node of its window.
        span: its bytes, uint8[nbytes].
    """

    number: int
    window: tuple[int, int]
    span: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FusedEnd:
    """The end of an evaluation in windows: the number of outputs compared, the first nodes of windows that were seen to
    be fused with later nodes, and the evaluation's result."""

    compared: int
    fused: list[int]
    evaluation: Evaluation


@dataclass(frozen=True)
class Slot:
    """The place of tokens in a batch: their sequence, and the tokens of another sequence before or after them. The
    context must have this many sequences."""

    sequence: int = 0
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


ALONE = Slot()
