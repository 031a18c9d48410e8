"""Guarded mutants: a mutant of a kernel's code that only runs under a random condition.

An edit of `mutator` changes a statement of a foreign kernel. The statement becomes `if (GUARD) changed; else
original;`, where GUARD is a random condition of M, N, K, data or the number of the call (`guards`). So the fault is a
branch that no list of probes can know.

A mutant is a function of a seed and a number. It comes with a witness: the sizes, values and number of the call around
which its condition was drawn. `witness` runs it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.foreign.template import Template
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.support.paths import CHECKOUT

from ..guards import Guard, Quantity, Rng, guard, log_uniform
from .mutator import Mutant, Token, matching, mutants, tokens

#: The kernel's file, and its function.
FILE, ENTRY = "kernel.cu", "gemm"
#: Sizes of real models, which are half of the sizes of witnesses; the others are log-uniform up to these limits.
_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_ROWS = (256, 512, 768, 1024, 2048, 2560, 3072, 4096, 5120, 8192, 11008, 14336, 28672, 32000, 128256, 151936)
_COLUMNS = (256, 512, 768, 1024, 2048, 2560, 3072, 4096, 5120, 8192, 11008, 14336, 28672)
_MOST_TOKENS, _MOST_ROWS, _MOST_COLUMNS, _MOST_CALLS = 1 << 16, 1 << 18, 1 << 16, 100
#: Shares of guards of sizes, of data, of data and sizes; the others are of the number of the call.
_SIZES, _DATA, _BOTH = 0.55, 0.3, 0.05
_OF_CALLS = "calls"
#: Counts calls, by one thread and without a race; it is put before the first statement of the function.
COUNTER = (
    " static unsigned counted; const unsigned first = blockIdx.x == 0 && threadIdx.x == 0, "
    f"{_OF_CALLS} = atomicAdd(&counted, first) + first;"
)

Shape = tuple[int, int, int]
Operand = Literal["weights", "activations"]


# -- kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Datum:
    """Data that a kernel's code can compare.

    Args:
        expression: in the kernel's code.
        draw: returns a random value.
        whole: whether it is a whole number.
        operand, field: where a block has it, for a scale or a sum; None for a code, a sum of products, or float32
            activations, which occur by themselves.
    """

    expression: str
    draw: Callable[[Rng], float]
    whole: bool = False
    operand: Operand | None = None
    field: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The variables of the expression."""
        return frozenset(re.findall(r"(?<![\w.])[a-z]\w*(?![\w(])", self.expression))


@dataclass(frozen=True)
class Subject:
    """A correct kernel.

    Args:
        name: in results.
        type: of its weights.
        definition: its name.
        data: what its code can compare beside sizes.
    """

    name: str
    type: str
    definition: str
    data: tuple[Datum, ...]

    @property
    def fmt(self) -> BlockFormat:
        return FORMATS[self.type]

    @property
    def semantics(self) -> Semantics:
        return SEMANTICS[self.definition]

    @cached_property
    def files(self) -> Mapping[str, str]:
        """Its sources: name → text. FILE is the kernel."""
        if self.name.endswith(".cu"):
            return {FILE: (CHECKOUT / "examples" / self.name).read_text()}
        made = Template.of(self.type, self.definition, "", "float32").files(Path(FILE))
        return {path.name: text for path, text in made.items()}


def _half(rng: Rng) -> float:
    """Return any finite half."""
    bits = rng.integers(0x7C00) | rng.integers(2) << 15
    return float(np.array([bits], "<u2").view("<f2")[0])


def _code(rng: Rng, low: int, high: int) -> float:
    return float(rng.integers(low, high + 1))


def _signed(rng: Rng, low: float, high: float) -> float:
    """Return a float of either sign, whose logarithm is uniform."""
    return float(np.float32(rng.choice([-1, 1]) * np.exp2(rng.uniform(np.log2(low), np.log2(high)))))


def _whole(rng: Rng, most: int) -> float:
    return float(rng.choice([-1, 1]) * (log_uniform(rng, 1, most) - 1))


_INTEGERS = Datum("products", partial(_whole, most=50_000), True)
_SUM = Datum("sum", partial(_signed, low=1e-4, high=1e6))
_ACTIVATIONS = (
    Datum("d", _half, operand="activations", field="d"),
    Datum("half_to_float(x.s)", _half, operand="activations", field="s"),
    Datum("x.qs[j]", partial(_code, low=-127, high=127), True),
)


def _templates() -> Iterator[Subject]:
    codes = {"Q5_1": (0, 31), "Q8_0": (-127, 127), "Q4_K": (0, 15), "Q6_K": (-32, 31), "Q4_0": (-8, 7)}
    for type_, definition in (("Q5_1", "q8_1"), ("Q8_0", "q8_1"), ("Q4_K", "q8_1"), ("Q6_K", "f32"), ("Q4_0", "f32")):
        halves = [item.name for item in FORMATS[type_].fields if item.dtype == "<f2" and item.count == 1]
        stored = [Datum(f"half_to_float(row[b].{name})", _half, operand="weights", field=name) for name in halves]
        coded = Datum("codes[j]", partial(_code, low=codes[type_][0], high=codes[type_][1]), True)
        terms = (_INTEGERS, *_ACTIVATIONS) if definition == "q8_1" else (Datum("weight", _SUM.draw),)
        yield Subject(f"{type_} {definition}", type_, definition, (*stored, coded, _SUM, *terms))


#: The kernels of an example and of `gguf-verify new-kernel`.
SUBJECTS = (
    Subject(
        "cuda_q4_0.cu", "Q4_0", "q8_1",
        (
            Datum("from_half(wb.d)", _half, operand="weights", field="d"),
            Datum("from_half(xb.d)", _half, operand="activations", field="d"),
            Datum("from_half(xb.s)", _half, operand="activations", field="s"),
            Datum("(wb.qs[j] & 15)", partial(_code, low=0, high=15), True),
            Datum("xb.qs[j]", partial(_code, low=-127, high=127), True),
            Datum("sum", _INTEGERS.draw, True),
            Datum("acc", _SUM.draw),
        ),
    ),
    *_templates(),
)  # fmt: skip


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    """A statement of a function.

    Args:
        start, end: offsets in the source; the end is after its semicolon or brace.
        names: the variables that are declared before it.
        value: for a declaration of one variable, the offset of its initial value; None for no declaration; 0 for a
            declaration that cannot be changed.
    """

    start: int
    end: int
    names: frozenset[str]
    value: int | None = None


def statements(source: str) -> Iterator[Statement]:
    """Yield all statements of ENTRY, outer ones first."""
    code = [t for t in tokens(source) if t.kind not in ("comment", "directive")]
    at = next(i for i, t in enumerate(code) if t.text == ENTRY and code[i + 1].text == "(")
    opening = matching(code, at + 1) + 1
    parameters = {t.text for t in code[at + 2 : opening - 1] if t.kind == "name"}
    yield from _within(code, opening + 1, matching(code, opening), frozenset(parameters))


def _within(code: list[Token], at: int, end: int, names: frozenset[str]) -> Iterator[Statement]:
    """The statements from token `at` to before token `end`."""
    while at < end:
        last = _last(code, at)
        if code[at].text == "{":
            yield from _within(code, at + 1, last, names)
        elif code[at].text in ("for", "while", "if"):
            yield Statement(code[at].start, code[last].end, names)
            closing = matching(code, at + 1)
            inner = names | _declared(code[at + 2 : closing])
            body = _last(code, closing + 1)
            yield from _within(code, closing + 1, body + 1, inner)
            if body < last:
                yield from _within(code, body + 2, last + 1, inner)
        else:
            declared = _declared(code[at:last])
            equals = next((t.end for t in code[at:last] if t.text == "="), 0)
            value = None if not declared else equals if len(declared) == 1 else 0
            yield Statement(code[at].start, code[last].end, names, value)
            names |= declared
        at = last + 1


def _last(code: list[Token], at: int) -> int:
    """The last token of the statement that begins at a token."""
    if code[at].text == "{":
        return matching(code, at)
    if code[at].text in ("for", "while", "if"):
        last = _last(code, matching(code, at + 1) + 1)
        return _last(code, last + 2) if code[last + 1].text == "else" else last
    while code[at].text != ";":
        at = matching(code, at) if code[at].text in ("(", "[", "{") else at
        at += 1
    return at


#: The beginning of a declaration, tokens apart; the first variable.
_DECLARATION = re.compile(r"(?:const |unsigned )*(?:long long|\w+)(?: [*&])* (\w+)(?: [=\[,:]|$)")


def _declared(code: list[Token]) -> frozenset[str]:
    """The variables that a statement declares."""
    first = _DECLARATION.match(" ".join(t.text for t in code))
    if first is None:
        return frozenset()
    found, depth = {first[1]}, 0
    for token, following in pairwise(code):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if token.text == "," and depth == 0:
            found.add(following.text)
    return frozenset(found)


# -- mutants ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Witness:
    """Where the condition of a mutant holds.

    Args:
        shape: M, N, K.
        planted: operand and field → a value of that field.
        calls: the number of the call, from 1; None if it does not matter.
    """

    shape: Shape
    planted: Mapping[tuple[Operand, str], float]
    calls: int | None


@dataclass(frozen=True)
class GuardedMutant:
    """A mutant.

    Args:
        seed, number: which one it is.
        edit: the change of the statement.
        text: the source of the kernel, with the change where the condition holds.
        line: of the condition.
    """

    seed: int
    number: int
    subject: Subject
    guard: Guard
    edit: Mutant
    text: str
    line: int
    witness: Witness

    @property
    def id(self) -> str:
        return f"guarded:{self.seed}:{self.number}"

    @property
    def diff(self) -> str:
        return self.edit.diff(self.subject.files[FILE])

    def write(self, folder: Path, text: str | None = None) -> str:
        """Write its sources, or those with another text of the kernel. Returns the kernel's name for --kernel."""
        for name, content in self.subject.files.items():
            (folder / name).write_text(content if name != FILE else self.text if text is None else text)
        return f"{folder / FILE}:{ENTRY}"


def drawn(seed: int, number: int) -> GuardedMutant:
    """Return a mutant. The same arguments return the same one."""
    rng = np.random.default_rng((seed, number))
    subject = SUBJECTS[rng.integers(len(SUBJECTS))]
    while True:
        edit, statement = _edits(subject)[rng.integers(len(_edits(subject)))]
        found = _guard(rng, subject, statement.names)
        if found is not None:
            condition, witness = found
            source = subject.files[FILE]
            text = _guarded(source, edit, statement, condition.text, witness.calls is not None)
            line = source.count("\n", 0, statement.value or statement.start) + 1
            return GuardedMutant(seed, number, subject, condition, edit, text, line, witness)


@cache
def _edits(subject: Subject) -> list[tuple[Mutant, Statement]]:
    """The edits of a kernel, each with the innermost statement that can have a condition."""
    source = subject.files[FILE]
    inner, found = [*statements(source)], []
    for edit in mutants(FILE, source):
        end = edit.start + len(edit.old)
        around = [s for s in inner if s.start <= edit.start and end <= s.end]
        if around and not edit.unobservable and (around[-1].value is None or 0 < around[-1].value <= edit.start):
            found.append((edit, around[-1]))
    return found


def _guard(rng: Rng, subject: Subject, names: frozenset[str]) -> tuple[Guard, Witness] | None:
    """Return a random condition that a statement can have, and its witness; None if it is about data that it lacks."""
    m, n, k = shape = _shape(rng, subject.fmt.block_size)
    sizes = {"M": m, "N": n, "K": k, "M * N": m * n, "M * K": m * k, "N * K": n * k}
    known = [datum for datum in subject.data if datum.names <= names]
    values = {datum.expression: datum.draw(rng) for datum in known}
    planted = {
        (datum.operand, datum.field): values[datum.expression] for datum in known if datum.operand is not None
    }  # fmt: skip
    product = str(rng.choice([name for name in sizes if "*" in name]))
    of_sizes = [Quantity(name, name, partial(_size, of=name)) for name in "MNK"]
    of_sizes.append(Quantity(product, "product", partial(_size, of=product)))
    of_data = [Quantity(datum.expression, "data", datum.draw, datum.whole) for datum in known]
    share, small = rng.random(), (16, 64, 4 * subject.fmt.block_size)
    if share < _SIZES:
        return guard(rng, of_sizes, sizes), Witness(shape, {}, None)
    if share >= _SIZES + _DATA + _BOTH:
        number = log_uniform(rng, 2, _MOST_CALLS)
        of_calls = Quantity(_OF_CALLS, "call number", lambda rng: log_uniform(rng, 2, _MOST_CALLS))
        return guard(rng, [of_calls], {_OF_CALLS: number}), Witness(small, {}, number)
    if not known:
        return None
    if share < _SIZES + _DATA:
        return guard(rng, of_data, values), Witness(small, planted, None)
    both = guard(rng, [of_data[rng.integers(len(of_data))]], values), guard(rng, of_sizes[:3], sizes)
    return Guard(both[0].comparisons[:1] + both[1].comparisons[:1]), Witness(shape, planted, None)


def _shape(rng: Rng, unit: int) -> Shape:
    def one(of_models: tuple[int, ...], most: int, step: int) -> int:
        if rng.random() < 0.5:
            return int(rng.choice(of_models))
        return step * log_uniform(rng, 1, most // step)

    return one(_TOKENS, _MOST_TOKENS, 1), one(_ROWS, _MOST_ROWS, 1), one(_COLUMNS, _MOST_COLUMNS, unit)


def _size(rng: Rng, of: str) -> float:
    m, n, k = _shape(rng, 32)
    return {"M": m, "N": n, "K": k, "M * N": m * n, "M * K": m * k, "N * K": n * k}[of]


def _guarded(source: str, edit: Mutant, at: Statement, condition: str, counts: bool) -> str:
    """Apply an edit under a condition."""
    changed = edit.applied(source)
    start, end, grown = at.start, at.end, len(changed) - len(source)
    if at.value is not None:
        start, end = at.value, at.end - 1
    old, new = source[start:end], changed[start : end + grown]
    if at.value is None:
        text = f"{{ if ({condition}) {{ {new} }} else {{ {old} }} }}"
    else:
        text = f" ({condition}) ? ({new.strip()}) : ({old.strip()})"
    made = source[:start] + text + source[end:]
    if counts:
        body = source.index("{", source.index(f" {ENTRY}(")) + 1
        made = made[:body] + COUNTER + made[body:]
    return made
