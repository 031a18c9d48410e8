"""The layers rung: `plan` follows the graph, `task` judges one product of it (`call`, `gemm`) and the type's kernel
beyond it (`again`, `probes`), and `rung` merges the findings."""

from .rung import RUNG

__all__ = ["RUNG"]
