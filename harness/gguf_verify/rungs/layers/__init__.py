"""The layers rung: `plan` follows the graph, `task` judges one product of it (`call`, `gemm`), and `merge` joins the
findings. `alone` makes a single call (`--only-call`)."""

from .rung import RUNG

__all__ = ["RUNG"]
