"""Operations fused behind a product: bias, residual, scale, a gate, and accumulation into the output.

The exact result and the bound of the product pass through each operation in order, in float64; `epilogues` has the
operations and their derivations. The arithmetic between the product and the output is float32, and the output is
rounded once, behind the last operation. The operands are random, seeded with the bytes of the call (`drawn`), so both
sides derive the same operands from these: the kernel's side passes them on, the judge's side recomputes them. Rungs
judge a product in parts, some rows of the weights, some tokens, so an element's random value only depends on its own
row and token.

If the product has a declared order, whose bits are known, the operations begin with these bits, and are carried out one
by one: then the bound only holds the operations' own roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .drawn import addend, companions, factor
from .epilogues import OPERATIONS, Operation
from .epilogues.operation import Fused
from .epilogues.sums import ACCUMULATE
from .sums import UNIT_ROUNDOFF, Doubles, Product

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.intp]
Multiply = Callable[[Bytes], Product]

#: NumPy's types of a kernel's operands. NumPy has no bfloat16: its bits are stored as uint16.
_STORED: dict[str, str] = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}


def stored(values: Doubles, dtype: str) -> npt.NDArray[Any]:
    """Convert random numbers to an operand's type: "float32", "float16", or "bfloat16" as its bits, uint16.

    Raises ValueError for another type.
    """
    if dtype not in _STORED:
        raise ValueError(f"an operand of an epilogue is one of {', '.join(_STORED)}, not {dtype}")
    if dtype == "bfloat16":  # 7 significant bits: the bits that are cut off are zero
        return np.ascontiguousarray(values, np.float32).view(np.uint32).__rshift__(16).astype(np.uint16)
    return np.ascontiguousarray(values, _STORED[dtype])


def _numbers(operand: npt.NDArray[Any]) -> Doubles:
    """Convert the result of `stored` to numbers."""
    if operand.dtype == np.uint16:
        operand = (operand.astype(np.uint32) << 16).view(np.float32)
    return operand.astype(np.float64)


@dataclass(frozen=True)
class Epilogue:
    """Operations behind a product, in order.

    Args:
        names: of OPERATIONS, each at most once. "accumulate", which adds the result to the content of the output before
            the call, comes last.
        roundoff: unit roundoff of the arithmetic of the operations: 2^-24 of float32, 2^-11 of halves.

    Raises ValueError for an unknown or repeated name, or for no name.
    """

    names: tuple[str, ...]
    roundoff: float = UNIT_ROUNDOFF

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in OPERATIONS:
                raise ValueError(f"epilogue {ascii(name)[:60]} is not one of {', '.join(OPERATIONS)}")
        of = [operation.operand for operation in self.operations]
        if len(set(of)) < len(of):
            raise ValueError("an epilogue names each operation once, and one gate at most")
        if not of:
            raise ValueError("an epilogue names at least one operation")
        if ACCUMULATE.name in self.names[:-1]:
            raise ValueError("an epilogue accumulates into the output at its end")

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations in order."""
        return tuple(OPERATIONS[name] for name in self.names)

    @property
    def has_neutral(self) -> bool:
        """Whether there are operands with which the kernel computes the product alone."""
        return all(operation.neutral is not None for operation in self.operations)

    @property
    def words(self) -> str:
        """The fused operations, in words for a report."""
        return ", ".join(operation.title for operation in self.operations)

    def operands(
        self,
        fmt: BlockFormat,
        w: Bytes,
        x: Bytes,
        output_dtype: str = "float32",
        neutral: bool = False,
        dtypes: Mapping[str, str] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the operands to pass: name → array.

        Args:
            w: weights uint8[N, row bytes] of the call, before they are padded to a kernel's domain.
            x: activations uint8[M, row bytes] as the kernel gets them, likewise; or another seed for each token
                (`drawn.keys_of_slots`).
            output_dtype: the type of the kernel's output: "float32", "float16" or "bfloat16".
            neutral: return operands with which the kernel computes the product alone.
            dtypes: types of operands other than the defaults (bias: float32, residual: the output's).

        Returns: bias[N], residual[M, N], scale[1], row_scale[N], token_scale[M], up uint8[N, row bytes], and output[M,
        N], which is the content of the output before the call. Arrays of bfloat16 are uint16.

        Raises ValueError for an operation without a neutral operand, and for other types.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        for operation in self.operations:
            if operation.place is None:
                if neutral:
                    raise ValueError(f"no operand of {operation.name} leaves the product as it is")
                found[operation.operand] = companions(fmt, w)
                continue
            values = self._values(operation, fmt, w, x)
            if neutral:
                values = np.full_like(values, operation.neutral)
            usual = output_dtype if operation.as_output else "float32"
            dtype = output_dtype if operation is ACCUMULATE else (dtypes or {}).get(operation.operand, usual)
            found[operation.operand] = stored(values, dtype)
        return found

    def applied(
        self,
        product: Product,
        fmt: BlockFormat,
        w: Bytes,
        x: Bytes,
        multiply: Multiply | None = None,
        operations: Sequence[Operation] | None = None,
        operands: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Product:
        """Return the fused result, its bound and its spread, before the output's rounding.

        Args:
            product: of weights uint8[N, row bytes] and activations.
            x: the seed of `operands`.
            multiply: weights → their product with the same activations by the same definition, for a gate.
            operations: replaces its own operations, in order: the possible actions of a wrong kernel.
            operands: as `operands` returns them; None: random ones.

        If the product has the bits of a declared order, the operations begin with these. The result has none: `ordered`
        is None.

        Raises ValueError for a gate without `multiply`.
        """

        def companion() -> Product:
            if multiply is None:
                raise ValueError("a gate needs a second product")
            return multiply(companions(fmt, w) if operands is None else operands["up"]).in_order

        k, behind = w.shape[1] // fmt.block_bytes * fmt.block_size, product.ordered is not None
        fused, product = Fused(k, companion, self.roundoff, behind), product.in_order
        with np.errstate(all="ignore"):
            for operation in self.operations if operations is None else operations:
                none = operation.place is None
                drawn = operands is None and not none
                operand = self._values(operation, fmt, w, x) if drawn else np.zeros(0)
                if operands is not None and not none:
                    operand = _numbers(operands[operation.operand])
                product = operation.apply(product, operand, fused)
        return product

    @staticmethod
    def _values(operation: Operation, fmt: BlockFormat, w: Bytes, x: Bytes) -> Doubles:
        assert operation.place is not None
        if operation.factor:
            return factor(operation.place, operation.name, w, x)
        return addend(operation.place, operation.name, fmt, w, x)


def filled_up(
    operands: Mapping[str, npt.NDArray[Any]],
    tokens: Sequence[int] | Index,
    rows: Sequence[int] | Index,
    row_bytes: int,
    experts: npt.NDArray[np.integer[Any]] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the operands of a call with other tokens and rows than those that they were made for.

    Args:
        operands: from `Epilogue.operands`.
        tokens, rows: the numbers of the tokens and rows of the call, in its order; rows intp[E, N] for experts.
        row_bytes: bytes of a row of weights of the call, whose blocks repeat those of the row.
        experts: the expert of each token of the call. None: it has no experts.

    Returns: operands of rows are [N], or [E, N]; those of tokens, or of outputs, as in `Epilogue.operands`.
    """
    at = {operation.operand: operation.place for operation in OPERATIONS.values()}
    tokens, rows, found = np.asarray(tokens, np.intp), np.asarray(rows, np.intp), {}
    for name, values in operands.items():
        if at[name] == "row":
            values = values[rows]
        elif at[name] == "token":
            values = values[tokens]
        elif at[name] == "output":
            values = values[tokens][:, rows] if experts is None else values[tokens[:, None], rows[experts]]
        elif at[name] is None:
            wide = np.tile(values, (1, -(-row_bytes // max(1, values.shape[1]))))[:, :row_bytes]
            values = wide[rows]
        found[name] = np.ascontiguousarray(values)
    return found
