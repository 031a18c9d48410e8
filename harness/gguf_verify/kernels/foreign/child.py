"""The process that a foreign kernel runs in. It holds one kernel and one matrix of weights, and is not trusted.

Its first message is the declaration, or {"usage": one line} or {"environment": one line} where there is none. It is
then asked {"load": format, "n": N, "k": K} + rows, and any number of {"m": M} + activations. It answers in JSON:
{"ok": true}, which the output's bytes follow after a product (and which says whether it "adds_floats", and what it
reads "unset"); or {"fault": one line} where the kernel is to blame, with {"finding": {"kind", "lines"}} where a
checked build found it. A product may name the schedule of its launch, the fields of
`gguf_verify.hosts.schedule.Schedule`; {"environment": one line} says that this machine cannot run it so.

Thread blocks that run alone take sparse operands: {"contents": bytes of the weights'} + what repeats in the weights and
in the activations. Then {"alone": number of the block, "type", "shape": [M, N, K], "sizes"} is answered by {"ok": true,
"written": n}, int64[n] and uint32[n].

The first message of an oracle's process is {"gives": names of functions}. It is asked {"weights": format} + rows, or
{"activations": whether they are float32} + activations, and answers {"ok": true, "columns": L}, which float64[n, L]
follows.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ...formats import FORMATS
from ...formats.q8_1 import Q8_1
from ...hosts.base import GUARD_BYTES, POISON, Written, outside, poisoned
from ...hosts.schedule import Schedule
from ...support import protocol
from ...support.errors import EnvironmentFault, HarnessError, KernelFinding, UsageError
from ...support.paths import PACKAGE
from .api import FLOAT32, Declaration, Oracle, Shape, declaration_of

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

MOST_TEXT = 300
#: Frames of the author's own code that a message names.
_MOST_FRAMES = 3
#: Places of one product.
MOST_UNSET = 20


class Fault(Exception):
    """The kernel is to blame; one line says for what.

    Args:
        finding: of a `KernelFinding`, its kind and lines.
        cause: what further faults of the same cause have in common; "" where nothing does.
    """

    def __init__(self, words: str, finding: dict[str, Any] | None = None, cause: str = "") -> None:
        super().__init__(words)
        self.cause = cause
        self.finding = finding

    @classmethod
    def of(cls, error: HarnessError) -> Fault:
        """What the host said."""
        if isinstance(error, KernelFinding):
            return cls(str(error), {"kind": error.kind, "lines": list(error.lines)[:8]})
        return cls(str(error))


class Runner(Protocol):
    """A kernel, ready to be called."""

    declaration: Declaration
    #: Whether the last product added floats by atomic operations, as far as the host can tell.
    adds_floats: bool
    #: `Host.unset` of it.
    unset: tuple[str, ...]

    def load(self, fmt: str, rows: Bytes, n: int, k: int) -> None:
        """Take weights uint8[N, row bytes]. Raises Fault."""

    def multiply(self, x: Bytes) -> Floats:
        """float32[M, N] of activations uint8[M, row bytes]. Raises Fault."""

    def multiply_under(self, x: Bytes, schedule: Schedule) -> Floats:
        """The same under a schedule, once. Raises Fault; EnvironmentFault where that is not possible here."""

    def alone(self, fmt: str, shape: tuple[int, int, int], contents: dict[str, Bytes | None], sizes: dict[str, int],
              number: int) -> Written:  # fmt: skip
        """What one thread block of a call of (M, N, K) writes: `Kernel.alone`. `contents` and `sizes` in bytes are of
        "weights", "activations" and "output", whose content is None. Raises Fault; EnvironmentFault."""


def one_line(error: BaseException) -> str:
    """Its type and the first line of its message."""
    with contextlib.suppress(Exception):
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0][:MOST_TEXT]}" if lines else type(error).__name__
    return type(error).__name__


def raised(who: str, error: BaseException, more: str = "") -> Fault:
    """That a function of the kernel's author raised, in a line, with the frames of the traceback that are not of this
    package or of installed ones: the innermost first, with its line of source."""
    frames = []
    with contextlib.suppress(Exception):
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_of_author(f.filename)][-_MOST_FRAMES:]
    places = [f"{Path(f.filename).name}:{f.lineno} in {f.name}: {(f.line or '')[:100]}" for f in reversed(frames)]
    at = "".join(f"; {'called from' if i else 'at'} {place}" for i, place in enumerate(places))
    cause = f"{type(error).__name__} at {places[0]}" if places else f"{type(error).__name__} of {who}"
    return Fault(f"{who} raised {one_line(error)}{more}{at}", cause=cause[:MOST_TEXT])


def _is_of_author(file: str) -> bool:
    path = Path(file)
    return not path.is_relative_to(PACKAGE) and not {"site-packages", "dist-packages"} & set(path.parts)


def unchanged(what: str, now: npt.NDArray[Any], before: npt.NDArray[Any], who: str = "the kernel") -> None:
    """Raises Fault where the kernel wrote into one of its inputs."""
    a, b = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (now, before))
    if not np.array_equal(a, b):
        wrong = np.flatnonzero(a != b) if a.size == b.size else np.zeros(1, int)
        words = f"{who} modified its {what}: {len(wrong)} bytes, the first at {wrong[0]}"
        raise Fault.of(KernelFinding("input", words)) if who == "the kernel" else Fault(words)


def same_bits(first: Floats, second: Floats) -> None:
    """Raises Fault where two runs on the same inputs gave different outputs."""
    differ = np.argwhere(first.view(np.uint32) != second.view(np.uint32))
    if not len(differ):
        return
    m, n = differ[0]
    if (second.view(np.uint32) == POISON).any() > (first.view(np.uint32) == POISON).any():
        m, n = np.argwhere(second.view(np.uint32) == POISON)[0]
        words = (
            f"the kernel leaves outputs as they were: in a second run on the same inputs row {n} token {m} was never "
            "written (a buffer that it keeps?)"
        )
        raise Fault.of(KernelFinding("unwritten", words))
    words = (
        f"the kernel is not deterministic: a second run on the same inputs changed {len(differ)} of {first.size} "
        f"outputs, the first row {n} token {m}: {first[m, n]:.9g}, then {second[m, n]:.9g}"
    )
    raise Fault.of(KernelFinding("changing", words))


class OracleRunner:
    """The Oracle of a kernel, or one itself. Raises UsageError where there is none."""

    def __init__(self, found: Any) -> None:
        oracle = found if isinstance(found, Oracle) else getattr(found, "semantics", None)
        if not isinstance(oracle, Oracle):
            raise UsageError("its oracle is not a gguf_verify.Oracle")
        self._oracle = oracle
        self.gives = [name for name in ("weights", "activations") if getattr(oracle, name) is not None]

    def weights(self, rows: Bytes, fmt: str) -> Doubles:
        """float64[n, L] of uint8[n, row bytes]. Raises Fault."""
        k = rows.shape[1] // FORMATS[fmt].block_bytes * FORMATS[fmt].block_size
        return self._checked("weights", rows, k, fmt)

    def activations(self, x: Bytes, floats: bool) -> Doubles:
        """float64[M, L] of uint8[M, row bytes]. Raises Fault."""
        given: npt.NDArray[Any] = x.view(np.float32) if floats else x
        return self._checked("activations", given, given.shape[1] if floats else x.shape[1] // Q8_1.block_bytes * 32)

    def _checked(self, what: str, given: npt.NDArray[Any], k: int, *more: str) -> Doubles:
        first, second = (self._once(what, given, k, *more) for _ in range(2))
        if first.shape != second.shape or not np.array_equal(first.view(np.uint64), second.view(np.uint64)):
            raise Fault(f"the kernel's oracle is not deterministic: a second call of its {what} gave other values")
        return first

    def _once(self, what: str, given: npt.NDArray[Any], k: int, *more: str) -> Doubles:
        copy = given.copy()
        try:
            answer = as_array(getattr(self._oracle, what)(copy, *more))
        except Fault:
            raise Fault(f"the kernel's oracle gives no array as its {what}") from None
        except BaseException as error:  # also SystemExit
            raise raised("the kernel's oracle", error, f" in its {what}") from None
        unchanged(f"{what}' inputs", copy.view(np.uint8), given.view(np.uint8), "the kernel's oracle")
        n = len(given)
        if answer.dtype != np.float64 or answer.ndim != 2 or len(answer) != n or not k <= answer.shape[1] <= 2 * k:
            described = f"{answer.dtype}[{', '.join(map(str, answer.shape))}]"
            raise Fault(f"the kernel's oracle gives {described} as its {what}, expected float64[{n}, {k}]")
        out = np.array(answer, np.float64, order="C")
        if not np.isfinite(out).all():
            row = int(np.argmin(np.isfinite(out).all(axis=1)))
            raise Fault(f"the kernel's oracle gives {what} that are not finite, the first in row {row}")
        return out


class PythonRunner:
    """A function or callable object. Raises UsageError where its declaration is not valid."""

    adds_floats = False
    unset: tuple[str, ...] = ()

    def __init__(self, kernel: Any) -> None:
        self.declaration = declaration_of(kernel)
        self._kernel, self._pack = kernel, getattr(kernel, "pack", None)

    def load(self, fmt: str, rows: Bytes, n: int, k: int) -> None:
        self._fmt, self._n, self._k = fmt, n, k
        self._weights: Any = rows
        if self._pack is not None:
            try:
                self._weights = self._pack(rows, fmt)
            except BaseException as error:
                raise raised("pack", error) from None
        self._kept = self._weights.copy() if isinstance(self._weights, np.ndarray) else None

    def multiply(self, x: Bytes) -> Floats:
        first, second = self._once(x), self._once(x)
        same_bits(first, second)
        return second

    def multiply_under(self, x: Bytes, schedule: Schedule) -> Floats:
        raise EnvironmentFault("a kernel in Python has no schedules")

    def alone(self, fmt: str, shape: tuple[int, int, int], contents: dict[str, Bytes | None], sizes: dict[str, int],
              number: int) -> Written:  # fmt: skip
        raise EnvironmentFault("a kernel in Python has no thread blocks that can be seen")

    def _once(self, x: Bytes) -> Floats:
        shape = Shape(self._fmt, len(x), self._n, self._k)
        given: npt.NDArray[Any] = x.copy()
        if self.declaration.given == FLOAT32:
            given = given.view(np.float32)
        whole = poisoned(4 * shape.m * shape.n)
        out = whole[GUARD_BYTES:-GUARD_BYTES].view(np.float32).reshape(shape.m, shape.n)
        try:
            if self.declaration.out:
                self._kernel(self._weights, given, shape, out)
                answer: Any = out
            else:
                answer = self._kernel(self._weights, given, shape)
        except BaseException as error:  # also SystemExit
            raise raised("the kernel", error) from None
        y = as_array(answer)
        if y.dtype != np.float32 or y.shape != out.shape:
            described = f"{y.dtype}[{', '.join(map(str, y.shape))}]"
            raise Fault(f"the kernel returned {described}, expected float32[{shape.m}, {shape.n}]")
        if touched := outside(whole):
            raise Fault.of(KernelFinding("outside", touched))
        result = np.array(y, np.float32, order="C")
        unchanged("activations", given.view(np.uint8), x)
        if self._kept is not None:
            unchanged("weights", self._weights, self._kept)
        mine = self._kept is None or not np.may_share_memory(y, self._weights)
        if hasattr(answer, "__cuda_array_interface__"):
            poison_on_device(answer)
        elif y.flags.writeable and mine:  # an element that it does not write next time is noticed
            y[...] = POISON.view(np.float32)
        return result


def poison_on_device(answer: Any) -> None:
    """Overwrite an array of CuPy's or PyTorch's where possible, so that an element that is not written next time is
    noticed."""
    with contextlib.suppress(Exception):
        if hasattr(answer, "detach"):
            answer.detach().view(sys.modules["torch"].int32).fill_(int(POISON))
        else:
            answer.view(np.uint32).fill(int(POISON))


def as_array(answer: Any) -> npt.NDArray[Any]:
    """An answer as a NumPy array, without a copy where possible. Raises Fault."""
    try:
        if isinstance(answer, np.ndarray):
            return answer
        if hasattr(answer, "detach"):  # PyTorch: a tensor that requires a gradient
            answer = answer.detach()
        if hasattr(answer, "__cuda_array_interface__"):
            answer = answer.get() if hasattr(answer, "get") else answer.cpu()
        if hasattr(answer, "__array__"):  # before DLPack, whose arrays may be read only
            return np.asarray(answer)
        if hasattr(answer, "__dlpack__"):
            return np.from_dlpack(answer)
    except BaseException as error:
        raise Fault(f"what the kernel returned cannot be read as an array: {one_line(error)}") from None
    raise Fault(f"the kernel returned {type(answer).__name__}, not an array")


def import_kernel(path: Path, name: str) -> Any:
    """NAME of FILE.py. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file")
    spec = importlib.util.spec_from_file_location("gguf_verify_foreign_kernel", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.resolve().parent))
    try:
        # no bytecode: it is told from its source by second and size alone, so an edit of a kernel could go unseen
        sys.dont_write_bytecode = True
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    except HarnessError as error:  # of the declaration
        raise UsageError(f"{path}: {error}") from None
    except BaseException as error:
        raise UsageError(f"{path} cannot be imported: {one_line(error)}") from None
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{path} has no {name}")
        found = getattr(found, part)
    return found


def end_with_parent() -> None:
    """This process dies with its parent, in an endless loop too; Ctrl-C is the parent's to handle."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a fork has the parent's handlers
        signal.signal(number, signal.SIG_DFL)


def serve(link: Connection, make: Callable[[], Runner]) -> None:
    """Answer until the parent is gone; `make` gives the Runner."""

    contents: dict[str, Bytes | None] = {}

    def answer(runner: Runner, header: dict[str, Any], array: Bytes) -> None:
        if "load" in header:
            runner.load(header["load"], array, header["n"], header["k"])
            _say(link, ok=True)
        elif "contents" in header:
            weights = header["contents"]
            contents.update(weights=array[:weights], activations=array[weights:], output=None)
            _say(link, ok=True)
        elif "alone" in header:
            written = runner.alone(header["type"], tuple(header["shape"]), contents, header["sizes"], header["alone"])
            _say(link, ok=True, written=len(written.at))
            link.send_bytes(np.concatenate([written.at.view(np.uint8), written.words.view(np.uint8)]).data)
        else:
            said = header.get("schedule")
            y = runner.multiply(array) if said is None else runner.multiply_under(array, Schedule(**said))
            unset = [place[:100] for place in runner.unset[:MOST_UNSET]]
            _say(link, ok=True, adds_floats=runner.adds_floats, unset=unset)
            link.send_bytes(y.reshape(-1).view(np.uint8).data)

    def declared(runner: Runner) -> dict[str, Any]:
        d = runner.declaration
        return {"formats": d.formats, "semantics": d.semantics, "ordered": d.ordered, "takes": d.takes,
                "domain": d.domain.plain()}  # fmt: skip

    _serve(link, make, declared, answer)


def serve_oracle(link: Connection, make: Callable[[], OracleRunner]) -> None:
    """Answer requests to an oracle until the parent has gone."""

    def answer(runner: OracleRunner, header: dict[str, Any], array: Bytes) -> None:
        if "weights" in header:
            values = runner.weights(array, header["weights"])
        else:
            values = runner.activations(array, header["activations"])
        _say(link, ok=True, columns=values.shape[1])
        link.send_bytes(values.reshape(-1).view(np.uint8).data)

    _serve(link, make, lambda runner: {"gives": runner.gives}, answer)


R = TypeVar("R")


def _serve(
    link: Connection, make: Callable[[], R], first_message: Callable[[R], dict[str, Any]],
    answer: Callable[[R, dict[str, Any], Bytes], None],
) -> None:  # fmt: skip
    end_with_parent()
    with contextlib.suppress(EOFError, OSError):
        try:
            runner = make()
            _say(link, **first_message(runner))
        except EnvironmentFault as error:
            return _say(link, environment=str(error))
        except HarnessError as error:
            return _say(link, usage=str(error))
        while True:
            header, (array,) = protocol.receive(link)
            try:
                answer(runner, header, array)
            except Fault as error:
                more = {} if error.finding is None else {"finding": error.finding}
                _say(link, fault=str(error), cause=error.cause, **more)
            except EnvironmentFault as error:
                _say(link, environment=str(error))


def _say(link: Connection, **answer: Any) -> None:
    cut = {key: value[: 3 * MOST_TEXT] if isinstance(value, str) else value for key, value in answer.items()}
    link.send_bytes(json.dumps(cut).encode())
