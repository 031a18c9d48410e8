"""Judging a product y = x·Wᵀ that any engine has computed, from captured arrays: `gguf-verify judge`.

`files` reads the arrays, `judge` judges them, and `records` has the result. Nothing is run.
"""

from .files import judge_captured, judge_case, read_case
from .records import AUTO, Judged

__all__ = ["AUTO", "Judged", "judge_captured", "judge_case", "read_case"]
