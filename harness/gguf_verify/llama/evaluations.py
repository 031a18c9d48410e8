"""What an evaluation of a graph is asked for, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Evaluation:
    """What one pass over the graph gave.

    Args:
        logits: float32[tokens, vocabulary]; of a model that embeds, float32[tokens, width] or a reranker's score.
        lookup: weights of which rows were looked up, name → type.
        unsupported: products that could not be tapped, name → why.
        used: weights that other nodes than products and look-ups used, name → ggml's names of the operations.
    """

    logits: npt.NDArray[np.float32]
    lookup: dict[str, str]
    unsupported: dict[str, str]
    used: dict[str, list[str]]


@dataclass(frozen=True)
class FusedOutput:
    """An output with other bits than those of the record.

    Args:
        number: of the node.
        window: the first and the last node of its window.
        span: its bytes, uint8[nbytes].
    """

    number: int
    window: tuple[int, int]
    span: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FusedEnd:
    """An evaluation in windows: how many outputs were compared, which windows' first nodes were seen to be fused with
    those behind them, and what it comes to."""

    compared: int
    fused: list[int]
    evaluation: Evaluation


@dataclass(frozen=True)
class Slot:
    """Where tokens stand in a batch: their sequence, and the tokens of another sequence ahead of them or behind them.
    The context must have as many sequences."""

    sequence: int = 0
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


ALONE = Slot()
