"""The types of a file's weights at the terminal: a table by bytes, with bars."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from ...results.composition import Composition, TypeShare
from .console import facts, table

#: Characters of a bar of 100 %, and the eighths of its last one.
_WIDE, _EIGHTHS = 20, " ▏▎▍▌▋▊▉"


def lines(of: Composition) -> Iterator[RenderableType]:
    """The number of weights with their average size, and a line for each type, the most bytes first."""
    yield facts([("weights", f"{of.weights:,}, {of.bits_per_weight:.2f} bits per weight")])
    yield ""
    made = table("type", "tensors", "weights", "bits", "bytes", "share", "", right=range(1, 6))
    for share in of.types:
        made.add_row(
            Text(share.type), f"{share.tensors:,}", f"{share.weights:,}", f"{share.bits_per_weight:.4g}",
            f"{share.nbytes:,}", of.percent(share), _bar(of, share),
        )  # fmt: skip
    yield made


def _bar(of: Composition, share: TypeShare) -> str:
    eighths = round(8 * _WIDE * share.nbytes / max(1, of.nbytes))
    return f"{'█' * (eighths // 8)}{_EIGHTHS[eighths % 8]}".strip()
