"""The four rungs. Each takes a Run and returns a RungResult."""

from __future__ import annotations

from collections.abc import Callable

from ..results import Failure, RungResult, Worst
from .blocks import blocks_rung
from .bytes import bytes_rung
from .layers.rung import layers_rung
from .run import Options, Run
from .tokens.rung import tokens_rung

#: In the order in which they are climbed: what a lower rung finds explains a higher one.
RUNGS: dict[str, Callable[[Run], RungResult]] = {
    "bytes": bytes_rung,
    "blocks": blocks_rung,
    "layers": layers_rung,
    "tokens": tokens_rung,
}

__all__ = ["RUNGS", "Failure", "Options", "Run", "RungResult", "Worst"]
