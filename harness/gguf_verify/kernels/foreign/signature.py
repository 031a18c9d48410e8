"""Parameters of a kernel in CUDA C++ as its source writes them: a declaration to propose, and misfits of a given one.

The text is not compiled: a parameter list made by a macro is not found, and an unknown type yields nothing. This only
helps to write a declaration; no verdict depends on it.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...formats.block import BlockFormat
from ...formats.tensor_types import FORMATS
from ...hosts.cuda_text import Token, tokens_of

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_CONDITION = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
_KERNEL = re.compile(
    r"[^;{}()]{0,200}?(?:__launch_bounds__\s{0,9}\([^)]{0,200}\)[^;{}()]{0,200}?)?(?<![\w#])(\w{1,300})\s{0,9}"
    r"\(([^;{}]{0,4000}?)\)\s{0,99}\{",
    re.S,
)
_WORDS = re.compile(r"\b(?:const|volatile|struct|restrict|__restrict__|__restrict|__grid_constant__)\b")
#: Integer types of C → those of a declaration.
INTEGERS = {
    "int": "int32", "int32_t": "int32", "signed": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "uint32_t": "uint32", "uint": "uint32", "long long": "int64", "int64_t": "int64", "long": "int64",
    "long long int": "int64", "ptrdiff_t": "int64", "size_t": "uint64", "uint64_t": "uint64",
    "unsigned long long": "uint64", "unsigned long": "uint64",
}  # fmt: skip
#: Types that a pointer of values points to → dtype.
VALUES = {
    "float": "float32", "half": "float16", "__half": "float16", "half2": "float16", "__half2": "float16",
    "nv_bfloat16": "bfloat16", "__nv_bfloat16": "bfloat16", "__nv_bfloat162": "bfloat16",
}  # fmt: skip
_INPUTS = ("weights", "activations")
#: Most functions of a text that are read, and most that a message lists.
_MOST_KERNELS, _MOST_NAMED = 1000, 5
#: Usual types of blocks of activations, in lower case.
_BLOCKS = {"q8_1", "block_q8_1", "block_q8_1_mmq"}
#: Usual names of sizes, in lower case.
_NAMES = {
    "M": {"m", "tokens", "n_tokens", "num_tokens", "batch", "batch_size", "b_size", "ntok", "n_tok", "ntokens",
          "ncols_y", "cols_y", "ne11"},
    "N": {"n", "rows", "nrows", "n_rows", "nrows_x", "rows_x", "nrows_dst", "out_features", "ne01"},
    "E": {"e", "n_experts", "num_experts", "n_expert", "nexperts", "experts"},
    "TOP_K": {"top_k", "topk", "n_used", "n_expert_used", "num_experts_per_tok", "experts_per_token"},
    "K": {"k", "cols", "ncols", "n_cols", "ncols_x", "cols_x", "in_features", "hidden", "ne00"},
}  # fmt: skip


#: Names, in lower case, of operands of fused operations → the operation in `epilogue`.
_FUSED = {"bias": "bias", "b": "bias", "residual": "residual"}
#: Names, in lower case, of lists of experts → the operand.
_LISTS = {
    "ids": "ids", "topk_ids": "ids", "expert_indices": "ids", "selected_experts": "ids",
    "sorted_token_ids": "sorted_token_ids", "expert_ids": "expert_ids", "expert_offsets": "expert_offsets",
    "num_tokens_post_padded": "num_tokens_post_padded",
}  # fmt: skip
_STRUCT = re.compile(r"\bstruct\s+(?:(?:alignas|__align__)\([^()]{0,40}\)\s*)?(\w{1,100})\s*\{([^{}]{0,2000})\}")
_MEMBER = re.compile(r"([A-Za-z_][\w ]{0,60}?)\s*(\*?)\s*(\w+)\s*((?:\[\s*\w+\s*\])*)")
#: Bytes of the types of members, apart from those of `INTEGERS` and `VALUES`.
_BYTES = {"char": 1, "int8_t": 1, "uint8_t": 1, "unsigned char": 1, "signed char": 1, "bool": 1, "short": 2,
          "int16_t": 2, "uint16_t": 2, "unsigned short": 2, "half2": 4, "__half2": 4, "ggml_half": 2, "ggml_half2": 4,
          "__nv_bfloat162": 4, "double": 8}  # fmt: skip
#: Most tokens that are read behind `__global__`, `template` and `namespace`.
_MOST_TOKENS = 200
#: Most characters of a function's body that are read.
_MOST_BODY = 20_000


class Parameter(NamedTuple):
    """A parameter: its type without qualifiers, whether it is a pointer, to what is constant, and its name."""

    type: str
    pointer: bool
    constant: bool
    name: str


def kernels_in(text: str) -> dict[str, tuple[Parameter, ...]]:
    """Return name → parameters of the `__global__` functions in a text, but not of those under `#if 0`."""
    found, text = {}, _compiled(_COMMENT.sub(" ", text))
    for at in itertools.islice(re.finditer(r"\b__global__\b", text), _MOST_KERNELS):
        written = _KERNEL.match(text, at.end())
        if written is None:
            continue
        name, parameters = written.groups()
        parts = [part.strip() for part in parameters.split(",")] if parameters.strip() else []
        found[name] = tuple(_parameter(part) for part in parts)
    return found


def full_names(text: str) -> dict[str, str]:
    """Return name → full name of the `__global__` functions in a text: with its namespaces, and with the parameters of
    its template. One that is defined twice has the first one's."""
    found: dict[str, str] = {}
    tokens = [token for token in tokens_of(_compiled(text)) if token.kind != "directive"]
    scopes: list[str] = []  # of each open brace: a namespace with its ::, or ""
    begun = ""  # the namespace whose brace comes next
    template = ""
    for i, token in enumerate(tokens):
        after = tokens[i + 1 : i + 1 + _MOST_TOKENS]
        match token.text:
            case "namespace":
                named = itertools.takewhile(lambda of: of.kind == "word" or of.text == "::", after)
                begun = "".join(of.text for of in named)
            case "{":
                scopes.append(f"{begun}::" if begun else "")
                begun = template = ""
            case "}":
                del scopes[-1:]
                template = ""
            case ";":
                begun = template = ""
            case "template":
                template = _in_angles(after)
            case "__global__":
                name = _called(after)
                found.setdefault(name, f"{''.join(scopes)}{name}{template}")
    return found


def _in_angles(tokens: Sequence[Token]) -> str:
    """Return the text from "<" to its ">"; "" if there is none soon."""
    depth, words = 0, list[str]()
    for token in tokens:
        depth += token.text.count("<") - token.text.count(">")
        words.append(token.text)
        if depth <= 0:
            return re.sub(r" ?(::|[<>,]) ?", lambda of: ", " if of[1] == "," else of[1], " ".join(words))
    return ""


def _called(tokens: Sequence[Token]) -> str:
    """Return the function's name: the last word before its parameters, which follow attributes."""
    for word, after in itertools.pairwise(tokens):
        if after.text == "(" and word.kind == "word" and not word.text.startswith("__"):
            return word.text
    return ""


def _compiled(text: str) -> str:
    """The lines of a text without comments that no `#if 0` excludes. Other conditions are not evaluated."""
    kept: list[str] = []
    conditions: list[bool] = []  # of each that is open: whether `#if 0` excludes its current part
    for line in text.splitlines(keepends=True):
        if True not in conditions:
            kept.append(line)
        found = _CONDITION.match(line)
        if found is None:
            continue
        word, condition = found.groups()
        if not word.startswith("if") and conditions:
            conditions.pop()
        if word != "endif":
            conditions.append(word in ("if", "elif") and condition.strip() == "0")
    return "".join(kept)


def _parameter(text: str) -> Parameter:
    words = " ".join(_WORDS.sub(" ", text).split())
    found = re.fullmatch(r"(.*?)\s*(\*?)\s*(\w+)\s*(?:\[\s*\])?", words)
    if found is None:
        return Parameter(words, "*" in words, "const" in text, "")
    return Parameter(found[1].strip(), bool(found[2]), "const" in text.partition("*")[0], found[3])


def proposed(symbol: str, parameters: Sequence[Parameter] | None, text: str = "") -> tuple[str, ...]:
    """Return the lines of a declaration to paste and correct, for a function with these parameters; None: not known.

    The types of weights are taken from the function's name, from its parameter types, or from the sizes of the structs
    in `text`, its source. The thread blocks follow the indices that its body computes.
    """
    structs = {name: _size_of(members) for name, members in _STRUCT.findall(_COMMENT.sub(" ", text))}
    listed, unsure = _declared(parameters or (), structs)
    types = [p.type for p, role in zip(parameters or (), listed, strict=False) if role == "weights"]
    named = _formats_in(symbol) or [name for type_ in types for name in _formats_in(type_)]
    sized = [name for type_ in types for name in _formats_of(structs.get(type_))]
    formats = ", ".join(f'"{name}"' for name in named or sized[:1] or ["Q4_0"])
    others = f"; {types[0]} has as many bytes as {', '.join(sized)}" if sized and not named else ""
    if parameters is None:
        listed = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
    shown = ", ".join(f'"{parameter}"' for parameter in listed)
    # A kernel for single vectors of activations has no parameter M.
    said = {role: VALUES.get(p.type, "") for p, role in zip(parameters or (), listed, strict=False)}
    takes, output = said.get("activations", ""), said.get("output", "")
    fused = [role for role in listed if role in _FUSED.values()]
    experts = any(role in _LISTS.values() for role in listed)
    no_m = parameters is not None and not any(p.endswith(" M") for p in listed)
    return (
        "// [gguf-verify]",
        f"// formats = [{formats}]  # the weight types that it supports{others}",
        '// semantics = "f32"  # it multiplies plain activations' if takes else
        '// semantics = "q8_1"  # it takes blocks of Q8_1; "f32": plain activations',
        *(['// computes = "experts"  # each token is multiplied by the experts in its ids'] if experts else []),
        *([f'// takes = "{takes}"'] if takes not in ("", "float32") else []),
        *([f'// output = "{output}"'] if output not in ("", "float32") else []),
        *([f"// epilogue = {json.dumps(fused)}  # fused behind the product"] if fused else []),
        f"// parameters = [{shown}]",
        *(f"//   # {line}" for line in unsure),
        *_launch(symbol, parameters, listed, text, "M * TOP_K" if experts else "1" if no_m else "M"),
        *(["// domain = { M = 1 }  # it multiplies one token"] if no_m else []),
        "// [/gguf-verify]",
    )  # fmt: skip


def _launch(
    symbol: str, parameters: Sequence[Parameter] | None, listed: Sequence[str], text: str, tokens: str
) -> tuple[str, str]:
    """Return the lines of block and grid.

    Args:
        tokens: the rows of the output, as an expression.
    """
    body = _body(symbol, text)
    two = {word for word in ("blockIdx", "threadIdx") if re.search(rf"\b{word}\s?\.\s?y\b", body)}
    if not two:
        most = "N" if tokens == "1" else f"{tokens} * N"
        return (
            "// block = 128  # threads of your launch: a number, an expression, or a list of up to three",
            f'// grid = "ceil({most}, 128)"  # thread blocks, likewise',
        )
    roles = {p.name: role.rpartition(" ")[2] for p, role in zip(parameters or (), listed, strict=False)}
    sizes = {axis: _size_along(axis, body, roles) or usual for axis, usual in (("x", "N"), ("y", "M"))}
    block = {"x": 16, "y": 16} if "threadIdx" in two else {"x": 128, "y": 1}
    counts = [
        f'"ceil({size}, {block[axis]})"' if block[axis] > 1 else f'"{size}"'
        for axis, at in sizes.items()
        for size in [tokens if at == "M" else at]
    ]
    threads = "[16, 16]" if "threadIdx" in two else "128"
    return (
        f"// block = {threads}  # threads of your launch: a number, an expression, or a list of up to three",
        f"// grid = [{', '.join(counts)}]  # thread blocks, likewise",
    )


def _body(symbol: str, text: str) -> str:
    """Return the body of a function, or its first characters."""
    text = _COMMENT.sub(" ", text)
    at = re.search(rf"\b{re.escape(symbol)}\s*\([^;{{}}]{{0,4000}}?\)\s*\{{", text) if symbol else None
    if at is None:
        return ""
    body, depth = text[at.end() : at.end() + _MOST_BODY], 1
    for i, c in enumerate(body):
        depth += (c == "{") - (c == "}")
        if not depth:
            return body[:i]
    return body


def _size_along(axis: str, body: str, roles: Mapping[str, str]) -> str:
    """Return the size that the index along an axis is compared with: "M" or "N"; "" if that is not known."""
    for index in re.findall(rf"\b(\w+)\s*=[^=;,][^;,]*\bblockIdx\s?\.\s?{axis}\b", body):
        for bound in re.findall(rf"\b{index}\s*(?:>=|<|>)\s*(\w+)", body):
            if roles.get(bound) in ("M", "N"):
                return roles[bound]
    return ""


def _size_of(members: str) -> int:
    """Return the bytes of a struct's members, without padding; 0 if they are not known."""
    total = 0
    for member in filter(None, (part.strip() for part in members.split(";"))):
        found = _MEMBER.fullmatch(" ".join(_WORDS.sub(" ", member).split()))
        if found is None:
            return 0
        kind, pointer, _, dimensions = found.groups()
        kind = kind.strip()
        number = INTEGERS.get(kind, VALUES.get(kind, ""))
        each = 8 if pointer else _BYTES.get(kind) or (int(re.sub(r"\D", "", number)) // 8 if number else 0)
        for count in re.findall(r"\w+", dimensions):
            each *= int(count) if count.isdigit() else 0
        if not each:
            return 0
        total += each
    return total


def _formats_of(size: int | None) -> list[str]:
    """Return the types of weights whose blocks have this many bytes."""
    return [name for name, fmt in FORMATS.items() if size and isinstance(fmt, BlockFormat) and fmt.block_bytes == size]


def _formats_in(name: str) -> list[str]:
    """Return the types of weights in a name such as block_q8_0."""
    return [of for of in FORMATS if re.search(rf"(?<![a-z0-9]){of.lower()}(?![0-9])", name.lower())]


def _declared(parameters: Sequence[Parameter], structs: Mapping[str, int] | None = None) -> tuple[list[str], list[str]]:
    """Return the parameters as they may be declared, and a hint for each that is unclear."""
    inputs = iter(("weights", "activations"))
    listed, unsure = list[str](), list[str]()
    for p in parameters:
        name = p.name.lower()
        if p.pointer:
            further = _LISTS.get(name) or _FUSED.get(name) if len([r for r in listed if r in _INPUTS]) == 2 else None
            listed.append(further or (next(inputs, "") if p.constant else "output") or p.name)
            if listed[-1] == p.name and not further:
                unsure.append(f"{p.name} is not weights, activations or output{_fused(p.name)}")
            continue
        if p.type in ("float", "double"):
            listed.append("float32 ?" if p.type == "float" else "double ?")
            what = "its value in place of ?" if p.type == "float" else "it as a float: a double cannot be passed"
            unsure.append(f"for {p.type} {p.name} write {what}")
            continue
        if p.type == "bool" or p.type in (structs or {}):
            listed.append(f"? {p.name}")
            cure = "an int" if p.type == "bool" else "its members, as parameters of their own"
            unsure.append(f"{p.type} {p.name} cannot be passed: let the kernel take {cure}")
            continue
        size = next((size for size, names in _NAMES.items() if name in names), "")
        kind = INTEGERS.get(p.type, "int32")
        listed.append(f"{kind} {size or '?'}")
        if not size:
            unsure.append(f"for {p.type} {p.name} write M, N or K in place of ?")
    return listed, unsure


def _fused(name: str) -> str:
    """Return a hint how to declare an operand of this name, if it is one of a fused operation."""
    if name.lower() not in _FUSED:
        return ': see "What is fused" and "Experts" in docs/declarations.md'
    return f': declare epilogue = ["{_FUSED[name.lower()]}"] too (docs/declarations.md, "What is fused")'


def unlike(parameters: Sequence[Parameter], declared: Sequence[str], given: str, output: str) -> tuple[str, ...]:
    """Return the differences between a declaration and the source, one line each.

    Args:
        declared: the role of each parameter: "weights", "activations", "output", or anything else.
        given: the dtype of its activations; "" for blocks.
        output: the dtype of its outputs.
    """
    found = []
    for p, role in zip(parameters, declared, strict=False):
        if role == "activations" and given and p.type.lower() in _BLOCKS:
            found.append(f"its activations {p.name} are blocks in the source, but it would get {given}: declare q8_1")
        dtype = VALUES.get(p.type) if p.pointer else None
        if dtype is None or role not in ("activations", "output"):
            continue
        if role == "output" and dtype != output:
            found.append(f'its output {p.name} is {p.type}* in the source: declare output = "{dtype}"')
        if role == "activations" and dtype != given:
            what = f"{given} activations" if given else "blocks"
            found.append(
                f"its activations {p.name} are {p.type}* in the source, but it would get {what}: declare takes = "
                f'"{dtype}", or semantics = "f32" if it does not quantize them'
            )
    names = {p.name.lower(): role.rpartition(" ")[2] for p, role in zip(parameters, declared, strict=False)}
    for size, usual in _NAMES.items():
        for name, role in names.items():
            if size in ("M", "N", "K") and name in usual and role in ("M", "N", "K") and role != size:
                found.append(f"its parameter {name} is declared as {role}; is it {size}?")
    return tuple(found)


def misfit(
    symbol: str, parameters: Sequence[Parameter], declared: Sequence[str], structs: Collection[str] = ()
) -> str | None:
    """Return why a declaration's parameters cannot be those of a function, with a correction.

    None if they can be, or if the function has a type that is not known.

    Args:
        structs: types that the sources define.
    """
    for p in parameters:
        # A struct of 4 or 8 bytes may be declared as a number of that size.
        if not p.pointer and (p.type == "bool" or (p.type in structs and len(parameters) != len(declared))):
            cure = "take an int" if p.type == "bool" else "take its members as parameters of their own"
            return (
                f"{symbol} has the parameter {p.type} {p.name}, which cannot be passed: a declaration passes pointers "
                f"and numbers of 4 and 8 bytes; {cure}, for example in a wrapper kernel"
            )
    if "stream" in declared or not all(p.pointer or p.type in INTEGERS or p.type == "float" for p in parameters):
        return None
    right, _ = _declared(parameters)
    instead = f"write parameters = {json.dumps(right)}" + (
        ", with M, N or K in place of ?" if "?" in str(right) else ""
    )
    if len(parameters) != len(declared):
        return f"{symbol} has {len(parameters)} parameters, but {len(declared)} are declared; {instead}"
    for p, said in zip(parameters, declared, strict=True):
        kind = said.split()[0] if " " in said else ""
        wanted = INTEGERS.get(p.type, "float32")
        other = bool(kind) and ((kind == "float32") != (wanted == "float32") or kind[-2:] != wanted[-2:])
        if p.pointer and kind and said.split()[1:] == ["0"]:
            return (
                f"{symbol} has the pointer {p.type}* {p.name}, but {json.dumps(said)} is declared: a null pointer "
                f"cannot be passed; {p.name} is an operand{_fused(p.name)}"
            )
        if p.pointer != (not kind) or other:
            written = f"{p.type}{'*' if p.pointer else ''} {p.name}"
            return f"{symbol} has the parameter {written}, but {json.dumps(said)} is declared; {instead}"
    return None


def there_is(symbol: str, known: Sequence[str]) -> str:
    """Return a list of functions that exist, nearest to a name that does not."""
    if not known:
        return 'it has no extern "C" __global__ function'
    near = difflib.get_close_matches(symbol, known, _MOST_NAMED, 0.0)
    more = f" and {len(known) - len(near)} more" if len(known) > len(near) else ""
    return f"it has {', '.join(near)}{more}"
