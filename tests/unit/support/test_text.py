"""Texts for people: what is printed, escaped and parsed, with numbers and durations."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.support.durations import MOST_SECONDS, in_words, is_duration, seconds_of
from gguf_verify.support.inert import Inert
from gguf_verify.support.numbers import CODES, CODES_OF_FILES, NAMES, number_type
from gguf_verify.support.paths import PACKAGE
from gguf_verify.support.text import counted, printable, sentence


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("launches", "1 launch"),
        ("matrices that are not quantized", "1 matrix that are not quantized"),
        ("empty tensors", "1 empty tensor"),
        ("outputs at other shapes", "1 output at other shapes"),
        ("GEMMs grafted", "1 GEMM grafted"),
        ("waived", "1 waived"),
    ],
)
def test_a_noun_agrees_with_its_number(plural: str, one: str) -> None:
    assert counted(1, plural) == one
    assert counted(2000, plural) == f"2,000 {plural}"


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("the file ends", "The file ends"),
        ("", ""),
        ("x", "X"),
        ("all.", "All."),
        ("feed-forward tensors", "Feed-forward tensors"),
        ("llama.cpp reads it", "llama.cpp reads it"),
        ("general.file_type names a type", "general.file_type names a type"),
        ("d_min is not read", "d_min is not read"),
    ],
)
def test_a_sentence_begins_with_a_capital_but_names_keep_their_case(words: str, made: str) -> None:
    assert sentence(words) == made


def test_printable() -> None:
    assert printable("blk.0.attn_q.weight") == "blk.0.attn_q.weight"
    assert printable("\x1b[31m\n\0") == "\\x1b[31m\\x0a\\x00"
    assert printable("\u202eevil\u2028\ufeff\U000e0041") == "\\u202eevil\\u2028\\ufeff\\U000e0041"
    assert printable(b"\xff".decode("utf-8", "surrogateescape")) == "\\xff"
    assert printable("\\xff") == "\\\\xff"
    assert printable("né 模型") == "né 模型"
    assert printable("abc", 3) == "abc"
    assert printable("abcd", 3) == "abc…"
    assert printable("\x1b" * 10**7, 8) == "\\x1b\\x1b…"


# ---- inert -----------------------------------------------------------------------------------------------------------
# Output where there is no terminal: a log whose lines are no commands of GitHub Actions or similar systems.


COMMANDS = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)


def printed(*texts: str) -> str:
    stream = io.StringIO(newline="")
    inert = Inert(stream)
    for text in texts:
        assert inert.write(text) == len(text)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::stop-commands::x", "\\x3a:stop-commands::x"),
        ("a\n  \t\u00a0::notice::VERIFIED\n", "a\n  \t\u00a0\\x3a:notice::VERIFIED\n"),
        ("a\r::error::b", "a\r\\x3a:error::b"),
        ("a ##[group]b ##vso[task.complete]c", "a ##\\x5bgroup]b ##vso\\x5btask.complete]c"),
        ("\n\n ::x\n::y", "\n\n \\x3a:x\n\\x3a:y"),
    ],
)
def test_commands_are_escaped_however_the_text_comes(text: str, shown: str) -> None:
    assert printed(text) == shown
    for at in range(len(text)):
        assert not COMMANDS.search(printed(text[:at], text[at:]).replace("\r", "\n")), at
    assert not COMMANDS.search(printed(*text).replace("\r", "\n"))


@pytest.mark.parametrize("text", ["kernel::gemm(x) :: y\n", "a: b\n", "# ## [a]\n", "x" * 200 + "\n", "a::", " b:c:"])
def test_other_text_stays(text: str) -> None:
    assert printed(text) == text
    assert printed(*text) == text


def test_a_long_line_does_not_begin_anew() -> None:
    assert printed("a" + " " * 500, "::x") == "a" + " " * 500 + "::x"
    assert printed(" " * 500, "::x") == " " * 500 + "\\x3a:x"


def test_a_lot_of_blank_lines_takes_no_time() -> None:
    text = "\n" * 1_000_000 + " " * 1_000_000
    assert printed(text) == text


# ---- durations -------------------------------------------------------------------------------------------------------
# Durations as words.


@pytest.mark.parametrize(
    ("text", "seconds", "words"),
    [
        ("90", 90.0, "90s"), ("90s", 90.0, "90s"), ("2m", 120.0, "2m"), ("120", 120.0, "2m"), ("1h", 3600.0, "1h"),
        ("1.5m", 90.0, "90s"), ("60m", 3600.0, "1h"), ("0.25", 0.25, "0.25s"), (" 3h ", 10800.0, "3h"),
    ],
)  # fmt: skip
def test_a_time_in_words(text: str, seconds: float, words: str) -> None:
    assert seconds_of(text) == seconds
    assert in_words(seconds) == words
    assert seconds_of(words) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-1", "+2m", "m", "2 m", "2M", "2d", "1h30m", "nan", "inf", "1e3", "٣", "9" * 400, "\x1b[2J"],
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration above 0, such as 90, 90s, 2m or 1h") as caught:
        seconds_of(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 100


def test_limits_of_durations() -> None:
    assert is_duration(MOST_SECONDS)
    assert not any(map(is_duration, (0.0, -1.0, float("nan"), float("inf"), 2 * MOST_SECONDS)))


# ---- numbers ---------------------------------------------------------------------------------------------------------
# Types of numbers from foreign texts; and that the project's sources pass NumPy and `re` no others.


#: Where the types are records of the project: the tables themselves, and the catalogue of formats.
OWN_TYPES = ("support/numbers.py", "formats/")
#: Where only the project's own files are read.
OWN_FILES = ("measure/",)
LOADS = ("np.load", "np.fromfile", "np.loadtxt", "np.genfromtxt", "np.lib.format.", "np.lib.npyio.")


@pytest.mark.parametrize(
    "text", ["M8[ns/0]", "O", "f4,f4", "V4", "S", "datetime64", "float128", "f4", "", 7, None, ["f4"]]
)
def test_other_texts_are_no_types(text: object) -> None:
    for known in (NAMES, CODES, CODES_OF_FILES):
        with pytest.raises(ValueError, match=r"is not a number type$"):
            number_type(text, known)


def test_types_of_numbers() -> None:
    assert number_type("float32") == np.float32
    assert number_type("<f4", CODES) == np.float32
    assert number_type(">f4", CODES_OF_FILES) == np.dtype(">f4")
    assert all(dtype.str == code for code, dtype in CODES.items())
    with pytest.raises(ValueError, match="is not a number type"):
        number_type(">f4", CODES)


# ---- the project's sources -------------------------------------------------------------------------------------------


def _constant(node: ast.expr) -> bool:
    """Whether a type is the source's own: a text, a list of fields, an attribute of NumPy, one of two such, or bytes of
    a size."""
    if isinstance(node, ast.List):
        return all(isinstance(part, ast.Constant | ast.Tuple | ast.Load) for part in ast.walk(node) if part is not node)
    if isinstance(node, ast.IfExp):
        return _constant(node.body) and _constant(node.orelse)
    if isinstance(node, ast.Tuple):
        return _dotted(node.elts[0]) == "np.void"
    return isinstance(node, ast.Constant) or _dotted(node).startswith("np.")


def _dotted(node: ast.expr) -> str:
    """The name of a called function, such as "np.lib.format.open_memmap"; for other expressions its last parts."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _parses_a_type(name: str, call: ast.Call, place: str) -> bool:
    """NumPy would parse a text that another process or a file may have given."""
    of_type = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"] or call.args[:1]
    return name == "np.dtype" and not place.startswith(OWN_TYPES) and not all(map(_constant, of_type))


def _loads(name: str, _call: ast.Call, place: str) -> bool:
    """NumPy would parse the header of a file."""
    return name.startswith(LOADS) and not place.startswith(OWN_FILES)


def _prints(name: str, call: ast.Call, _place: str) -> bool:
    """No one would notice that it could not be written: `support.output` writes."""
    return name == "print" and not any(keyword.arg == "file" for keyword in call.keywords)


def _is_a_template(name: str, call: ast.Call, _place: str) -> bool:
    """A text that is made in place would be read as a template of a substitution."""
    if not name.endswith((".sub", ".subn")):
        return False
    replacement = call.args[1:2] if name.startswith("re.") else call.args[:1]
    return any(isinstance(node, ast.JoinedStr | ast.BinOp) for node in replacement)


Rule = Callable[[str, ast.Call, str], bool]
#: Each with a call that breaks it, and one that does not.
RULES: dict[Rule, tuple[str, str]] = {
    _parses_a_type: ("np.dtype(said[0])", "np.dtype(np.uint8 if a else np.uint16)"),
    _loads: ("np.load(path)", "np.frombuffer(raw, np.uint8)"),
    _prints: ("print(report)", "print(line, file=sys.stderr)"),
    _is_a_template: ("re.sub(pattern, f' {value} ', text)", "_WORD.sub(lambda found: value, text)"),
}


def broken(text: str, place: str) -> list[tuple[Rule, str]]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        (rule, f"{place}:{call.lineno}") for call in calls for rule in RULES if rule(_dotted(call.func), call, place)
    ]


def test_no_source_breaks_a_rule() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert len(sources) > 100
    # most files have none of these words, and take no time
    words = ("np.dtype", *LOADS, "print(", ".sub(", ".subn(")
    suspects = {name: text for name, text in sources.items() if any(word in text for word in words)}
    assert {place: rule.__doc__ for name, text in suspects.items() for rule, place in broken(text, name)} == {}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_its_example(rule: Rule) -> None:
    bad, good = RULES[rule]
    assert broken(bad, "x.py") == [(rule, "x.py:1")]
    assert broken(good, "x.py") == []
