"""The order in which a kernel declares that it adds the terms of an output. It determines the output's bits."""

from __future__ import annotations

from dataclasses import dataclass

#: A part is a multiple of the largest term, which has 32 values.
_TERM = 32


@dataclass(frozen=True)
class Order:
    """Ascending k, over the whole row or in parts of it.

    Args:
        part: values of a part. Each part is summed in ascending k, then the parts' sums are added in ascending order.
            None: the row is one part.

    Raises ValueError if a part is not a positive multiple of 32 values.
    """

    part: int | None = None

    def __post_init__(self) -> None:
        part = self.part
        if part is not None and (type(part) is not int or part <= 0 or part % _TERM):
            raise ValueError(f"an order in parts needs a positive multiple of {_TERM} values, not {part!r}")

    def terms(self, total: int, values: int) -> int:
        """Return the terms of a part, for rows of `total` terms of `values` values each (32 or 16)."""
        return total if self.part is None else self.part // values

    def __str__(self) -> str:
        return "ascending k" if self.part is None else f"ascending k, in parts of {self.part}"


#: The whole row in ascending k.
ASCENDING = Order()
