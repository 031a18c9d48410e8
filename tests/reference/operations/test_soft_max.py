"""SOFT_MAX: right on the CPU backend, and planted faults are seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from tests.support.operations import Fault, check_faults, computed, rows_shifted, source, stale


def _with_mask(node: Node, sources: tuple[Operand | None, ...]) -> Node | None:
    """The node with other sources, where it has a mask that is not -inf everywhere."""
    mask = node.optional(1)
    return replace(node, sources=sources) if mask is not None and np.isfinite(mask.values).any() else None


def _mask_rows_shifted(node: Node) -> Node | None:
    return source(node, 1, lambda m: np.roll(m, 1, axis=2)) if node.optional(1) is not None else None


def _without_sinks(node: Node) -> Node | None:
    return replace(node, sources=node.sources[:2]) if node.optional(2) is not None else None


def _bias(node: Node) -> Node | None:
    bias = node.number(1)
    return replace(node, parameters=parameters(node.number(0), 0.999 * bias)) if bias else None


def _in_half(node: Node) -> Node:
    return source(node, 0, lambda x: x.astype(np.float16).astype(np.float32))


def _last_left_out(_node: Node, data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """The last column is neither computed nor counted in the sum."""
    if not np.isfinite(data).all() or data.shape[3] < 2:
        return None
    kept = np.asarray(data, np.float32) * (np.arange(data.shape[3]) < data.shape[3] - 1)
    total = kept.sum(axis=-1, keepdims=True)
    return kept / np.where(total > 0, total, 1)


def test_faults(llama: Llama) -> None:
    check_faults(
        llama, "SOFT_MAX", Fault("the mask left out", lambda node: _with_mask(node, (node.source(0),))),
        Fault("the mask one row off", _mask_rows_shifted), Fault("sinks left out", _without_sinks),
        Fault("the slopes of another max_bias", _bias), Fault("scores rounded to half", _in_half),
        Fault("heads of the scores one off", lambda node: source(node, 0, lambda x: np.roll(x, 1, axis=1))),
        Fault("scale 1e-5 too large", lambda node: replace(
            node, parameters=parameters(node.number(0) * (1 + 1e-5), node.number(1)))),
        Fault("the last column left out", in_output=_last_left_out),
        Fault("a row left out", in_output=stale), Fault("rows one off", in_output=rows_shifted),
    )  # fmt: skip


def test_shapes_that_do_not_fit_have_no_definition(llama: Llama) -> None:
    node = next(each for each in computed(llama, "SOFT_MAX") if each.optional(2) is not None)
    for i, other in ((1, np.zeros((1, 1, 1, 3), np.float32)), (2, np.zeros(node.output.ne[2] + 1, np.float32))):
        sources = list(node.sources)
        sources[i] = Operand.of(other)
        with pytest.raises(NoDefinition):
            judge(replace(node, sources=tuple(sources)))
