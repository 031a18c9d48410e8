"""The layers rung: `rung` follows the graph, `shapes` says at which shapes, `outputs` runs the kernel, `gemm` judges,
`explain` looks at what is wrong. It imports what every rung may import."""

from .rung import RUNG

__all__ = ["RUNG"]
