"""The parts of a source in CUDA C++ that are not compiled for an architecture.

They are the branches of `#if` whose conditions name the architecture, or a version of CUDA, and are false there. The
author's own files are read as by a preprocessor, without the headers of others: a condition that depends on those is
not reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from .cuda_text import Lines, Token, tokens_of

#: Macros that describe the target, or that differ on the CPU host, which includes the source in its own file.
_OF_TARGET = re.compile(
    r"__CUDA_ARCH\w*__|__CUDACC\w*|__NVCC__|CUDA_VERSION|CUDART_VERSION|GGUF_VERIFY_ON_CPU|CUDA_ON_CPU_\w+|"
    r"TO_RUNNER|__INCLUDE_LEVEL__|__BASE_FILE__"
)
_CONDITION = re.compile(r"#\s*(if|ifdef|ifndef|elif|else|endif|define|undef|include)\b\s*(.*)", re.S)
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.S)
_WORD = re.compile(r"[A-Za-z_]\w*")
_MOST_TEXT, _MOST_FILES, _MOST_DEPTH = 2000, 1000, 60


class _Branch:
    """An #if: whether its branch is compiled (None: not known), whether an earlier one was, and the skipped branch."""

    def __init__(self, live: bool) -> None:
        self.live, self.before = live, False
        self.now: bool | None = live
        self.left: tuple[str, int] | None = None
        self.condition = ""
        #: Whether one of its conditions names the target.
        self.relevant = False


def not_compiled(
    texts: Mapping[str, str],
    main: str,
    defined: Mapping[str, str],
    find: Callable[[str, str], str | None],
    shown: Callable[[str], str],
) -> list[str]:
    """Return branches with code that are skipped, each as `#if CONDITION at FILE:LINE`.

    Args:
        texts: the author's files, by name; `main` is the one that is compiled.
        defined: macros → values.
        find: returns the file that a file includes by a name, or None.
        shown: returns the name of a file for the author.
    """
    reader = _Reader(texts, dict(defined), find, shown)
    reader.read(main)
    return list(dict.fromkeys(reader.found))


class _Reader:
    def __init__(
        self,
        texts: Mapping[str, str],
        macros: dict[str, str | None],
        find: Callable[[str, str], str | None],
        shown: Callable[[str], str],
    ) -> None:
        self._texts, self._macros, self._find, self._shown = texts, macros, find, shown
        self.found: list[str] = []
        self._once: set[str] = set()
        self._read = 0

    def read(self, name: str, depth: int = 0) -> None:
        self._read += 1
        if name in self._once or name not in self._texts or depth > _MOST_DEPTH or self._read > _MOST_FILES:
            return
        text = self._texts[name]
        if re.search(r"^\s*#\s*pragma\s+once", text, re.M):
            self._once.add(name)
        lines, branches = Lines(text), list[_Branch]()
        for token in tokens_of(text):
            live = all(branch.now is not False for branch in branches)
            if token.kind != "directive":
                if not live:
                    self._leave_out(branches, name)
                continue
            said = _CONDITION.match(token.text)
            if said is None:
                continue
            kind, rest = said[1], _COMMENT.sub(lambda c: c[1] or " ", said[2]).replace("\\\n", " ").strip()
            if kind in ("define", "undef", "include"):
                if live:
                    self._define(kind, rest, name, depth)
                elif kind == "define":
                    self._leave_out(branches, name)
            else:
                self._condition(kind, rest, token, lines, branches, live)

    def _leave_out(self, branches: list[_Branch], name: str) -> None:
        """Record that the outermost skipped branch has code."""
        branch = next(b for b in branches if b.now is False)
        if branch.left is not None and branch.relevant:
            words, line = branch.left
            self.found.append(f"{' '.join(words.split())[:80]} at {self._shown(name)}:{line}")
        branch.left = None

    def _define(self, kind: str, rest: str, name: str, depth: int) -> None:
        if kind == "include":
            wanted = re.match(r'["<]([^">]+)[">]', rest)
            other = self._find(name, wanted[1]) if wanted else None
            if other is not None:
                self.read(other, depth + 1)
            return
        word = _WORD.match(rest)
        if word is None:
            return
        if kind == "undef":
            self._macros.pop(word[0], None)
        else:
            value = rest[word.end() :]
            self._macros[word[0]] = None if value.startswith("(") else value.strip()

    def _condition(self, kind: str, rest: str, token: Token, lines: Lines, branches: list[_Branch], live: bool) -> None:
        line = lines.at(token.start)
        if kind in ("if", "ifdef", "ifndef"):
            branch = _Branch(live)
            branches.append(branch)
            if not live:
                return
            text = rest if kind == "if" else f"{'!' * (kind == 'ifndef')}defined({rest})"
            branch.condition = f"#{kind} {rest}"
            self._decide(branch, text, branch.condition, line)
        elif branches and kind == "endif":
            branches.pop()
        elif branches and branches[-1].live:
            branch = branches[-1]
            if branch.now is not False and branch.before is False:
                branch.before = branch.now is True
                if branch.now is None:
                    branch.live, branch.now = False, None  # the following branches are not known either
                    return
            if branch.before:
                branch.now, branch.left = False, (f"#{kind} {rest}".strip() + f" of {branch.condition}", line)
                branch.relevant = branch.relevant or bool(_OF_TARGET.search(self._expanded(rest)))
            elif kind == "else":
                branch.now = True
            else:
                self._decide(branch, rest, f"#elif {rest}", line)

    def _decide(self, branch: _Branch, text: str, words: str, line: int) -> None:
        branch.relevant = branch.relevant or bool(_OF_TARGET.search(self._expanded(text)))
        value = self._value(text)
        branch.now = None if value is None else value != 0
        branch.left = (words, line) if value == 0 else None

    def _expanded(self, text: str) -> str:
        """Return the text with each macro followed by its value."""
        text = text[:_MOST_TEXT]
        for _ in range(3):
            text = _WORD.sub(lambda w: f"{w[0]} {(self._macros.get(w[0]) or '')[:_MOST_TEXT]}", text)[:_MOST_TEXT]
        return text

    def _value(self, text: str) -> int | None:
        """Evaluate a condition; None if it is not known."""

        def is_defined(found: re.Match[str]) -> str:
            return " 1 " if (found[1] or found[2]) in self._macros else " 0 "

        text = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", is_defined, text)
        for _ in range(20):
            if len(text) > _MOST_TEXT or set("'\"\\") & set(text):  # Python reads character literals differently
                return None
            before, unknown = text, False
            for word in set(_WORD.findall(re.sub(r"\b\d\w*", "", text))):
                value = self._macros.get(word, "0")
                if value is None or len(value) > _MOST_TEXT or len(text) > _MOST_TEXT or re.match(r"__has_\w+", word):
                    unknown = True
                else:  # a function, since a replacement text would be a template with escapes such as "\\1"
                    text = re.sub(rf"(?<![\w]){word}\b", lambda _, to=f" ({value or '0'}) ": to, text)  # type: ignore[misc]
            if unknown:
                return None
            if text == before:
                break
        text = re.sub(
            r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b",
            lambda n: str(int(n[1], 0) if n[1][:2] in ("0x", "0X") else int(n[1])),
            text,
        )
        text = text.replace("&&", " and ").replace("||", " or ")
        text = re.sub(r"!(?!=)", " not ", text)
        try:
            return _evaluated(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError, OverflowError):
            return None


def _evaluated(node: ast.expr) -> int:
    """Evaluate a syntax tree. Raises ValueError for syntax that is no condition of C's preprocessor."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.BoolOp):
        values = [_evaluated(value) != 0 for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.UnaryOp):
        value = _evaluated(node.operand)
        return int(not value) if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        a, b = _evaluated(node.left), _evaluated(node.comparators[0])
        known: dict[type[ast.cmpop], bool] = {
            ast.Eq: a == b, ast.NotEq: a != b, ast.Lt: a < b, ast.LtE: a <= b, ast.Gt: a > b, ast.GtE: a >= b,
        }  # fmt: skip
        if type(node.ops[0]) in known:
            return int(known[type(node.ops[0])])
    if isinstance(node, ast.BinOp):
        a, b = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult) and abs(a) < 1 << 64 and abs(b) < 1 << 64:
            return a * b
        if isinstance(node.op, ast.Div):
            return a // b
        if isinstance(node.op, ast.Mod):
            return a % b
    raise ValueError("no condition")
