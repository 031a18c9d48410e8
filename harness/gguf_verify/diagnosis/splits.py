"""Ways to split a product into parts, each with its factor in the definition: see `weighed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, starmap

import numpy as np
import numpy.typing as npt

from .classes import Class
from .fault import Case
from .operands import Doubles

#: The most parts of one split.
MOST_PARTS = 64
_TIMES = {
    -1.0: "has the wrong sign", 0.0: "is missing", 0.25: "is a quarter of what it should be",
    1 / 3: "is a third of what it should be", 0.5: "is half of what it should be", 2.0: "is twice what it should be",
    4.0: "is four times what it should be",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of the product.

    Args:
        key: its name among the parts of any product.
        values: T, float64[M, N].
        meant: c, its factor in the definition.
        words: describes the part with another factor, as a clause.
        many: describes consecutive parts with one factor, from their names and the factor; None if parts have no order.
    """

    key: str
    values: Doubles
    meant: float
    words: Callable[[float], str]
    many: Callable[[str, float], str] | None = None


@dataclass(frozen=True)
class Split:
    """A way to split products into parts; `parts` returns those of a case, none if it cannot be split this way.

    Args:
        id: the fault of wrong factors.
        along_k: parts are consecutive parts of K.
        simple: factors other than 0 and powers of two are no evidence: it has many parts for few outputs.
    """

    id: str
    parts: Callable[[Case], Sequence[Part]]
    along_k: bool = False
    simple: bool = False


def _times(what: str) -> Callable[[float], str]:
    """Return the description of a part that counts once."""
    return lambda c: f"{what} {_TIMES.get(c, f'is {c:.6g} times what it should be')}"


def _of_terms(case: Case) -> Sequence[Part]:
    """Return the products of codes, the offset and the minimum, and a constant."""
    codes = _product(case, case.parts.q + _stored_offset(case))
    constant = Part("constant", np.ones(codes.shape), 0.0, lambda c: f"{c:.6g} is added to each output")
    return [Part("codes", codes, 1.0, _times("the codes' term")), *_rest(case), constant]


def _stored_offset(case: Case) -> int:
    """Return the number to add to the codes of `Parts` to get the file's codes."""
    return case.taken_off + case.fmt.zero


def _rest(case: Case) -> list[Part]:
    """Return the parts that are no products of stored codes: the offset, and the minimum."""
    p, fmt = case.parts, case.fmt
    if p.m.any() and not fmt.has_min:  # the offset is multiplied by the sums
        return [_of_offset(p.s @ p.m.T / -fmt.offset, fmt.offset)]
    offset = _of_offset(_product(case, np.ones_like(p.q)), _stored_offset(case))
    return [offset, *_minimum(case)]


def _of_offset(values: Doubles, offset: int) -> Part:
    def words(c: float) -> str:
        term = f": {_times('the term of the offset')(-c / offset)}" if offset else ""
        return f"{0 - c:g} is subtracted from the codes, not {offset:g}{term}"

    return Part("offset", values, -float(offset), words)


def _minimum(case: Case) -> list[Part]:
    p = case.parts
    return [Part("minimum", p.s @ p.m.T, 1.0, _times("the minimum's term"))] if p.m.any() else []


def _of_bits(case: Case) -> Sequence[Part]:
    """Return the bits of all codes."""
    return _bits(case, (_all_codes(case),))


def _of_nibbles(case: Case) -> Sequence[Part]:
    """Return the bits of codes in low and in high nibbles."""
    distance, (terms, values) = case.fmt.nibble_distance, case.parts.q.shape[1:]
    if distance is None:
        return ()
    low = np.arange(terms * values).reshape(terms, values) // distance % 2 == 0
    return _bits(case, (("codes in low nibbles", low), ("codes in high nibbles", ~low)))


def _of_bits_and_pairs(case: Case) -> Sequence[Part]:
    """Return the bits of all codes, and each two bits that are both set.

    Bits that are shifted to one place and joined by | or ^ are no sum: a | b = a + b - a·b.
    """
    bits = _bits(case, (_all_codes(case),))
    stored = _stored_codes(case)

    def pair(one: int, other: int) -> Part:
        values = _product(case, (stored >> one & stored >> other & 1).astype(np.float64))
        which = f"bits {one} and {other} of the codes"
        return Part(
            f"{which} both set",
            values,
            0.0,
            lambda c: f"{which} count {abs(c):g} {'more' if c > 0 else 'less'} where both are set",
        )

    return [*bits, *starmap(pair, combinations(range(case.fmt.bits), 2))] if bits else ()


def _all_codes(case: Case) -> tuple[str, npt.NDArray[np.bool_]]:
    return "codes", np.ones(case.parts.q.shape[1:], bool)


def _stored_codes(case: Case) -> npt.NDArray[np.int64]:
    return (case.parts.q + _stored_offset(case)).astype(np.int64)


def _bits(case: Case, which: Sequence[tuple[str, npt.NDArray[np.bool_]]]) -> Sequence[Part]:
    fmt = case.fmt
    if fmt.stored_bits != fmt.bits:
        return ()  # codes that are not stored as such
    stored = _stored_codes(case)
    signed = fmt.low < 0 and not _stored_offset(case)

    def part(bit: int, of: str, at: npt.NDArray[np.bool_]) -> Part:
        meant = -(2.0**bit) if signed and bit == fmt.bits - 1 else 2.0**bit
        values = _product(case, ((stored >> bit & 1) * at).astype(np.float64))
        return Part(f"bit {bit} of {of}", values, meant, lambda c: f"bit {bit} of the {of} counts {c:g}, not {meant:g}")

    return [*(part(bit, of, at) for of, at in which for bit in range(fmt.bits)), *_rest(case)]


def _of_values(case: Case) -> Sequence[Part]:
    """Return the products of the codes of each value."""
    codes = np.unique(case.parts.q)
    if not 2 <= len(codes) <= 16:
        return ()

    def part(code: float) -> Part:
        values = _product(case, (case.parts.q == code).astype(np.float64))
        return Part(f"{code:g}", values, float(code), lambda c: f"codes of value {code:g} count as {c:g}")

    return [*map(part, codes), *_minimum(case)]


def _of_positions(case: Case) -> Sequence[Part]:
    """Return the products of codes at each place of the terms."""
    values = case.parts.q.shape[2]

    def part(at: int) -> Part:
        of = _product(case, case.parts.q * (np.arange(values) == at))
        return Part(str(at), of, 1.0, lambda c: f"value {at} of each {values} counts {c:g} times")

    return [*map(part, range(values)), *_minimum(case)]


def _of_groups(case: Case) -> Sequence[Part]:
    """Return the products of codes at one place of each block of weights."""
    n = case.parts.per_block
    return _along(case, np.arange(case.parts.q.shape[1]) % n, f"term {{}} of each {n} of a block", False)


def _of_blocks(case: Case) -> Sequence[Part]:
    """Return the products of codes of each block of K."""
    return _along(case, np.arange(case.parts.q.shape[1]) // case.parts.per_block, "block {} of K", False)


def _of_slices(case: Case) -> Sequence[Part]:
    """Return the products of codes of each term of K, if a block has several."""
    n, values = case.parts.q.shape[1:]
    return () if case.parts.per_block == 1 else _along(case, np.arange(n), f"slice {{}} of {values} values of K", False)


def _of_whole_blocks(case: Case) -> Sequence[Part]:
    """Return each block of K, with its minimum or offset."""
    found = _along(case, np.arange(case.parts.q.shape[1]) // case.parts.per_block, "block {} of K", True)
    return found if case.parts.m.any() else ()  # otherwise the same as `_of_blocks`


def _along(case: Case, place: npt.NDArray[np.intp], name: str, whole: bool) -> Sequence[Part]:
    """Return the terms at each place, whole or without their minima."""
    p, n = case.parts, int(place.max()) + 1
    if not 2 <= n <= MOST_PARTS:
        return ()

    def part(at: int) -> Part:
        here = place == at
        only = _product(case, p.q * here[:, None]) + (p.s @ (p.m * here).T if whole else 0.0)
        but = "" if whole or not p.m.any() else ", but for {} minimum or offset,"
        one, many = name + but.format("its"), name.replace(" {}", "s {}", 1) + but.format("their")
        return Part(
            str(at),
            only,
            1.0,
            lambda c: f"{one.format(at)} counts {c:g} times",
            lambda which, c: f"{many.format(which)} count {c:g} times",
        )

    return [*map(part, range(n)), *([] if whole else _minimum(case))]


def _product(case: Case, q: Doubles) -> Doubles:
    """Return Σ d·e·Σ q·a of other codes q float64[N, terms, values]."""
    p = case.parts
    return np.asarray((p.a * p.e[..., None]).reshape(len(p.a), -1) @ (q * p.d[..., None]).reshape(len(q), -1).T)


def _of_class(case: Case, of: Class, split: Callable[[Case], Sequence[Part]]) -> Sequence[Part]:
    """Return the parts of the blocks of a class, and the sum of all other blocks."""
    holds = of.holds(case.parts)
    if holds.all() or not holds.any():
        return ()
    here = [part for part in split(case.of_parts(of.only(case.parts, holds))) if part.key != "constant"]
    if not here:
        return ()
    rest = case.right.exact - sum(part.meant * part.values for part in here)

    def within(part: Part) -> Part:
        return replace(part, words=lambda c: f"in {of.words}, {part.words(c)}")

    return [*map(within, here), Part("rest", rest, 1.0, lambda c: f"all but {of.words} count {c:g} times")]


def _of_scale_bits(case: Case) -> Sequence[Part]:
    """Return the bits of the integer scales and minima of groups, in the first and the second half of a block."""
    p, fmt = case.parts, case.fmt
    structs = fmt.view(case.rows.reshape(len(case.rows), -1, fmt.block_bytes))
    names = structs.dtype.names or ()
    if fmt.groups < 2 or "scales" not in names or any(f.name == "d" and f.dtype != "<f2" for f in fmt.fields):
        return ()
    second = np.arange(p.d.shape[1]) % p.per_block >= p.per_block // 2
    found: list[Part] = []
    for name, field, values, multiply in (
        ("scale", "d", p.d, lambda d: _scaled(case, d)),
        ("minimum", "dmin", -p.m, lambda m: -(p.s @ m.T)),
    ):
        if field not in names:
            if p.m.any():
                return ()
            continue
        unit = np.repeat(structs[field].astype(np.float64), p.per_block, axis=1)
        with np.errstate(all="ignore"):
            integers = np.where(unit == 0, 0, np.rint(values / unit))
        if not (np.isfinite(integers).all() and (integers * unit == values).all() and (integers >= 0).all()):
            return ()
        for bit in range(int(integers.max()).bit_length()):
            for half, of in ((~second, "first"), (second, "second")):
                those = unit * (integers.astype(np.int64) >> bit & 1) * half
                which = f"bit {bit} of the {name} of groups in the {of} half of a block"
                found.append(Part(which, multiply(those), 2.0**bit, _counts(which, 2.0**bit)))
    return found


def _counts(which: str, meant: float) -> Callable[[float], str]:
    return lambda c: f"{which} counts {c:g}, not {meant:g}"


def _scaled(case: Case, d: Doubles) -> Doubles:
    """Return Σ d·e·Σ q·a of other scales d float64[N, terms]."""
    p = case.parts
    left = (p.a * p.e[..., None]).reshape(len(p.a), -1)
    return np.asarray(left @ (p.q * d[..., None]).reshape(len(p.q), -1).T)


SPLITS: tuple[Split, ...] = (
    Split("term-factor", _of_terms),
    Split("code-bits", _of_bits),
    Split("code-bits", _of_nibbles),
    Split("code-values", _of_values),
    Split("code-bits", _of_bits_and_pairs),
    Split("position-factor", _of_positions),
    Split("block-factor", _of_groups),
    Split("block-factor", _of_blocks, along_k=True),
    Split("block-factor", _of_whole_blocks, along_k=True),
    Split("block-factor", _of_slices, along_k=True),
    Split("scale-bits", _of_scale_bits, simple=True),
)


def splits_of(of: Class) -> tuple[Split, ...]:
    """Return the splits that tell blocks of a class from all others."""
    return (
        Split("term-factor", partial(_of_class, of=of, split=_of_terms)),
        Split("code-bits", partial(_of_class, of=of, split=_of_bits), simple=True),
    )
