"""Records of a graph's nodes: operation, operands and parameters, without values."""

from __future__ import annotations

import numpy as np

from gguf_verify.backend_results import GraphStep
from gguf_verify.llama.graph import GraphNode
from gguf_verify.support.text import printable

from ..operations import Operand

#: Names of parameters, by their places in `op_params` in ggml.c of v0.5.0. A name stands for 4 bytes; ":f" marks a
#: float32, anything else is an int32. "_" marks a place that ggml does not use.
_NAMES = {
    "ROPE": "_ n_dims mode _ n_ctx_orig freq_base:f freq_scale:f ext_factor:f attn_factor:f beta_fast:f beta_slow:f "
    "section_0 section_1 section_2 section_3 offset",
    "RMS_NORM": "eps:f",
    "NORM": "eps:f",
    "L2_NORM": "eps:f",
    "GROUP_NORM": "n_groups eps:f",
    "SCALE": "scale:f bias:f",
    "CLAMP": "min:f max:f",
    "LEAKY_RELU": "negative_slope:f",
    "SOFT_MAX": "scale:f max_bias:f",
    "FLASH_ATTN_EXT": "scale:f max_bias:f logit_softcap:f precision",
    "MUL_MAT": "precision",
    "MUL_MAT_ID": "precision",
    "UNARY": "function",
    "GLU": "function swapped alpha:f limit:f",
    "DIAG_MASK_INF": "n_past",
    "ARGSORT": "order",
    "CONCAT": "dim",
    "ARANGE": "start:f stop:f step:f",
}


def step_of(given: GraphNode) -> GraphStep:
    """Return the record of a node; only its operation and name if its inputs could not be read."""
    operation, name, node = printable(given.operation, 100), printable(given.name, 100), given.node
    if node is None:
        return GraphStep(operation, name)
    sources = tuple("" if source is None else described(source) for source in node.sources)
    return GraphStep(operation, name, described(node.output), sources, named_parameters(node.op, node.parameters))


def described(operand: Operand) -> str:
    """Describe a tensor: name, type and sizes in ggml's order."""
    sizes = " × ".join(map(str, operand.ne))
    gaps = "" if operand.contiguous else ", not contiguous"
    return f"{printable(operand.name, 64)} {operand.type} [{sizes}]{gaps}".strip()


def named_parameters(op: str, raw: bytes) -> dict[str, str]:
    """Return the nonzero parameters of a node, by name.

    A parameter without a name is `parameter I`, with its bits, which may be those of an int32 or a float32.

    Args:
        op: ggml's name of the operation.
        raw: the bytes of `op_params`.
    """
    names = _NAMES.get(op, "").split()
    integers, numbers = np.frombuffer(raw, "<i4"), np.frombuffer(raw, "<f4")
    found = {}
    for i in map(int, np.flatnonzero(integers)):
        name, _, kind = (names[i] if i < len(names) and names[i] != "_" else f"parameter {i}:?").partition(":")
        bits = f"0x{int(integers[i]) & 0xFFFFFFFF:08x}"
        found[name] = {"": f"{integers[i]}", "f": f"{numbers[i]:.9g}", "?": bits}[kind]
    return found
