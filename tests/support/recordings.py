"""What the terminal shows of handmade runs, recorded in `tests/recordings/`.

python -m tests.support.recordings     # writes them anew; look at the difference before it is committed
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from gguf_verify.cli.common import PIPED_WIDTH
from gguf_verify.report.writer import Form, Kind
from gguf_verify.results.diagnoses import FaultMatch, LocatedDiagnosis
from gguf_verify.results.failures import Failure, Frame
from gguf_verify.results.margins import Side
from gguf_verify.results.options import spent_words
from gguf_verify.results.products import TypeEnvelope
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.judging import KERNEL
from tests.support import nights
from tests.support.shown import text_of
from tests.support.tools import FIXTURES, ROOT

FOLDER = ROOT / "tests" / "recordings"
PIPED = Form(width=PIPED_WIDTH)
WIDE = Form(width=120, colour=True, blocks=True)
WIDE_NO_COLOUR = Form(width=120, blocks=True)


def envelope(kind: str = "Q4_0", **fields: object) -> TypeEnvelope:
    """For which products a run with weights of a type holds."""
    usual: dict[str, object] = {
        "plan": 2, "probes": "full", "domain": "", "calls": 756, "tokens": "0-66, 71-73, 128, 4099",
        "rows": "1-34, 39-41, 151936", "columns": "32, 64, 96, 32768",
        "values": ("any bits", "codes of -128", "drawn", "special", "the model's"),
        "indices": ("11 thread blocks of M=16411, N=151937, K=32 (M·N = 2,493,438,107)",),
        "grids": ("M=1048576, N=64, K=1024",), "not_covered": (), "under_test": True,
    }  # fmt: skip
    return TypeEnvelope(type=kind, **(usual | fields))  # type: ignore[arg-type]


def passing(types: tuple[str, ...] = ("Q4_0",), notes: int = 1) -> Report:
    """A pass of a model with weights of these types, and so many notes in a rung."""
    report = nights.run_result()
    layers = report.rungs[2]
    layers.envelopes = [envelope(kind, calls=100 + i) for i, kind in enumerate(types)]
    layers.checked = {"GEMMs": 22, "outputs": 393216, "outputs at other shapes": 3653513, "launches": 16}
    layers.not_checked = {"tensors only looked up": 1, "vectors": 7}
    layers.notes = [f"kernel q8_1_dp4a: it did not run in other orders of threads ({i})" for i in range(notes)]
    report.rungs[1].measure(Side("llama.cpp", False), 0.193, 6.04, "blk.1.attn_output.weight row 164 block 1 token 0")
    return report


def failing() -> Report:
    """A run with a kernel that is wrong in one tensor, with a diagnosis of two faults."""
    report = nights.run_result(wrong=nights.gemm_names(21)[8])
    layers = report.rungs[2]
    assert layers.diagnosis is not None
    faults = (
        FaultMatch("activations-interleaved", "the activations' codes are not read in the order of the values",
                   "the codes of Q8_1 are sequential: code k belongs to value k", 0.9999, 0.2, True),
        FaultMatch("nibbles-in-pairs", "the nibbles of a byte are read as neighbouring values",
                   "the low nibble of byte j is value j, its high nibble value j + 16", 0.9999, 0.2, True),
    )  # fmt: skip
    lines = tuple(f"{f.words} (explains 99.99 % of the error). Fix: {f.fix}" for f in faults)
    layers.diagnosis = msgspec.structs.replace(
        layers.diagnosis, verdict="known fault", faults=faults,
        lines=(*lines, "each of these faults predicts these outputs; the data cannot distinguish them"),
    )  # fmt: skip
    report.rungs[1].diagnosis = LocatedDiagnosis(
        tensor=layers.diagnosis.tensor, where=layers.diagnosis.where, who="kernel on one block of K", row=17, token=0,
        block=3, verdict="unknown", wrong=1, outputs=2, lines=("unknown: no fault explains the outputs",),
    )  # fmt: skip
    for rung, n in zip(report.rungs[1:3], (2559, 128764), strict=True):
        rung.fail_more("kernel", n, "")
    return report


#: Of an author's code, which calls an installed package, which calls it again.
FRAMES = (
    Frame("my_kernel.py:17 in gemm", "return tools.call(helper, weights)", True),
    Frame("tools.py:3 in call", "return function(x)", False),
    Frame("my_kernel.py:19 in helper", "return w.reshape(3, 7)", True),
)


def raising() -> Report:
    """A run with a kernel that raises at each call."""
    report = nights.run_result()
    for rung in report.rungs[1:]:
        rung.worst = {}
        for name in nights.gemm_names(3):
            what = (
                f"{name}: the kernel raised ValueError: cannot reshape array of size 4608 into shape (3,7); at "
                "my_kernel.py:19 in helper: return w.reshape(3, 7)"
            )
            cause = "ValueError at my_kernel.py:19 in helper"
            rung.fail(Failure(what, name, cause=cause, trace=FRAMES))
    return report


def interrupted(known: bool = False) -> Report:
    """A run that Ctrl-C ended in the layers rung, which had found something wrong, or not."""
    report = failing() if known else passing()
    del report.rungs[3]
    rung = report.rungs[2]
    rung.fault, rung.fault_culprit = "interrupted by SIGINT before its end", "coverage"
    report.ended_by, report.not_climbed = "SIGINT", ("tokens",)
    return report


def exit_first() -> Report:
    """A run that -x ended after the blocks rung."""
    report = failing()
    del report.rungs[2:]
    report.ended_by, report.not_climbed = "first failure", ("layers", "tokens")
    return report


def out_of_time() -> Report:
    """A run that judged some tensors in the time that it was given."""
    report = passing()
    options = dataclasses.replace(report.environment.options, budget=120.0)
    report.environment = msgspec.structs.replace(report.environment, options=options)
    for rung in report.rungs[1:3]:
        for i in range(14):
            rung.leave(f"blk.{i}.ffn_down.weight", spent_words(options.budget))
    report.ended_by, report.not_climbed = "budget", ("tokens",)
    del report.rungs[3:]
    return report


def unverified() -> Report:
    """A run that could not check everything, and in which llama.cpp died."""
    report = passing()
    report.rungs[2].leave("blk.0.attn_q.weight", "kernel q8_1 does not cover type Q6_K")
    report.rungs[3] = RungResult(name="tokens", substance=("tokens",), fault="llama.cpp died in graft (SIGSEGV)",
                                 fault_culprit="llama.cpp", seconds=0.5)  # fmt: skip
    return report


def stranger() -> Report:
    """A pass of a foreign kernel by its author's oracle, on a file with a long name and many types."""
    report = passing(("Q4_0", "Q5_1", "Q6_K", "Q8_0"), notes=12)
    e = report.environment
    kernel = msgspec.structs.replace(
        e.kernel, name="my_kernel.py:gemm", judged_by="the oracle of the kernel's author",
        verified_means="the kernel computes what an oracle of its author says; how near that is to llama.cpp's "
        "product, only the oracle's distances to the known definitions above tell",
    )  # fmt: skip
    file = msgspec.structs.replace(e.file, path=f"/models/{'long-name-' * 12}Q4_0.gguf", sha256=("2f96a0a1" * 8,) * 3)
    report.environment = msgspec.structs.replace(e, kernel=kernel, file=file)
    report.rungs[2].measure(KERNEL, 0.5, 2.0, "blk.0.ffn_down.weight row 4 token 9")
    report.rungs[2].envelopes = [
        envelope(e.type, calls=e.calls, columns=f"{32 * (i + 1)}", not_covered=(("indices", "no room"),))
        for i, e in enumerate(report.rungs[2].envelopes)
    ]
    return report


def _of(make: Callable[[], Report], form: Form) -> Callable[[], str]:
    return lambda: text_of(Kind.RUN, make(), **{name: getattr(form, name) for name in form.__dataclass_fields__})


def real() -> str:
    """A real run of one rung through a pipe, whose versions, host and times are masked."""
    command = [sys.executable, str(ROOT / "scripts" / "verify_model.py"), str(FIXTURES / "tiny-Q4_0.gguf")]
    more = ["--rungs", "bytes", "--host", "cpu", "-t", "1", "--seed", "0", "--progress", "always"]
    env = {**os.environ, "COLUMNS": "33", "TERM": "xterm"}  # what is piped does not depend on them
    done = subprocess.run(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, env=env, check=True
    )
    return masked(done.stdout)


def masked(text: str) -> str:
    """Without what differs between machines."""
    text = re.sub(r"\b\d+\.\d+ s\b", "S s", text)
    text = re.sub(r"(?m)( +–) +\d+\.\d$", r"\1 S", text)
    text = re.sub(r"(?m)^host .*(\n {12}.*)*", "host        HOST", text)
    text = re.sub(r"(?m)^sandbox .*\n(?: {12}.*\n)*", "", text)
    text = re.sub(r"(?m)^skipped .*\n(?: {12}.*\n)*", "skipped     SKIPPED\n", text)
    return re.sub(r"llama\.cpp [\w.+-]+( on CPU); gguf-verify [\w.+-]+", r"llama.cpp V\1; gguf-verify V", text)


#: Name → what makes the text.
RECORDINGS: dict[str, Callable[[], str]] = {
    "pass-piped": _of(passing, PIPED),
    "pass-wide": _of(passing, WIDE),
    "pass-stranger-piped": _of(stranger, PIPED),
    "fail-piped": _of(failing, PIPED),
    "fail-wide": _of(failing, WIDE),
    "fail-wide-no-colour": _of(failing, WIDE_NO_COLOUR),
    "raising-piped": _of(raising, PIPED),
    "interrupted-piped": _of(interrupted, PIPED),
    "interrupted-known-piped": _of(lambda: interrupted(known=True), PIPED),
    "exit-first-piped": _of(exit_first, PIPED),
    "out-of-time-piped": _of(out_of_time, PIPED),
    "unverified-piped": _of(unverified, PIPED),
    "real-bytes-piped": real,
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.txt"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in RECORDINGS.items():
        path_of(name).write_text(make(), encoding="utf-8")
