"""Translation of inline PTX to C++: each instruction becomes a call of a function of `kernels/emulator/ptx.hpp`.

That header has the instructions that engines use. A register is a word of 64 bits, whatever its type; an instruction
uses the part that its type defines. PTX ISA 9.0, section 9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from .cuda_text import Token

#: Beginning of the names of functions for instructions that the CPU lacks.
SYMBOL = "gguf_verify_no_ptx_"
_NS = "::cuda_on_cpu::ptx::"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\n": ""}
_TYPES = {
    *(f"{kind}{bits}" for kind in "sub" for bits in (8, 16, 32, 64)),
    "f16", "f16x2", "bf16", "bf16x2", "f32", "f64",
}  # fmt: skip
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu"}
_ROUNDINGS = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna"}
_SPECIAL = {
    "%laneid": "::cuda_on_cpu::lane()", "%warpid": "::cuda_on_cpu::ptx::thread() / 32", "%clock": "(uint32_t)clock64()",
    "%clock64": "clock64()", "%globaltimer": "clock64()", "%warpsize": "32", "WARP_SZ": "32", "%nsmid": "1",
    "%smid": "0",
    "%lanemask_lt": "((1u << ::cuda_on_cpu::lane()) - 1)", "%lanemask_eq": "(1u << ::cuda_on_cpu::lane())",
    "%lanemask_le": "((2u << ::cuda_on_cpu::lane()) - 1)",
    **{f"%{short}.{d}": f"::{name}.{d}" for d in "xyz" for short, name in
       (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))},
}  # fmt: skip
#: Instructions without effect here.
_NOTHING = re.compile(r"prefetch|discard|applypriority|griddepcontrol|pragma|setmaxnreg")
#: The spaces that an instruction names → `cuda_on_cpu::Space`.
_SPACES = {"global": "GLOBAL", "shared": "SHARED", "local": "LOCAL", "param": "LOCAL", "const": "CONSTANT"}
_UNARY = {
    "neg",
    "abs",
    "not",
    "popc",
    "clz",
    "brev",
    "cnot",
    "ex2",
    "lg2",
    "rcp",
    "sqrt",
    "rsqrt",
    "tanh",
    "sin",
    "cos",
}
_BINARY = {"add", "sub", "min", "max", "and", "or", "xor", "shl", "shr", "div", "rem"}
_ATOMICS = {"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"}


class Operand(NamedTuple):
    """An operand of an asm statement: its name or "", its constraint such as "=r", and its expression in C++."""

    name: str
    constraint: str
    expression: str


class _Unknown(Exception):
    """An instruction that the CPU lacks."""


def content_of(literal: str) -> str:
    """Return the characters of a string literal."""
    if raw := re.fullmatch(r'(?:u8|[uUL])?R"([^(]*)\((.*)\)\1"', literal, re.S):
        return raw[2]
    inside = literal[literal.index('"') + 1 : -1]
    return re.sub(r"\\(\r?\n|.)", lambda found: _ESCAPES.get(found[1], found[1]), inside, flags=re.S)


def translated(
    template: Sequence[Token],
    operands: Sequence[Sequence[Operand]],
    missing: Callable[[str], str],
    line: Callable[[Token], int],
) -> str:
    """Translate an asm statement to a statement of C++.

    Args:
        template: the tokens of its text.
        operands: its outputs and its inputs.
        missing: an instruction that the CPU lacks → the name of a function to call in its place.
        line: a token → the number of line breaks before it in the asm statement. They are kept, so that each
            instruction is on its line.
    """
    if any(token.kind != "string" for token in template):
        return _without(missing("of a macro"))
    text, lines = "", list[int]()
    for token in template:
        content, first = content_of(token.text), line(token)
        raw = token.text.count("\n") == content.count("\n")  # else its line breaks are escapes
        lines += accumulate((raw and c == "\n" for c in content), initial=first)
        lines.pop()
        text += content
    outputs, inputs = [*operands, [], []][:2]
    try:
        return _Block([*outputs, *inputs], len(outputs)).of(text, lines)
    except _Unknown as unknown:
        return _without(missing(str(unknown)))


def _without(function: str) -> str:
    return f"do {{ void {function}(); {function}(); }} while (0)"


class _Block:
    """One asm statement."""

    def __init__(self, operands: Sequence[Operand], outputs: int) -> None:
        self._operands, self._outputs = operands, outputs
        self._names = {operand.name: i for i, operand in enumerate(operands) if operand.name}
        self._registers: dict[str, str] = {}
        self._scratch = 0

    def of(self, text: str, lines: Sequence[int]) -> str:
        """Translate its text. `lines`: of each character, the number of line breaks before it in the source."""
        text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: " " * len(comment[0]), text, flags=re.S)
        code = []
        for i, operand in enumerate(self._operands):
            kind = operand.constraint.lstrip("=+&")
            if kind not in ("r", "l", "h", "f", "d", "n", "q"):
                raise _Unknown(f"with an operand {operand.constraint!r}"[:40])
            if i < self._outputs:
                code.append(f"auto&& gguf_verify_to{i} = ({operand.expression});")
                given = f"{_NS}in<'{kind}'>(gguf_verify_to{i})" if "+" in operand.constraint else "0"
            else:
                given = f"{_NS}in<'{kind}'>({operand.expression})"
            code.append(f"[[maybe_unused]] uint64_t gguf_verify_r{i} = {given};")
        instructions = [(at, c) for at, statement in _statements(text) if (c := self._statement(statement))]
        code += [f"uint64_t {name} = 0;" for name in self._registers.values()]
        broken = 0
        for at, instruction in instructions:
            code.append("\n" * (lines[at] - broken) + instruction)
            broken = lines[at]
        code += [f"{_NS}out(gguf_verify_to{i}, gguf_verify_r{i});" for i in range(self._outputs)]
        return f"do {{ {' '.join(code)} }} while (0)"

    def _statement(self, text: str) -> str:
        if declared := re.fullmatch(r"\.reg\s*(?:\.v[24]\s*)?\.\w+\s+(.+)", text, re.S):
            for name in declared[1].split(","):
                many = re.fullmatch(r"\s*(%?[\w$]+)(?:<(\d+)>)?\s*", name)
                if many is None or int(many[2] or 0) > 64:
                    raise _Unknown(text[:60])
                for each in [f"{many[1]}{i}" for i in range(int(many[2]))] if many[2] else [many[1]]:
                    self._registers[each] = f"gguf_verify_v{len(self._registers)}"
            return ""
        found = re.fullmatch(r"(?:@(!?)\s*(\S+)\s+)?([a-z][\w.:]*)\s*(.*)", text, re.S)
        if found is None:
            raise _Unknown(" ".join(text.split())[:60])
        negated, predicate, opcode, rest = found.groups()
        code = self._instruction(opcode, _operands(rest))
        return f"if ({negated}({self._value(predicate)} != 0)) {{ {code} }}" if predicate else code

    # ---- operands ------------------------------------------------------------------------------------------------

    def _value(self, text: str, type_: str = "") -> str:
        """Return a source operand as an expression of 64 bits."""
        text = text.strip()
        if found := re.fullmatch(r"%(?:(\d+)|\[(\w+)\])", text):
            i = int(found[1]) if found[1] else self._names.get(found[2], -1)
            if not 0 <= i < len(self._operands):
                raise _Unknown(f"with an operand {text}"[:40])
            return f"gguf_verify_r{i}"
        if text in self._registers:
            return self._registers[text]
        if text.replace("%%", "%") in _SPECIAL:
            return f"(uint64_t)({_SPECIAL[text.replace('%%', '%')]})"
        if found := re.fullmatch(r"0[fFdD]([0-9a-fA-F]{8}|[0-9a-fA-F]{16})", text):
            return f"(uint64_t)0x{found[1]}u"
        if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", text):
            if type_ in ("f32", "f64"):
                return f"{_NS}bits<{_tag(type_)}>({text.rstrip('U')})"
            return f"(uint64_t)({text.rstrip('U')}ll)"
        if re.fullmatch(r"-?\d+\.\d*(?:[eE][+-]?\d+)?", text) and type_ in ("f32", "f64"):
            return f"{_NS}bits<{_tag(type_)}>({text})"
        raise _Unknown(f"with an operand {text}"[:60])

    def _target(self, text: str) -> str:
        text = text.strip()
        if text == "_":
            self._registers[f" {self._scratch}"] = name = f"gguf_verify_w{self._scratch}"
            self._scratch += 1
            return name
        found = self._value(text)
        if not found.startswith("gguf_verify_"):
            raise _Unknown(f"with a result in {text}"[:60])
        return found

    def _parts(self, text: str) -> list[str]:
        """Return the operands of a vector, or the single operand."""
        return [part.strip() for part in text.strip()[1:-1].split(",")] if text.strip().startswith("{") else [text]

    def _vector(self, text: str, type_: str = "") -> str:
        return f"{{{', '.join(self._value(part, type_) for part in self._parts(text))}}}"

    def _address(self, text: str, space: str, function: str = "at") -> str:
        found = re.fullmatch(r"\[\s*([^\]+]+?)\s*(?:\+\s*(.+?))?\s*\]", text.strip())
        if found is None:
            raise _Unknown(f"with an address {text}"[:60])
        at = self._value(found[1]) + (f" + {self._value(found[2])}" if found[2] else "")
        return f"{_NS}{function}<::cuda_on_cpu::{space}>({at})"

    # ---- instructions --------------------------------------------------------------------------------------------

    def _instruction(self, opcode: str, o: list[str]) -> str:
        parts = opcode.split(".")
        name, types = parts[0], [part for part in parts[1:] if part in _TYPES]
        try:
            code = self._code(opcode, name, set(parts[1:]), types, o)
        except (IndexError, ValueError):
            raise _Unknown(opcode) from None
        if code is None:
            raise _Unknown(opcode)
        return code

    def _code(self, opcode: str, name: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        if _NOTHING.match(opcode):
            return ";"
        special = getattr(self, f"_{name}_", None)
        if special is not None:
            found: str | None = special(opcode, said, types, o)
            return found
        type_ = types[-1] if types else ""
        if "sat" in said or "cc" in said or name in ("addc", "subc", "madc"):
            return None
        if name in _UNARY and type_:
            return self._call(f"{name}_<{_tag(type_)}>", o, 1, type_)
        if name in _BINARY and type_ and said & _ROUNDINGS <= {"rn"}:
            return self._call(f"{name}_<{_tag(type_)}>", o, 2, type_)
        return None

    def _call(self, function: str, o: list[str], sources: int, type_: str = "", target: int = 0) -> str:
        if len(o) != sources + 1:
            raise ValueError
        given = ", ".join(self._value(source, type_) for source in o[target + 1 :])
        return f"{self._target(o[target])} = {_NS}{function}({given});"

    def _mov_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        to, source = o
        bits = int(types[-1][1:])  # raises ValueError for types of pairs
        if to.strip().startswith("{"):
            parts = self._parts(to)
            each = bits // len(parts)
            value = self._value(source)
            lines = [
                f"{self._target(p)} = gguf_verify_p >> {each * i} & {_NS}ones({each});" for i, p in enumerate(parts)
            ]
            return f"{{ const uint64_t gguf_verify_p = {value}; {' '.join(lines)} }}"
        if source.strip().startswith("{"):
            parts = self._parts(source)
            each = bits // len(parts)
            terms = [f"({self._value(p)} & {_NS}ones({each})) << {each * i}" for i, p in enumerate(parts)]
            return f"{self._target(to)} = {' | '.join(terms)};"
        return f"{self._target(to)} = {self._value(source, types[-1])};"

    def _cvt_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        to, of = types
        rounding = next((r for r in sorted(said & _ROUNDINGS)), "rn")
        if len(o) == 3:  # two floats to one word, the first in its upper half
            if to not in ("f16x2", "bf16x2") or of != "f32" or said & {"relu", "satfinite"} or rounding != "rn":
                return None
            one = _tag(to[:-2])
            low, high = (f"{_NS}cvt<{one}, {_tag(of)}, 'n'>({self._value(v)})" for v in (o[2], o[1]))
            return f"{self._target(o[0])} = {low} | {high} << 16;"
        if "relu" in said or "satfinite" in said or ("sat" in said and to[0] not in "fus") or rounding == "rna":
            return None
        return self._call(f"cvt<{_tag(to)}, {_tag(of)}, '{rounding[1]}', {str('sat' in said).lower()}>", o, 1)

    def _cvta_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        if "shared" in said:
            return self._call("to_shared" if "to" in said else "of_shared", o, 1)
        return f"{self._target(o[0])} = {self._value(o[1])};"

    def _mul_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        (type_,) = types
        if not said & _ROUNDINGS <= {"rn"} or "sat" in said:
            return None
        return self._call(f"mul_{_part(said)}<{_tag(type_)}>", o, 2, type_)

    def _mad_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        (type_,) = types
        if "sat" in said or "cc" in said:
            return None
        if type_[0] in "fb":
            return self._fma_(opcode, said, types, o)
        return self._call(f"mad_{_part(said)}<{_tag(type_)}>", o, 3)

    def _fma_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        if said & {"rz", "rm", "rp", "sat", "relu", "oob"}:
            return None
        return self._call(f"fma_<{_tag(types[0])}>", o, 3, types[0])

    def _lop3_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        return None if len(said) > 1 else self._call("lop3", o, 4)

    def _prmt_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        return None if len(said) > 1 else self._call("prmt", o, 3)

    def _bfe_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return self._call(f"bfe<{_tag(types[0])}>", o, 3)

    def _bfi_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return self._call(f"bfi<{_tag(types[0])}>", o, 4)

    def _shf_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        way = "left" if "l" in said else "right"
        return self._call(f"funnel_{way}<{str('clamp' in said).lower()}>", o, 3)

    def _dp4a_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        a, b = types
        return self._call(f"dp4a<{_tag(a[0] + '8')}, {_tag(b[0] + '8')}>", o, 3)

    def _dp2a_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        a, b = types
        high = str("hi" in said).lower()
        return self._call(f"dp2a<{_tag(a[0] + '16')}, {_tag(b[0] + '8')}, {high}>", o, 3)

    def _setp_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        found = said & _COMPARISONS
        if len(found) != 1 or "|" in o[0] or said & {"and", "or", "xor"} or len(o) != 3:
            return None
        a, b = (self._value(v, types[0]) for v in o[1:])
        return f'{self._target(o[0])} = {_NS}compare<{_tag(types[0])}>({a}, {b}, "{next(iter(found))}");'

    def _selp_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        to, a, b, p = o
        return f"{self._target(to)} = {self._value(p)} ? {self._value(a, types[0])} : {self._value(b, types[0])};"

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _ld_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        space, targets = _space(said), [self._target(part) for part in self._parts(o[0])]
        load = _strong("load", said, types[0])
        lines = [f"{to} = {_NS}{load}(gguf_verify_a, {i});" for i, to in enumerate(targets)]
        at = self._vector_at(o[1], space, types[0], len(lines))
        if "nc" in said:
            lines.insert(0, f"{_NS}constant<{_tag(types[0])}, {len(targets)}>(gguf_verify_a);")
        return f"{{ const auto gguf_verify_a = {at}; {' '.join(lines)} }}"

    _ldu_ = _ld_

    def _st_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        space, parts = _space(said), self._parts(o[1])
        store = _strong("store", said, types[0])
        lines = [f"{_NS}{store}(gguf_verify_a, {i}, {self._value(v, types[0])});" for i, v in enumerate(parts)]
        at = self._vector_at(o[0], space, types[0], len(lines))
        return f"{{ const auto gguf_verify_a = {at}; {_released(said)}{' '.join(lines)} }}"

    def _vector_at(self, operand: str, space: str, type_: str, count: int) -> str:
        """Return the address of a vector of `count` elements."""
        at = self._address(operand, space)
        return at if count == 1 else f"{_NS}vector<{_tag(type_)}, {count}>({at})"

    def _atom_(self, opcode: str, said: set[str], types: list[str], o: list[str], to: str = "") -> str | None:
        found = said & _ATOMICS
        if len(found) != 1 or not types or said & {"v2", "v4", "v8"}:
            return None
        to = to or self._target(o.pop(0))
        given = ", ".join(self._value(v, types[0]) for v in o[1:])
        return (
            f"{{ {_released(said)}{to} = {_NS}atomic_{next(iter(found))}<{_tag(types[0])}{_scope(said)}>("
            f"{self._address(o[0], _space(said))}, {given}); }}"
        )

    def _red_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        return self._atom_(opcode, said, types, o, self._target("_"))

    def _cp_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        if opcode.startswith("cp.async.bulk") or "mbarrier" in opcode:
            return None
        if "commit_group" in said:
            return "::cuda_on_cpu::commit_copies();"
        if "wait_all" in said:  # commits, too
            return "{ ::cuda_on_cpu::commit_copies(); ::cuda_on_cpu::wait_copies(0); }"
        if "wait_group" in said:
            return f"::cuda_on_cpu::wait_copies((unsigned){self._value(o[0])});"
        if opcode.endswith("cache_hint"):
            o = o[:-1]
        taken = self._value(o[3] if len(o) > 3 else o[2])
        to, of = self._address(o[0], "SHARED", "pointer"), self._address(o[1], "GLOBAL", "pointer")
        return f"{_NS}copy_async({to}, {of}, {self._value(o[2])}, {taken}, {str('cg' in said).lower()});"

    def _ldmatrix_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        targets = [self._target(part) for part in self._parts(o[0])]
        if "m8n8" not in said or types != ["b16"] or len(targets) not in (1, 2, 4):
            return None
        lines = " ".join(f"{to} = gguf_verify_m[{i}];" for i, to in enumerate(targets))
        kind = f"{len(targets)}, {str('trans' in said).lower()}"
        row = self._address(o[1], _space(said), "pointer")  # the other lanes' addresses are ignored
        of = f"{_NS}ldmatrix<{kind}>(gguf_verify_m, {row});"
        return f"{{ uint32_t gguf_verify_m[4]; {of} {lines} }}"

    def _mma_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        shape = re.search(r"\.m(\d+)n(\d+)k(\d+)\.row\.col\.", opcode)
        if shape is None or len(types) != 4 or said & {"satfinite", "sp"} or {"and", "xor"} & said:
            return None
        m, n, k = map(int, shape.groups())
        d_type, a_type, b_type, c_type = types
        known = (
            (d_type in ("f32", "f16") and a_type == b_type == "f16" and c_type == d_type)
            or (d_type == c_type == "f32" and a_type == b_type == "bf16")
            or (d_type == c_type == "s32" and {a_type, b_type} <= {"s8", "u8"})
        )
        if not known or (m, n) not in ((16, 8), (8, 8)) or (m == 8 and d_type != "s32"):
            return None
        targets = [self._target(part) for part in self._parts(o[0])]
        lines = " ".join(f"{to} = gguf_verify_m[{i}];" for i, to in enumerate(targets))
        given = " ".join(
            f"const uint64_t gguf_verify_{x}[] = {self._vector(v)};" for x, v in zip("abc", o[1:4], strict=True)
        )
        call = (
            f"mma<{m}, {k}, {', '.join(map(_tag, types))}>(gguf_verify_m, gguf_verify_a, gguf_verify_b, gguf_verify_c);"
        )
        return f"{{ uint32_t gguf_verify_m[4]; {given} {_NS}{call} {lines} }}"

    # ---- threads -----------------------------------------------------------------------------------------------------

    def _bar_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        if "warp" in said:
            return f"__syncwarp((unsigned){self._value(o[0])});"
        if said & {"red", "cluster"}:
            return None
        threads = f"(int){self._value(o[1])}" if len(o) > 1 else "0"
        return f"{_NS}{'arrive' if 'arrive' in said else 'sync'}((int){self._value(o[0])}, {threads});"

    _barrier_ = _bar_

    def _membar_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return f"::cuda_on_cpu::fence({str('cta' not in said).lower()});"

    def _fence_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        return None if said & {"proxy", "mbarrier_init"} else self._membar_(opcode, said, types, o)

    def _nanosleep_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return "::cuda_on_cpu::clock_now();"

    def _trap_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return "__trap();"

    def _activemask_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return f"{self._target(o[0])} = __activemask();"

    def _shfl_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        way = next(iter(said & {"idx", "up", "down", "bfly"}), "")
        if not way or "|" in o[0] or len(o) not in (4, 5):
            return None
        mask = f"(unsigned){self._value(o[4])}" if len(o) > 4 else "~0u"
        given = ", ".join(f"(uint32_t){self._value(v)}" for v in o[1:4])
        return f"{self._target(o[0])} = {_NS}shuffle('{way[0]}', {given}, {mask});"

    def _vote_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        way = next(iter(said & {"ballot", "any", "all"}), "")
        negated = o[1].strip().startswith("!")
        predicate = f"{self._value(o[1].strip().lstrip('!'))} {'==' if negated else '!='} 0"
        mask = f"(unsigned){self._value(o[2])}" if len(o) > 2 else "~0u"
        return f"{self._target(o[0])} = (uint32_t)__{way}_sync({mask}, {predicate});" if way else None

    def _redux_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str | None:
        way = next(iter(said & {"add", "min", "max", "and", "or", "xor"}), "")
        of = {"s32": "int", "u32": "unsigned", "b32": "unsigned"}.get(types[0])
        if not way or of is None:
            return None
        given = f"(unsigned){self._value(o[2])}, ({of}){self._value(o[1])}"
        return f"{self._target(o[0])} = (uint32_t)__reduce_{way}_sync({given});"

    def _createpolicy_(self, opcode: str, said: set[str], types: list[str], o: list[str]) -> str:
        return f"{self._target(o[0])} = 0;"


def _statements(text: str) -> list[tuple[int, str]]:
    """Return the instructions of a text and where they begin, without braces around them, but with those of vectors."""
    out, begin, depth = list[tuple[int, str]](), 0, 0
    for i, c in enumerate(text):
        if depth == 0 and (c == ";" or (c in "{}" and not text[begin:i].strip())):
            out.append((begin, text[begin:i]))
            begin = i + 1
            continue
        depth += (c in "{[") - (c in "}]")
    out.append((begin, text[begin:]))
    return [(at + len(found) - len(found.lstrip()), found.strip()) for at, found in out if found.strip()]


def _operands(text: str) -> list[str]:
    out, now, depth = list[str](), "", 0
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            out.append(now.strip())
            now = ""
        else:
            now += c
    return [*out, now.strip()] if now.strip() else out


def _tag(type_: str) -> str:
    return f"{_NS}{type_}"


def _part(said: set[str]) -> str:
    return next(iter(said & {"lo", "hi", "wide"}), "")


def _space(said: set[str]) -> str:
    """Return the space that an instruction names.

    Launches have no clusters here, so their space is the thread block's.
    """
    return next((_SPACES[name] for part in said if (name := part.partition("::")[0]) in _SPACES), "GENERIC")


def _released(said: set[str]) -> str:
    """Return the fence before a release. An acquire needs none here: a strong load orders later accesses."""
    return f"::cuda_on_cpu::fence({str('cta' not in said).lower()}); " if said & {"release", "acq_rel"} else ""


def _scope(said: set[str]) -> str:
    return ", ::cuda_on_cpu::OF_ONE_BLOCK" if "cta" in said else ""


def _strong(name: str, said: set[str], type_: str) -> str:
    """Return the function of a load or store: PTX ISA, "Strong Operations"."""
    if not said & {"volatile", "relaxed", "acquire", "release", "mmio"}:
        return f"{name}<{_tag(type_)}>"
    return f"{name}_strong<{_tag(type_)}{_scope(said) or ', 0'}>"
