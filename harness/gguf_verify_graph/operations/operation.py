"""What an operation of ggml is to this project: a record in a module of its own, or of its family."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from gguf_verify.llama.node import Node

from .judging import Judged


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of ggml's graphs.

    Args:
        op: ggml's name (`ggml_op_name`).
        title: what it computes, in one line.
        judge: judges a node of it. Raises NoDefinition where no definition describes what the node computes.
        draw: makes nodes of it with random inputs and blank outputs, of every kind that `judge` knows, for a backend to
            compute: shapes that no vector divides, broadcasts, rows that are not contiguous, values of every size.
        axes: what the output's dimensions are, the slowest first, for reports.
    """

    op: str
    title: str
    judge: Callable[[Node], Judged]
    draw: Callable[[np.random.Generator], Iterable[Node]]
    axes: tuple[str, str, str, str] = ("i3", "i2", "i1", "i0")
