"""Types of numbers from foreign texts; and that the project's sources pass NumPy and `re` no others."""

from __future__ import annotations

import ast
from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.support.numbers import CODES, CODES_OF_FILES, NAMES, number_type
from gguf_verify.support.paths import PACKAGE

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
