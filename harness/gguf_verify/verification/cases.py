"""A wrong product as files (`--save-case DIR`): to attach to an issue, and to be checked without this package.

    x.npy         float32[M, K]: the activations; where the kernel was given blocks, their values
    taken.npy     uint8[M, row bytes]: these blocks, where the kernel was given blocks
    w.bin         N rows of weights, the bytes as they lie in the model's file
    y.npy         float32[M, N]: what the kernel gave
    expected.npy  float64[M, N]: the exact product of the definition
    bound.npy     float64[M, N]: the most that float32 arithmetic in any order may differ from it
    ordered.npy   float32[M, N]: the bits of the declared order of summation, where one is declared
    case.json     what it is, for programs
    README.md     what it is, for people
    check.py      shows the worst output; it needs NumPy alone

A product that would take more than MOST_BYTES is cut down to rows and tokens with wrong outputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..results.environment import Environment
from ..rungs.explain import WrongOutput
from ..semantics.accumulation import SCORE_LIMIT
from ..semantics.exact import product
from ..semantics.gates import Judgement, judge
from ..semantics.sums import Product
from ..support.command_line import repeat, shown
from ..support.errors import UsageError
from ..support.plain import plain
from ..support.text import printable

#: Bytes that the arrays of a case take at most; rows and tokens that a larger product is cut down to.
MOST_BYTES, MOST_ROWS, MOST_TOKENS = 64 << 20, 64, 8
#: The version of `case.json`.
VERSION = 1

_CHECK = '''"""Shows the worst output of this case: python check.py. It needs NumPy alone."""
from pathlib import Path
import numpy as np
y, expected, bound = (np.load(Path(__file__).with_name(f"{name}.npy")) for name in ("y", "expected", "bound"))
with np.errstate(all="ignore"):
    use = np.where(y == expected, 0, np.abs(y.astype(np.float64) - expected) / bound)
use[np.isnan(use)] = np.inf  # NaN is never right
m, n = np.unravel_index(use.argmax(), use.shape)
print(f"{int((use > 1).sum()):,} of {use.size:,} outputs are outside the bound; the worst is token {m}, row {n}:")
print(f"got {y[m, n]:.9g}, expected {expected[m, n]:.9g}, bound {bound[m, n]:.3g}, utilisation {use[m, n]:.3g}")
'''
_CHECK_ORDER = """ordered = np.load(Path(__file__).with_name("ordered.npy"))
print(f"{int((y.view(np.uint32) != ordered.view(np.uint32)).sum()):,} do not have the bits of the declared order")
"""


def check_folder(folder: Path) -> None:
    """Raises UsageError where a case cannot be written into a folder: it holds something, or cannot be made."""
    name = printable(str(folder))
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise UsageError(f"--save-case: {name} is not empty")
        elif folder.exists() or folder.is_symlink():
            raise UsageError(f"--save-case: {name} is not a folder")
        elif not folder.absolute().parent.is_dir():
            raise UsageError(f"--save-case: cannot make {name}: there is no folder {printable(str(folder.parent))}")
    except OSError as error:
        raise UsageError(f"--save-case: {name}: {error.strerror}") from None


#: That no case was saved.
NO_CASE = "no case was written: no product of the kernel is wrong, or none gave outputs"


def save_case(folder: Path, call: WrongOutput, model: Path, command: str, environment: Environment) -> str:
    """Write a call into a folder. Returns a sentence about it: a full disk is no verdict on a kernel."""
    name = printable(str(folder))
    try:
        write_case(folder, call, str(model), command, environment)
    except OSError as error:
        return f"the case could not be written to {name}: {error.strerror}"
    return f"the first wrong product is in {name}: see README.md there"


def write_case(folder: Path, call: WrongOutput, model: str, command: str, environment: Environment | None) -> None:
    """Write a call into a folder. Raises OSError."""
    rows, tokens = _kept(call)
    w, y = call.rows[rows], np.ascontiguousarray(call.y[np.ix_(tokens, rows)])
    encoded = np.ascontiguousarray(call.encoded[tokens])
    expected = product(call.semantics, call.fmt, w, encoded, call.order)
    judged = judge(y, expected)
    x, taken = _activations(call, np.ascontiguousarray(call.taken[tokens]))
    folder.mkdir(exist_ok=True)
    arrays: dict[str, npt.NDArray[Any]] = {"x": x, "y": y, "expected": expected.exact, "bound": expected.bound}
    if taken is not None:
        arrays["taken"] = taken
    if expected.ordered is not None:
        arrays["ordered"] = expected.ordered
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    (folder / "w.bin").write_bytes(np.ascontiguousarray(w).tobytes())
    of = call.call
    rung = "" if of is None else {"block": "blocks", "graft": "tokens"}.get(of.kind, "layers")
    described = {
        "case": VERSION, "tensor": call.tensor, "type": call.fmt.name, "definition": call.semantics.name,
        "m": len(tokens), "n": len(rows), "k": x.shape[1],
        "rows": [call.first_row + int(n) for n in rows], "tokens": [int(m) for m in tokens],
        "of": {"m": call.y.shape[0], "n": call.y.shape[1]}, "who": call.who, "model": Path(model).name,
        "repeat": repeat(command, rung, call.tensor, "" if of is None else of.id),
        "environment": None if environment is None else plain(environment),
    }  # fmt: skip
    (folder / "case.json").write_text(json.dumps(plain(described), indent=1) + "\n")
    (folder / "check.py").write_text(_CHECK + (_CHECK_ORDER if expected.ordered is not None else ""))
    (folder / "README.md").write_text(_readme(call, described, expected, y, judged), errors="backslashreplace")


def _kept(call: WrongOutput) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Numbers of the rows and of the tokens: all, or as many with wrong outputs as MOST_BYTES allow."""
    (m, n), k = call.y.shape, call.encoded.shape[1] + call.taken.shape[1] * call.taken.itemsize
    if m * n * 24 + m * k + call.rows.nbytes <= MOST_BYTES:
        return np.arange(n), np.arange(m)
    tokens = np.unique([call.m, *range(min(m, MOST_TOKENS - 1))])
    rows = np.unique([call.n, *range(max(0, call.n - MOST_ROWS // 2), min(n, call.n + MOST_ROWS // 2))])
    most = max(1, MOST_BYTES // 2 // max(1, call.rows.shape[1]))
    return (rows if len(rows) <= most else np.array([call.n])), tokens


def _activations(call: WrongOutput, taken: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any] | None]:
    """Values float32[M, K]; and the blocks uint8[M, row bytes], where the kernel was given those."""
    fmt = call.semantics.activations
    if taken.dtype == np.float32:
        return taken, None
    k = call.rows.shape[1] // call.fmt.block_bytes * call.fmt.block_size
    return call.semantics.values_of(taken)[:, :k], None if fmt is None else taken


def _readme(call: WrongOutput, said: dict[str, Any], p: Product, y: npt.NDArray[np.float32], judged: Judgement) -> str:
    m, n = (int(i) for i in np.argwhere(judged.bad)[0]) if judged.bad.any() else judged.worst
    whole = said["of"]
    cut = said["m"] < whole["m"] or said["n"] < whole["n"]
    of = f", cut down from {whole['m']:,} tokens and {whole['n']:,} rows" if cut else ""
    environment = said["environment"]
    lines = [
        f"# A wrong product: {_code(call.tensor)}, {call.fmt.name}",
        "",
        f"{int(judged.bad.sum()):,} of {y.size:,} outputs y = x·Wᵀ are wrong. The first is token {m}, row {n} of these "
        f"files: got {float(y[m, n]):.9g}, expected {float(p.exact[m, n]):.9g}, bound {float(p.bound[m, n]):.3g}.",
        "",
        f"- Shape: M = {said['m']} tokens, N = {said['n']} rows, K = {said['k']} columns{of}.",
        f"- Weights: `w.bin`, {said['n']} rows of {call.rows.shape[1]} bytes, type {call.fmt.name} of ggml, as they "
        f"lie in the model {_code(Path(said['model']).name)}"
        + ("." if call.block is None and _of_file(call) else ", or are made of its blocks."),
        "- Activations: `x.npy`, float32[M, K]"
        + (", decoded from the blocks in `taken.npy`, which the kernel was given." if _blocks(call) else "."),
        "- Outputs: `y.npy`, float32[M, N], as the kernel gave them.",
        f"- Expected: `expected.npy`, float64[M, N], the exact product of the definition `{call.semantics.name}` "
        f"({call.semantics.title}).",
        "- Bound: `bound.npy`, the largest error of correct float32 arithmetic in any order of summation. An output "
        f"also fails where its error is more than {SCORE_LIMIT:g} standard deviations of rounding errors, or where it "
        "does not have the bits of a declared order (`ordered.npy`).",
        f"- The call: {_code(call.who)}.",
        "",
        "`python check.py` shows the worst output; it needs NumPy alone.",
    ]  # fmt: skip
    if said["repeat"]:
        lines += ["", "The same call again, with gguf-verify and the model:", "", f"    {shown(said['repeat'])}"]
    if environment is not None:
        v, kernel, host = environment["versions"], environment["kernel"], environment["host"]
        lines += [
            "", f"Kernel {_code(kernel['name'])} on {_code(host['device'])}; gguf-verify {v['gguf_verify']}, llama.cpp "
            f"{v['llama_cpp']} (llama-cpp-python {v['llama_cpp_python']}), NumPy {v['numpy']}, Python {v['python']}, "
            f"{v['platform']}; sha256 of the model {' '.join(environment['file']['sha256'])}.",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _of_file(call: WrongOutput) -> bool:
    return call.call is None or call.call.kind in ("own", "shared", "other-m", "graft")


def _blocks(call: WrongOutput) -> bool:
    return call.taken.dtype != np.float32 and call.semantics.activations is not None


def _code(text: str) -> str:
    """A text from a file as code, which Markdown does not interpret."""
    return f"`{printable(text, 200).replace('`', '')}`"
