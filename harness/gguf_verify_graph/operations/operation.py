"""The record of one ggml operation; each is in a module of its own, or of its family."""

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
        title: what the operation computes, in one line.
        judge: judges a node. Raises NoDefinition if no definition covers the node.
        draw: yields nodes with random inputs and blank outputs, of every kind that `judge` supports, for a backend to
            compute: shapes not divisible into vectors, broadcasts, rows that are not contiguous, values of every size.
        axes: names of the output's dimensions, the slowest first, for reports.
    """

    op: str
    title: str
    judge: Callable[[Node], Judged]
    draw: Callable[[np.random.Generator], Iterable[Node]]
    axes: tuple[str, str, str, str] = ("i3", "i2", "i1", "i0")
