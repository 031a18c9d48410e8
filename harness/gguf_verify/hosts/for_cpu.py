"""Translation of CUDA C++ for a C++ compiler: constructs that no macro can replace are rewritten, preserving lines.

Launches, and bodies of host functions that make them or call the runtime, are removed; arrays in dynamic shared memory
become pointers; inline PTX becomes calls of the functions of `kernels/emulator/ptx.hpp`. Conditions of `?` get a macro.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from . import ptx
from .cuda_text import Edit, Lines, Token, brackets, edited, split, tokens_of

#: Names that only host code uses: CUDA's runtime and driver, and PyTorch's.
_HOST_NAMES = re.compile(
    r"cuda[A-Z]\w*|cu[A-Z][a-z]+[A-Z]\w*|cublas\w*|(?:TORCH|AT|C10)_\w+|torch|at|c10|CUDA_?CHECK\w*"
)
#: Exceptions: types, and functions that a kernel calls.
_NOT_ONLY = re.compile(r"cuda\w*_t|cudaGridDependencySynchronize|cudaTriggerProgrammaticLaunchCompletion")
_OF_DEVICE = {"__device__", "__global__"}
_SCOPES = {"namespace", "class", "struct", "union", "extern"}
_AFTER_PARAMETERS = {")", "const", "noexcept", "override", "final"}
#: Limit for a declaration, and for a launch configuration.
_MOST_TOKENS = 500
_DYNAMIC = "::cuda_on_cpu::dynamic_shared()"
#: Follows the condition of `condition ? a : b` (`kernels/emulator/foreign.hpp`).
_CHOOSES = "GGUF_VERIFY_CHOOSES"


@dataclass
class ForCpu:
    """The rewriting of a kernel's files."""

    #: Inline PTX that the CPU lacks: its instruction, file and line. The index is that of its symbol, `ptx.SYMBOL`.
    missing: list[tuple[str, str, int]] = field(default_factory=list)

    def rewritten(self, text: str, file: str) -> str:
        """Return the text of a file for the C++ compiler. `file` is its name in `missing`."""
        return _Text(text, file, self).rewritten()

    def symbol(self, instruction: str, file: str, line: int) -> str:
        """Return the name of an undefined function for such an instruction."""
        self.missing.append((instruction, file, line))
        return f"{ptx.SYMBOL}{len(self.missing) - 1}"


def for_nvrtc(text: str) -> str:
    """Return the text of a file for NVRTC, which compiles no host code."""
    found = _Text(text, "", ForCpu(), emptied="{}")
    found.host_code()
    return edited(text, found.edits)


def without_host_code(text: str, functions: Collection[int], variables: Collection[int]) -> str:
    """Return the text without the functions, and the variables outside functions, that are declared on these lines."""
    found = _Text(text, "", ForCpu(), emptied="")
    found.declared_on(functions, variables)
    return edited(text, found.edits)


class _Text:
    def __init__(
        self,
        text: str,
        file: str,
        into: ForCpu,
        first_line: int = 1,
        macro: bool = False,
        emptied: str = "{ __builtin_trap(); }",
    ) -> None:
        self._emptied = emptied
        self.text, self.file, self.into, self.first_line = text, file, into, first_line
        self.tokens = tokens_of(text, not macro)
        self.lines, self.edits = Lines(text), list[Edit]()
        self._closing = brackets(self.tokens)
        self._newline = " \\\n" if macro else "\n"
        self._in_macro = macro
        #: Arrays in dynamic shared memory that are declared outside functions → their replacement.
        self._globals: dict[str, str] = {}
        #: Words of conditions of the preprocessor: it takes no `_CHOOSES` in a macro of such a name.
        self._in_conditions = {
            word
            for token in self.tokens
            if token.kind == "directive" and re.match(r"#\s*(el)?if\b", token.text)
            for word in re.findall(r"\w+", token.text)
        }
        self._chooses = True

    def rewritten(self) -> str:
        taken = self.host_code()
        i = 0
        while i < len(self.tokens):
            i = taken[i] if i in taken else self._token(i)
        return edited(self.text, self.edits, self._newline)

    # ---- code of the host ----------------------------------------------------------------------------------------

    def host_code(self) -> dict[int, int]:
        """Remove launches and bodies of host functions; return first → one past the last token of each removed part."""
        taken = self._host_bodies()
        i = 0
        while i < len(self.tokens):
            if i in taken:
                i = taken[i]
                continue
            token = self.tokens[i]
            if token.kind == "directive" and "<<<" in token.text and not self._in_macro:
                inner = _Text(token.text, self.file, self.into, self._line(token), True)
                inner.host_code()
                self.edits.append(Edit(token.start, token.end, edited(token.text, inner.edits, " \\\n")))
                taken[i] = i + 1
            elif token.text == "<<<" and (end := self._launch(i)) is not None:
                self.edits.append(Edit(token.start, self.tokens[end].end, ""))
                taken[i] = end + 1
            i = taken.get(i, i + 1)
        return taken

    def declared_on(self, functions: Collection[int], variables: Collection[int]) -> None:
        """Remove functions and variables that are declared on these lines."""
        i = begins = 0
        while i < len(self.tokens):
            token, ends = self.tokens[i], False
            if token.kind == "directive" or token.text == "}":
                begins = i + 1
            elif token.text == "(":
                i = self._closing.get(i, i)
            elif token.text == ";":
                ends = True
            elif token.text == "{":
                head = self.tokens[begins:i]
                if {t.text for t in head} & _SCOPES and not _is_function(head):
                    begins = i + 1
                else:
                    i, ends = self._closing.get(i, i), _is_function(head)
            if ends:
                declared = self.tokens[begins : i + 1]
                brace = next((k for k, t in enumerate(declared) if t.text == "{"), len(declared))
                lines = functions if any(t.text == "(" for t in declared[:brace]) else variables
                constant = next((t for t in declared[:brace] if t.text in ("constexpr", "consteval")), None)
                if not any(self._line(t) in lines for t in declared[: brace + 1]):
                    pass
                elif constant is not None:  # constants may be used in device code
                    self.edits.append(Edit(constant.start, constant.start, "__device__ "))
                else:
                    self.edits.append(Edit(self.tokens[begins].start, self.tokens[i].end, ""))
                begins = i + 1
            i += 1

    def _launch(self, at: int) -> int | None:
        """Return the place of the >>> that ends a launch configuration."""
        depth = 0
        for i in range(at + 1, min(at + _MOST_TOKENS, len(self.tokens))):
            text = self.tokens[i].text if self.tokens[i].kind == "sign" else ""
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            if text == ">>>" and depth == 0:
                return i
            if depth < 0 or text == ";":
                return None
        return None

    def _host_bodies(self) -> dict[int, int]:
        """Remove top-level functions of the host that launch kernels or use names of the host; return these parts."""
        taken: dict[int, int] = {}
        self._functions: list[tuple[int, int]] = []
        if self._in_macro:
            return taken
        i = begins = 0
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.kind == "directive" or token.text in (";", "}"):
                begins = i + 1
            elif token.text == "(":
                i = self._closing.get(i, i)
            elif token.text == "{":
                head = self.tokens[begins:i]
                words = {t.text for t in head}
                if words & _SCOPES and not _is_function(head):
                    begins = i + 1
                elif (end := self._closing.get(i)) is None:
                    return taken
                else:
                    if _is_function(head):
                        self._functions.append((i, end))
                        if not words & _OF_DEVICE and self._is_of_host(i, end):
                            self.edits.append(Edit(token.start, self.tokens[end].end, self._emptied))
                            taken[i] = end + 1
                        begins = end + 1
                    i = end
            i += 1
        return taken

    def _is_of_host(self, begin: int, end: int) -> bool:
        for token in self.tokens[begin:end]:
            if token.text == "<<<" or (token.kind == "directive" and "<<<" in token.text):
                return True
            if token.kind == "word" and _HOST_NAMES.fullmatch(token.text) and not _NOT_ONLY.fullmatch(token.text):
                return True
        return False

    # ---- what a C++ compiler does not take --------------------------------------------------------------------------

    def _token(self, i: int) -> int:
        """Rewrite the construct at a token; return the place of the next one."""
        token = self.tokens[i]
        before = self.tokens[i - 1].text if i else ""
        if token.kind == "directive":
            self._directive(token)
        elif token.text == "?" and self._chooses and self.tokens[i + 1 : i + 2] and self.tokens[i + 1].text != ":":
            self.edits.append(Edit(token.start, token.start, f"{_CHOOSES} "))
        elif token.kind != "word":
            pass
        elif (end := self._statement(i)) is not None:
            return end
        elif token.text == "__noinline__" and before != "(":
            self.edits.append(Edit(token.start, token.end, "__attribute__((noinline))"))
        elif (token.text == "static" and self._run_has(i, "__shared__")) or (
            token.text == "inline" and self._run_has(i, "__forceinline__")
        ):
            self.edits.append(Edit(token.start, token.end, ""))
        elif token.text in self._globals and before not in (".", "->", "::"):
            self.edits.append(Edit(token.start, token.end, self._globals[token.text]))
        return i + 1

    def _statement(self, i: int) -> int | None:
        """Rewrite an asm statement, or a declaration of dynamic shared memory; return the place of the next token, or
        None.
        """
        if self.tokens[i].text in ("asm", "__asm__", "__asm"):
            return self._asm(i)
        return self._extern_shared(i) if self.tokens[i].text == "extern" else None

    def _run_has(self, at: int, word: str) -> bool:
        """Return whether a word is among the specifiers around a token."""
        for step in (-1, 1):
            i = at + step
            while (
                abs(i - at) < 8
                and 0 <= i < len(self.tokens)
                and re.fullmatch(r"__\w+__|static|inline|const|volatile", self.tokens[i].text)
            ):
                if self.tokens[i].text == word:
                    return True
                i += step
        return False

    def _directive(self, token: Token) -> None:
        if re.match(r"#\s*(line\b|\d)", token.text):  # reports name the lines of the file itself
            self.edits.append(Edit(token.start, token.end, ""))
        if not re.match(r"#\s*define\b", token.text) or self._in_macro:
            return
        inner = _Text(token.text, self.file, self.into, self._line(token), True)
        inner._globals = self._globals
        name = re.match(r"#\s*define\s+(\w+)", token.text)
        inner._chooses = name is None or name[1] not in self._in_conditions
        new = inner.rewritten()
        if new != token.text:
            self.edits.append(Edit(token.start, token.end, new))

    def _asm(self, at: int) -> int | None:
        i = at + 1
        while i < len(self.tokens) and self.tokens[i].text in ("volatile", "__volatile__", "goto", "inline"):
            i += 1
        if i >= len(self.tokens) or self.tokens[i].text != "(" or (end := self._closing.get(i)) is None:
            return None
        line = self._line(self.tokens[at])
        parts = split(self.tokens[i + 1 : end], ":")
        code = ptx.translated(
            parts[0],
            [[self._operand(o) for o in split(part, ",") if o] for part in parts[1:3]],
            lambda instruction: self.into.symbol(instruction, self.file, line),
            lambda token: 0 if self._in_macro else self._line(token) - line,
        )
        self.edits.append(Edit(self.tokens[at].start, self.tokens[end].end, code))
        return end + 1

    def _operand(self, tokens: Sequence[Token]) -> ptx.Operand:
        name = ""
        if tokens[0].text == "[":
            name, tokens = tokens[1].text, tokens[3:]
        constraint = "".join(
            ptx.content_of(t.text) for t in tokens if t.kind == "string" and t.start < tokens[-1].start
        )
        begin = next((i for i, t in enumerate(tokens) if t.text == "("), 0)
        expression = self._plain(tokens[begin + 1 : -1])
        return ptx.Operand(name, constraint, expression)

    def _plain(self, tokens: Sequence[Token]) -> str:
        """Return the text of tokens in one line."""
        parts = [self._globals.get(t.text, t.text) if t.kind == "word" else t.text for t in tokens]
        return " ".join(parts)

    def _extern_shared(self, at: int) -> int | None:
        """Rewrite `extern __shared__ T name[]…;` as a pointer, or record its replacement for the following text."""
        within = range(at, min(at + _MOST_TOKENS, len(self.tokens)))
        # A function that is `extern "C"` has a body, which may begin with such a declaration.
        end = next((i for i in within if self.tokens[i].text in (";", "{") or self.tokens[i].kind == "string"), None)
        if end is None or self.tokens[end].text != ";":
            return None
        if not any(t.text == "__shared__" for t in self.tokens[at:end]):
            return None
        left, i = list[Token](), at
        while i < end:
            text = self.tokens[i].text
            if (
                text in ("__align__", "alignas", "__attribute__", "__builtin_align__")
                and self.tokens[i + 1].text == "("
            ):
                i = self._closing.get(i + 1, end)
            elif text not in ("extern", "__shared__", "static"):
                left.append(self.tokens[i])
            i += 1
        bracket = next((k for k, t in enumerate(left) if t.text == "["), None)
        if bracket is None or bracket < 2 or left[bracket - 1].kind != "word" or left[bracket + 1].text != "]":
            return None
        of, name = self._plain(left[: bracket - 1]), left[bracket - 1].text
        further = self._plain(left[bracket + 2 :])
        if self._in_macro or any(begin < at < end for begin, end in self._functions):
            new = f"{of} (* const {name}){further} = ({of} (*){further}){_DYNAMIC};"
        else:
            self._globals[name] = f"(({of} (*){further}){_DYNAMIC})"
            new = ""
        self.edits.append(Edit(self.tokens[at].start, self.tokens[end].end, new))
        return end + 1

    def _line(self, token: Token) -> int:
        return self.first_line + self.lines.at(token.start) - 1


def _is_function(head: Sequence[Token]) -> bool:
    """Return whether the tokens before a brace are a function's head, and not a scope's or a value's."""
    if not head or head[-1].text == "=":
        return False
    closing = next((i for i, t in enumerate(head) if t.text == ")"), len(head))
    if closing == len(head):
        return False
    # It may end with a constructor's list of members.
    initialises = any(t.text == ":" for t in head[closing:])
    return head[-1].text in _AFTER_PARAMETERS or initialises or any(t.text == "->" for t in head)
