"""Single-token mutants of the CUDA sources below kernels/.

A mutant is one edit of one file: a token is replaced or inserted, or a statement is removed, duplicated, or moved after
the next one. Its id is `file:line:column:operator`, which is stable as long as the file does not change. Edits without
an effect on a CPU (launch bounds, alignments) are generated too, and marked.

The operators are those of Offutt et al., "An Experimental Determination of Sufficient Mutant Operators" (ACM TOSEM 5,
1996: relational, arithmetic, logical, absolute value), plus constants, statements, indices and typical mistakes in such
kernels: masks, shifts, halves of a block, intrinsics, barriers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Functions that mutants may call and no host has; prepended to every compiled unit.
PRELUDE = """
#ifndef MUTATION_PRELUDE
#define MUTATION_PRELUDE
#include <cstdint>
#define LEFT_OUT(...) ((void)0)
#define IF_NOT(...) if (!(__VA_ARGS__))
#define CONSTEXPR_NOT(...) constexpr (!(__VA_ARGS__))
#define IDENTITY(...) (__VA_ARGS__)
#define UNFUSED(A, B, C) __fadd_rn(__fmul_rn((A), (B)), (C))
#define DP4A_UNSIGNED(A, B, C) dp4a_unsigned((A), (B), (C))
inline int dp4a_unsigned(int a, int b, int c) {
    for (int shift = 0; shift < 32; shift += 8) c += (int)(uint8_t)(a >> shift) * (int)(int8_t)(b >> shift);
    return c;
}
#endif
"""


@dataclass(frozen=True)
class Token:
    """A token; line and column count from 1. Its kind is name, int, float or op, or one that is never mutated: text (a
    string or character), comment, directive."""

    kind: str
    text: str
    start: int
    line: int
    column: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_LEXEME = re.compile(
    r"""(?P<space>\s+)
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<directive>\#(?:[^\n\\]|\\\n|\\.)*)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<float>0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?[pP][+-]?\d+[fF]?
        | (?:(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)[fF]?)
    | (?P<int>0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*)
    | (?P<name>[A-Za-z_]\w*)
    | (?P<op><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|[-<>=!+*/%&|^]=|&&|\|\||::|[-+*/%&|^~!<>=?:;,.()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(source: str) -> list[Token]:
    """Return all tokens except white space. Raises ValueError at a character that cannot begin a token."""
    found, at, line, begins = [], 0, 1, 0
    while at < len(source):
        match = _LEXEME.match(source, at)
        if match is None:
            raise ValueError(f"line {line}: no token begins with {source[at]!r}")
        kind, text = str(match.lastgroup), match[0]
        if kind != "space":
            found.append(Token(kind, text, at, line, at - begins + 1))
        if newlines := text.count("\n"):
            line += newlines
            begins = at + text.rindex("\n") + 1
        at = match.end()
    return found


@dataclass(frozen=True)
class Mutant:
    """One edit: `old` at `start` of the file is replaced by `new`.

    Args:
        file: its path below kernels/.
        operator: the kind of edit, with what it inserts.
        unobservable: why the edit has no effect on a CPU; "" if it may have one.
    """

    file: str
    line: int
    column: int
    operator: str
    start: int
    old: str
    new: str
    unobservable: str = ""

    @property
    def id(self) -> str:
        return f"{self.file}:{self.line}:{self.column}:{self.operator}"

    def applied(self, source: str) -> str:
        """Apply the edit to a source. Raises ValueError if the source does not contain `old` there."""
        end = self.start + len(self.old)
        if source[self.start : end] != self.old:
            raise ValueError(f"{self.id}: the source does not read {self.old!r} there")
        return source[: self.start] + self.new + source[end:]

    def diff(self, source: str) -> str:
        """Return the edited line(s) as one line that contains ⟦old → new⟧."""
        lines = source.splitlines()
        before = lines[self.line - 1][: self.column - 1].lstrip()
        after = source[self.start + len(self.old) :].partition("\n")[0]
        old = " ".join(self.old.split())
        return f"{before}⟦{old} → {self.new.strip()}⟧{after}"


# -- where ------------------------------------------------------------------------------------------------------------

_CONDITION = re.compile(r"#\s*(if|ifdef|ifndef|else|elif|endif)\b(.*)")
_ALIGNMENT = frozenset({"alignas", "__align__", "__launch_bounds__"})
#: Members of a format that only the audit's statistics use.
_STATISTICS = frozenset({"NORMAL", "stored_scale", "stored_min"})


def _host_regions(all_tokens: list[Token]) -> list[tuple[int, int]]:
    """Find `#ifdef __CUDACC__` … `#endif`: one side is not compiled on a CPU, the other emulates the GPU."""
    regions, depth, opened = [], 0, (0, 0)
    for token in all_tokens:
        if token.kind != "directive" or not (match := _CONDITION.match(token.text)):
            continue
        if match[1] in ("if", "ifdef", "ifndef"):
            depth += 1
            if not opened[0] and ("__CUDACC__" in match[2] or "__CUDA_ARCH__" in match[2]):
                opened = (depth, token.start)
        elif match[1] == "endif":
            if opened[0] == depth:
                regions.append((opened[1], token.end))
                opened = (0, 0)
            depth -= 1
    return regions


def matching(code: list[Token], at: int) -> int:
    """The index of the bracket that closes the one at `at`."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    opening, closing, depth = code[at].text, pairs[code[at].text], 0
    for i in range(at, len(code)):
        depth += (code[i].text == opening) - (code[i].text == closing)
        if depth == 0:
            return i
    raise ValueError(f"line {code[at].line}: {opening} is not closed")


# -- what -------------------------------------------------------------------------------------------------------------

_BINARY = {
    "+": ("-", "*"), "-": ("+",), "*": ("+",), "/": ("%",), "%": ("/",), "<<": (">>",), ">>": ("<<",), "&": ("|",),
    "|": ("&",), "^": ("&",), "&&": ("||",), "||": ("&&",), "<": ("<=",), "<=": ("<",), ">": (">=",), ">=": (">",),
    "==": ("!=",), "!=": ("==",), "+=": ("-=", "="), "-=": ("+=",), "|=": ("&=", "="), "&=": ("|=",), "^=": ("&=",),
}  # fmt: skip
#: Names that are easily confused: halves, axes, members of a block.
_EXCHANGED = {
    "low": "high", "high": "low", "x_low": "x_high", "x_high": "x_low", "qs": "qh", "qh": "qs", "d_a": "s_a",
    "s_a": "d_a", "d_w": "m_w", "m_w": "d_w", "M": "N", "N": "M", "m0": "n0", "n0": "m0", "row": "token",
    "token": "row", "lane": "warp", "warp": "lane", "t": "r", "r": "t", "g": "c", "c": "g", "i": "j", "j": "i",
    "s": "h", "h": "s", "scale": "minimum", "minimum": "scale", "upper": "lower", "lower": "upper", "block": "blocks",
    "odd": "upper", "fminf": "fmaxf", "fmaxf": "fminf", "int8_t": "uint8_t", "uint8_t": "int8_t", "d_at": "m_at",
    "PART_D": "PART_HIGH", "PART_M": "PART_D", "D_AT": "HIGH_AT", "M_AT": "D_AT", "load_word_2": "load_word_1",
    "ROWS": "TOKENS", "TOKENS": "ROWS",
}  # fmt: skip
#: After `.` or `->`.
_MEMBERS = {"d": ("s", "m"), "s": ("d",), "m": ("d",), "x": ("y",), "y": ("x",), "z": ("w",), "w": ("z",)}
_INTRINSICS = {
    "__fadd_rn": ("__fsub_rn",), "__fmul_rn": ("__fadd_rn",), "__fmaf_rn": ("UNFUSED",), "__dp4a": ("DP4A_UNSIGNED",),
    "__fdiv_rn": ("__fmul_rn",), "roundf": ("truncf", "rintf"), "fabsf": ("IDENTITY",),
    "__byte_perm": ("DP4A_UNSIGNED",), "half_to_float": ("(float)",),
}  # fmt: skip
_BARRIERS = frozenset({"__syncthreads", "__syncwarp", "barrier_sync", "mbarrier_wait", "barrier_arrive"})
#: Maximum lines of two statements that are exchanged.
_MOST_LINES = 20
_NO_STATEMENT = frozenset(
    {
        "return", "if", "for", "while", "do", "else", "switch", "case", "struct", "class", "enum", "using", "namespace",
        "template", "typedef", "static_assert", "const", "constexpr", "static", "auto", "public", "private", "extern",
        "inline", "default", "__device__", "__global__", "__shared__",
    }
)  # fmt: skip


def _hex(value: int, like: str) -> str:
    digits = re.match(r"0[xX]([0-9a-fA-F]+)", like)
    assert digits
    return f"0x{value:0{len(digits[1])}X}"


def _integers(text: str) -> Iterator[tuple[str, str]]:
    """Yield (operator, literal) for the mutations of an integer literal."""
    digits = text.rstrip("uUlL")
    suffix = text[len(digits) :]
    value = int(digits, 0)
    made: dict[str, int]
    if digits[:2].lower() == "0x":
        width = len(digits) - 2
        swapped = int("".join(c for pair in re.findall("..?", digits[2:]) for c in pair[::-1]), 16)
        lowest = value & -value
        made = {"nibbles": swapped, "bit": value & ~lowest, "shifted": value << 1 & (1 << 4 * width) - 1, "zero": 0}
    else:
        made = {"plus1": value + 1, "minus1": value - 1, "double": 2 * value, "zero": 0}
    seen = {value}
    for name, new in made.items():
        if new not in seen:
            seen.add(new)
            yield name, (_hex(new, digits) if digits[:2].lower() == "0x" else str(new)) + suffix


def _floats(text: str) -> Iterator[tuple[str, str]]:
    digits = text.rstrip("fF") if "x" not in text.lower() or "p" in text.lower() else text
    suffix = text[len(digits) :]
    value = float.fromhex(digits) if digits[:2].lower() == "0x" else float(digits)
    seen = {value}
    for name, new in {"plus1": value + 1, "minus1": value - 1, "double": 2 * value, "zero": 0.0}.items():
        if new not in seen:
            seen.add(new)
            yield name, (new.hex() if digits[:2].lower() == "0x" and new else repr(new)) + suffix


class _Edits:
    """The edits of one file."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source
        everything = tokens(source)
        host = _host_regions(everything)
        inside = [t for t in everything if t.kind not in ("comment", "directive")]
        self.code = [t for t in inside if not any(a <= t.start < b for a, b in host)]
        self.skipped: set[int] = set()
        self.unobservable: dict[int, str] = {}
        self._regions()

    def _regions(self) -> None:
        """Find the tokens that are not mutated, and those whose mutants have no effect on a CPU."""
        code = self.code
        for i, token in enumerate(code):
            if token.text in ("static_assert", "template", "enum", "asm", "using", "namespace"):
                end = i
                while end < len(code) and code[end].text not in (";", "{", ">" if token.text == "template" else ";"):
                    end += 1
                self.skipped.update(range(i, end + 1))
            elif token.text in _ALIGNMENT and i + 1 < len(code) and code[i + 1].text == "(":
                for k in range(i + 1, matching(code, i + 1) + 1):
                    self.unobservable[k] = f"{token.text} makes no difference on a CPU"
            elif token.text in ("fewer_registers", "more_registers"):
                for k in range(i, i + 4):
                    self.unobservable[k] = "it sets the registers of a warpgroup"
            elif token.text in _STATISTICS and [t.text for t in code].count(token.text) == 1:
                end = i
                while code[end].text not in (";", "}"):
                    end += 1
                for k in range(i, end + 1):
                    self.unobservable[k] = "only the audit's statistics use it"

    def _spaced(self, token: Token) -> bool:
        """Whether there is white space on both sides, as around binary operators in these sources."""
        after = self.source[token.end : token.end + 1]
        return self.source[token.start - 1].isspace() and after.isspace()

    def of_tokens(self) -> Iterator[Mutant]:
        for i, token in enumerate(self.code):
            if i in self.skipped:
                continue
            for operator, new in self._of_token(i, token):
                yield self._mutant(token, operator, token.text, new, i)

    def _mutant(self, token: Token, operator: str, old: str, new: str, at: int) -> Mutant:
        why = self.unobservable.get(at, "")
        return Mutant(self.file, token.line, token.column, operator, token.start, old, new, why)

    def _of_token(self, i: int, token: Token) -> Iterator[tuple[str, str]]:
        code, text = self.code, token.text
        before = code[i - 1] if i else None
        after = code[i + 1] if i + 1 < len(code) else None
        if token.kind == "int":
            yield from (("int-" + name, new) for name, new in _integers(text))
        elif token.kind == "float":
            yield from (("float-" + name, new) for name, new in _floats(text))
        elif token.kind == "op":
            if text in _BINARY and self._spaced(token):
                yield from ((f"op{text}to{new}", new) for new in _BINARY[text])
            elif text == "-" and after is not None and not self._spaced(token):
                yield "sign-dropped", ""
            elif text in ("++", "--"):
                yield f"op{text}to{'--' if text == '++' else '++'}", "--" if text == "++" else "++"
            elif text == "!" and after is not None:
                yield "negation-dropped", ""
            elif text == "?":
                yield "condition-negated", "== 0 ?"
            elif text == "]" and before is not None and before.text not in ("[", "&"):
                yield "index-plus1", " + 1]"
        elif token.kind == "name":
            yield from self._of_name(i, token, before, after)

    def _of_name(self, i: int, token: Token, before: Token | None, after: Token | None) -> Iterator[tuple[str, str]]:
        text, code = token.text, self.code
        if text == "if" and after is not None:
            if after.text == "(":
                yield "condition-negated", "IF_NOT"
        elif text == "constexpr" and before is not None and before.text == "if":
            yield "condition-negated", "CONSTEXPR_NOT"
        elif text in _BARRIERS:
            yield "barrier-left-out", "LEFT_OUT"
        elif text in _INTRINSICS:
            yield from ((f"intrinsic-{new.strip('()')}", new) for new in _INTRINSICS[text])
        elif before is not None and before.text in (".", "->"):
            if text in _MEMBERS:
                yield from ((f"member-{new}", new) for new in _MEMBERS[text])
            elif text in _EXCHANGED:
                yield f"name-{_EXCHANGED[text]}", _EXCHANGED[text]
        elif text in _EXCHANGED and not self._declares(i):
            yield f"name-{_EXCHANGED[text]}", _EXCHANGED[text]
        elif text in ("true", "false"):
            yield "boolean", "false" if text == "true" else "true"
        elif text in ("continue", "break") and code:
            yield "jump-left-out", "LEFT_OUT()"

    def _declares(self, i: int) -> bool:
        """Whether the name at i is declared there, that is, follows a type."""
        before, text = self.code[i - 1], self.code[i].text
        if text.endswith("_t") or text in ("fminf", "fmaxf"):
            return False
        return (before.kind == "name" and before.text not in ("return", "else")) or (
            before.text in ("*", "&", ">") and not self._spaced(before)
        )

    def statements(self) -> Iterator[Mutant]:
        """Mutate each expression statement: remove it, duplicate it, or move it after the next one."""
        code = self.code
        for first, end in self._expressions():
            old = self._text(first, end)
            if code[first].text not in _BARRIERS:  # these are omitted already
                yield self._mutant(code[first], "statement-left-out", old, "", first)
            if self._in_a_head(first):
                continue
            alone = code[first - 1].text in (")", "else")
            twice = f"{{ {old}; {old}; }}" if alone else f"{old}; {old}"
            yield self._mutant(code[first], "statement-doubled", old, twice, first)
            following = None if alone else self._end(end + 1)
            if following is not None:
                other = self.source[code[end + 1].start : code[following].end]
                between = self.source[code[end].end : code[end + 1].start]
                both = self.source[code[first].start : code[following].end]
                if both.count("\n") <= _MOST_LINES:
                    yield self._mutant(code[first], "statements-swapped", both, f"{other}{between}{old};", first)

    def _text(self, first: int, end: int) -> str:
        return self.source[self.code[first].start : self.code[end].start]

    def _in_a_head(self, at: int) -> bool:
        """Whether the token is inside the parentheses of a `for`."""
        depth = 0
        for i in range(at - 1, -1, -1):
            text = self.code[i].text
            if text in ("{", "}"):
                return False
            depth += (text == ")") - (text == "(")
            if depth < 0:
                return self.code[i - 1].text == "for"
        return False

    def _end(self, at: int) -> int | None:
        """The last token of the statement that begins here; None if there is none that could be moved."""
        code = self.code
        if at >= len(code) or code[at].text in ("}", "return", "break", "continue", "case", "default", "static_assert"):
            return None
        if code[at].text == "{":
            return matching(code, at)
        if code[at].text in ("for", "while", "if"):
            opening = at + 1 + (code[at + 1].text == "constexpr")
            end = self._end(matching(code, opening) + 1)
            if end is not None and code[at].text == "if" and code[end + 1].text == "else":
                return self._end(end + 2)
            return end
        while code[at].text != ";":
            if code[at].text in ("(", "[", "{"):
                at = matching(code, at)
            elif code[at].text == "}":
                return None
            at += 1
        return at

    def _expressions(self) -> Iterator[tuple[int, int]]:
        """The first token of each statement that is an expression with an effect, and its semicolon."""
        code = self.code
        for i in range(1, len(code)):
            if code[i - 1].text not in (";", "{", "}", ")", "else") or code[i].kind not in ("name", "op"):
                continue
            if code[i].text in _NO_STATEMENT or (code[i].kind == "op" and code[i].text not in ("++", "--", "*", "(")):
                continue
            if code[i - 1].text == ")" and not self._heads_a_statement(i - 1):
                continue
            end, depth, works = i, 0, False
            while end < len(code) and (depth or code[end].text not in (";", "}")):
                depth += (code[end].text in ("(", "[", "{")) - (code[end].text in (")", "]", "}"))
                if depth < 0:
                    break
                if depth == 0 and (code[end].text.endswith("=") or code[end].text in ("++", "--", ")")):
                    works = True
                end += 1
            if depth or end >= len(code) or code[end].text != ";" or not works:
                continue
            if code[i].kind == code[i + 1].kind == "name" or i in self.skipped or self._declaration(self._text(i, end)):
                continue
            yield i, end

    @staticmethod
    def _declaration(text: str) -> bool:
        return (
            re.match(r"\w+(<[^=;]*>)?(::\w+)*[*&]* ?\w+(\[|;|$| =|\(\w+ )", text) is not None
            and re.match(r"(u?int\d*(_t)?|float\d?|bool|u?int\d|Scales|Part|Quantized|MBarrier|FORMAT|Q8_1)\b", text)
            is not None
        )

    def _heads_a_statement(self, closing: int) -> bool:
        """Whether the `)` ends the head of an if, for or while."""
        depth = 0
        for i in range(closing, -1, -1):
            depth += (self.code[i].text == ")") - (self.code[i].text == "(")
            if depth == 0:
                return i > 0 and self.code[i - 1].text in ("if", "for", "while", "constexpr")
        return False


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a source, ordered by place, with unique ids. `file` is its path below kernels/."""
    edits = _Edits(file, source)
    found = sorted([*edits.of_tokens(), *edits.statements()], key=lambda m: (m.start, m.operator))
    return list({m.id: m for m in found}.values())


def sources(root: Path) -> list[str]:
    """The shipped sources below kernels/ that are mutated.

    Excluded are kernels/emulator, which emulates a GPU; hopper.cuh and gemm/mma.cuh, inline assembly that the emulator
    replaces; formats/format.cuh, which only includes other files; and files that no shipped kernel includes:
    standalone.cuh (for foreign kernels), sources for grouped products, probes of GPUs, and sources for exact products
    and for a benchmark's rival.
    """
    left = {
        "hopper.cuh", "gemm/mma.cuh", "formats/format.cuh", "standalone.cuh", "pack/routing.cu",
        "gemm/experts/decode.cu",
    }  # fmt: skip
    files = (
        str(p.relative_to(root))
        for p in sorted(root.rglob("*.cu*"))
        if not {"dequantize", "emulator", "oracle", "probes"} & {*p.relative_to(root).parts}
    )
    return [f for f in files if f not in left]
