"""A recorder of reports: runs a corpus of commands with a fixed seed, and compares what they report with a recording.

    .venv/bin/python -m tests.corpus record|check [NAME…]     # names may hold wildcards, such as 'museum.*'

`record` writes tests/recorded_reports/NAME.json for each run; `check` runs the same, prints what differs as a unified
diff, and ends with 1 if anything does. A change of the code that must not change the behaviour is checked by it.
Both also write each report uncut, as build/corpus/recorded/NAME.json and build/corpus/checked/NAME.json, and its
seconds on standard error. Numbers depend on the CPU and on the versions of llama.cpp, NumPy and the compiler: record
and check on one machine.

A recording holds the exit code and the report, reduced by one rule: what is computed stays; what is measured, where it
ran, and how it is worded does not.
 - Keys of `DROPPED`, which hold times, versions and the machine, are dropped; so are the digests of the system's files.
 - A text with spaces is prose. Of it stay its facts: words that hold a digit or an underscore, such as names of
   tensors, places and counts, in their order, without seconds and bytes of memory. A reworded sentence changes nothing;
   a failure at another row does.
 - A text without spaces is an id, a name, a digest or an enum, and stays; so do numbers, to the last bit, and booleans.
To keep the files small, keys of `DIGESTED`, lists of more than `MOST_ITEMS` and texts of more than `MOST_LETTERS` are
digests, and what is empty is omitted. "digest" is that of the uncut report, so that no difference is lost.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gguf_verify
from gguf_verify.gguf.model import open_model
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from tests.meta.museum.collection import EXHIBITS
from tests.support import corpus as crafted
from tests.support.tools import FIXTURES, ROOT

RECORDED = ROOT / "tests" / "recorded_reports"
BUILD = ROOT / "build" / "corpus"
SHARED = ROOT.parent / "shared"
MOST_ITEMS, MOST_LETTERS = 2, 80
#: A run is killed after this time, which none needs even on a busy machine.
TIME_LIMIT = 600
DROPPED = {
    "seconds", "rung_seconds", "stages", "started", "finished", "command", "question", "title", "fix", "versions",
    "code", "packages", "by", "build", "header", "project", "gguf_verify", "host", "element_host", "device", "compiler",
    "description", "hardware", "memory",
}  # fmt: skip
DIGESTED = {"checks", "options", "file", "opened", "envelopes", "details", "heat_map", "headroom", "trace", "call"}
#: Cases that take more than half a minute, and attacks, which the tests of tests/fortress run.
SLOW = re.compile("atomic_vs_store|half_atomics.*/wrong|right_but_tokens|k_waits_for_earlier_blocks/wrong\\.|attacks")
_MEASURED = re.compile(r"[\d.,]+ ?(?:s|ms|min|h|[KMG]i?B)\b")
_FACT = re.compile(r"[\d_]")
_ABSOLUTE = re.compile(r"(?<![\w.…])/(?:[^\s/:\"']+/)+")


@dataclass(frozen=True)
class Run:
    """A command of the corpus.

    Args:
        name: of the recording.
        argv: arguments of gguf-verify; FOLDER/ stands for the run's own folder.
        make: writes files into that folder first.
    """

    name: str
    argv: tuple[str, ...]
    make: Callable[[Path], object] = lambda folder: None


SEED, QUICK = ("--seed", "7"), ("--threads", "1", "--progress", "never")
HOST = ("--host", "cpu", *SEED, *QUICK)
BRIEF = ("--effort", "quick", "-n", "2", *HOST)
TWO_MATRICES = ("--tensor", r"blk\.0\.(attn_k|ffn_down)\.")
CAPTURED = "blk.0.attn_q.weight"
Q4_0, F16 = "fixtures/tiny-Q4_0.gguf", "fixtures/tiny-F16.gguf"
C_SOURCE = """
#include <stdint.h>
typedef struct { _Float16 d; uint8_t qs[16]; } q4_0;
void gemm(const q4_0* w, const float* x, float* y, int64_t M, int64_t N, int64_t K) {
    for (int64_t m = 0; m < M; ++m) for (int64_t n = 0; n < N; ++n) {
        float sum = 0;
        for (int64_t k = 0; k < K; ++k) {
            const q4_0* b = w + n * (K / 32) + k / 32;
            const int i = k % 32, q = i < 16 ? b->qs[i] & 15 : b->qs[i - 16] >> 4;
            sum += (float)b->d * (float)(q - 8) * x[m * K + k];
        }
        y[m * N + n] = sum;
    }
}
"""
DECLARED = """code = "kernel.so"\nsymbol = "gemm"\nformats = ["Q4_0"]\nsemantics = "f32"
parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
"""
NIGHT = "models = ['tiny.gguf']\nhosts = ['cpu']\nseed = 7\nn_predict = 1\nthreads = 1\n{}\n[prompts]\nstory = 'Once'\n"


def library(folder: Path) -> None:
    """Makes a compiled library with its declaration."""
    (folder / "kernel.c").write_text(C_SOURCE)
    (folder / "kernel.toml").write_text(DECLARED)
    command = ["cc", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "kernel.c", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=TIME_LIMIT)


def altered(example: str, old: str, new: str, folder: Path) -> None:
    """Makes a wrong kernel of an example."""
    text = (ROOT / "examples" / example).read_text()
    assert text.count(old) == 1, f"{example} holds {old!r} {text.count(old)} times"
    (folder / example).write_text(text.replace(old, new))


WRONG_NUMPY = partial(altered, "numpy_q4_0.py", "8 * s", "7 * s")
WRONG_CUDA = partial(altered, "cuda_q4_0.cu", "[j + 16]", "[j + 15]")


def copies(folder: Path) -> None:
    """Copies the tests' kernels, and the example that they import."""
    for path in (*(ROOT / "tests" / "support").glob("foreign_*.py"), ROOT / "examples" / "numpy_q4_0.py"):
        shutil.copy(path, folder)


def night(text: str, folder: Path) -> None:
    """Makes a night's configuration, its model and a wrong kernel."""
    (folder / "tiny.gguf").symlink_to(ROOT / Q4_0)
    WRONG_NUMPY(folder)
    (folder / "night.toml").write_text(NIGHT.format(text))


def captured(change: Callable[[Any, Any], Any], definition: str, folder: Path) -> None:
    """Makes x.npy and y.npy: random activations, and the product of a definition, changed."""
    x = np.random.default_rng(3).standard_normal((5, 256)).astype(np.float32)
    with open_model(ROOT / Q4_0) as model:
        tensor, semantics = model.tensors[CAPTURED], SEMANTICS[definition]
        rows = tensor.raw.reshape(tensor.n_rows, -1)
        y = product(semantics, tensor.type.weights, rows, semantics.bytes_of(x)).exact.astype(np.float32)
    y = change(x, y)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)


def one_off(x: Any, y: Any) -> Any:
    y[3, 200] *= 1.001
    return y


def exchanged(x: Any, y: Any) -> Any:
    return y[:, [*range(5), 9, *range(6, 9), 5, *range(10, 256)]]


def not_finite(x: Any, y: Any) -> Any:
    x[2, 3] = np.inf
    return y


def saved_case(folder: Path) -> None:
    """Makes a case of a wrong kernel."""
    WRONG_NUMPY(folder)
    argv = (Q4_0, "--kernel", f"{folder}/numpy_q4_0.py:gemm", "--rungs", "layers", *TWO_MATRICES, *BRIEF)
    command = [sys.executable, "-m", "gguf_verify", *argv, "--save-case", str(folder / "case")]
    subprocess.run(command, cwd=ROOT, timeout=TIME_LIMIT, capture_output=True, check=False)


def made_by(script: Path, folder: Path) -> None:
    """Runs a case's script, which looks for the fixtures in its folder and writes there."""
    (folder / "fixtures").symlink_to(FIXTURES)
    subprocess.run([sys.executable, script], cwd=folder, check=True, timeout=TIME_LIMIT, capture_output=True)


def cut(folder: Path) -> None:
    (folder / "cut.gguf").write_bytes((ROOT / Q4_0).read_bytes()[:-100_000])


def malformed(folder: Path) -> None:
    for number, entry in enumerate((crafted.REFUSED[0], crafted.ERRORS[0], crafted.WARNINGS[0], crafted.CLAIMS[0])):
        (folder / f"{number}-{entry.file_name}").write_bytes(entry.build().data)


def of_models() -> Iterator[Run]:
    """Shipped kernels on the fixtures, one of them whole, and what else a run may report."""
    for model in ("tiny-Q4_0", "tiny-Q5_1"):
        yield Run(f"fixture.{model}.q8_1", (f"fixtures/{model}.gguf", *HOST))
        for kernel in ("f32", "f16_mma"):
            yield Run(f"fixture.{model}.{kernel}", (f"fixtures/{model}.gguf", "--kernel", kernel, *BRIEF))
    yield Run("fixture.tiny-F16.f32", (F16, "--kernel", "f32", *TWO_MATRICES, *BRIEF))
    yield Run("fixture.costs", (Q4_0, "--source", F16, "--rungs", "bytes,tokens", *BRIEF))
    yield Run("fixture.identify", (Q4_0, "--identify", *TWO_MATRICES, *HOST))
    yield Run("fixture.sanitize", (Q4_0, "--sanitize", "--rungs", "layers", *TWO_MATRICES, *BRIEF))
    yield Run("fixture.thorough", (Q4_0, "--effort", "thorough", "--kernel", "q8_1_mma", *TWO_MATRICES, *BRIEF))


def of_foreign_kernels() -> Iterator[Run]:
    """Kernels as users write them, right and wrong."""

    def on_model(name: str, kernel: str, make: Callable[[Path], object] = lambda folder: None) -> Run:
        return Run(f"foreign.{name}", (Q4_0, "--kernel", kernel, *TWO_MATRICES, *BRIEF), make)

    yield on_model("numpy", "examples/numpy_q4_0.py:gemm")
    yield on_model("cuda", "examples/cuda_q4_0.cu:gemm")
    yield on_model("library", "FOLDER/kernel.toml", library)
    if importlib.util.find_spec("torch"):
        yield on_model("torch", "examples/torch_q4_0.py:gemm")
    for kind, names in {
        "kernels": "plain own drops_s nan partial raises writes_outside",
        "tasks": "rounded codes packs truncated sums_off loses",
    }.items():
        for name in names.split():
            yield on_model(name, f"FOLDER/foreign_{kind}.py:{name}", copies)
    yield on_model("wrong_numpy", "FOLDER/numpy_q4_0.py:gemm", WRONG_NUMPY)
    yield on_model("wrong_cuda", "FOLDER/cuda_q4_0.cu:gemm", WRONG_CUDA)
    yield Run("foreign.drawn", ("kernel", "examples/cuda_q4_0.cu:gemm", *HOST))
    yield Run("foreign.identify", ("kernel", "examples/numpy_q4_0.py:gemm", "--identify", *HOST))


def of_captured_products() -> Iterator[Run]:
    """Products that another engine computed, right and wrong."""

    def judged(name: str, definition: str, change: Callable[[Any, Any], Any], *more: str) -> Run:
        arrays = ("--tensor", CAPTURED, "--x", "FOLDER/x.npy", "--y", "FOLDER/y.npy")
        return Run(f"judge.{name}", ("judge", Q4_0, *arrays, *more, "-t", "1"), partial(captured, change, definition))

    for definition in ("q8_1", "mmq", "f32"):
        yield judged(definition, definition, lambda x, y: y)
    yield judged("claimed", "mmq", lambda x, y: y, "--definition", "q8_1")
    yield judged("one_off", "q8_1", one_off)
    yield judged("exchanged", "q8_1", exchanged, "--fast-math")
    yield judged("halves", "q8_1", lambda x, y: y.astype(np.float16), "--definition", "q8_1")
    yield judged("not_finite", "q8_1", not_finite)
    yield judged("rows", "f32", lambda x, y: y[:, 10:20], "--rows", "11:21")
    yield Run("judge.case", ("judge", "FOLDER/case", "-t", "1"), saved_case)
    yield Run("judge.case_auto", ("judge", "FOLDER/case", "--definition", "auto", "-t", "1"), saved_case)


def of_museum() -> Iterator[Run]:
    """Of each class of bugs the first exhibit, and those that `make test` verifies."""
    classes: set[str] = set()
    for exhibit in EXHIBITS.values():
        if exhibit.label.quick or exhibit.label.kind not in classes:
            kernel = f"{exhibit.path.relative_to(ROOT)}:gemm"
            yield Run(f"museum.{exhibit.id}", ("kernel", kernel, "--effort", "quick", *HOST))
        classes.add(exhibit.label.kind)


def of_cases() -> Iterator[Run]:
    """The cases beside the checkout, where there are any: kernels on random data, audits of files."""
    for path in sorted((SHARED / "cases").rglob("*.cu")):
        if SLOW.search(str(path)):
            continue
        symbol = re.findall(r"__global__[^;{]*?(\w+)\([^()]*\)\s*\{", path.read_text())[-1]
        name = "-".join(path.relative_to(SHARED / "cases").with_suffix("").parts)
        kernel = f"{os.path.relpath(path, ROOT)}:{symbol}"
        yield Run(f"case.{name}", ("kernel", kernel, "--effort", "quick", *HOST))
    for path in sorted((SHARED / "cases").glob("*/make.py")):
        yield Run(f"case.{path.parent.name}", ("audit", "FOLDER", "--source", F16, *SEED), partial(made_by, path))


def of_files() -> Iterator[Run]:
    """Audits, graphs and nights."""
    yield Run("audit.fixture", ("audit", Q4_0, "--source", F16, *SEED))
    yield Run("audit.fixtures", ("audit", "fixtures", *SEED))
    yield Run("audit.cut", ("audit", "FOLDER/cut.gguf", *SEED), cut)
    yield Run("audit.malformed", ("audit", "FOLDER", "--strict", *SEED), malformed)
    yield Run("graph.tiny-Q4_0", ("backend", Q4_0, "-t", "1"))
    yield Run("graph.tiny-Q5_1", ("backend", "fixtures/tiny-Q5_1.gguf", "-ub", "1,8", "--slots", "--fused", "-t", "1"))
    yield Run("graph.attention", ("backend", Q4_0, "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", "-t", "1"))
    for model in sorted((SHARED / "models").glob("*.gguf")):
        yield Run(f"audit.{model.stem}", ("audit", os.path.relpath(model, ROOT), *SEED))
    night_of = ("nightly", "run", "FOLDER/night.toml")
    yield Run("night.right", night_of, partial(night, "kernels = ['f32_naive']\ndevices = ['CPU']"))
    yield Run(
        "night.wrong", night_of, partial(night, "kernels = ['numpy_q4_0.py:gemm']\ndevices = ['CPU', 'Nowhere0']")
    )


def runs() -> list[Run]:
    return [*of_models(), *of_foreign_kernels(), *of_captured_products(), *of_museum(), *of_cases(), *of_files()]


def facts(text: str, folder: Path) -> str:
    """A text without paths of this machine; of prose only its facts."""
    for place in (f"{folder}/", f"{ROOT}/"):
        text = text.replace(place, "")
    text = _ABSOLUTE.sub("/…/", text)
    if not re.search(r"\s", text):
        return text
    words = (word.strip(".,:;()[]'\"") for word in _MEASURED.sub("", text).split())
    return " ".join(word for word in words if _FACT.search(word))


def computed(value: Any, folder: Path) -> Any:
    """What stays of a report by the rule in the module's docstring."""
    if isinstance(value, dict):
        found = {facts(key, folder) if "/" in key else key: kept for key, kept in value.items() if key not in DROPPED}
        return {key: computed(kept, folder) for key, kept in sorted(found.items()) if not key.startswith("/")}
    if isinstance(value, list):
        return [computed(item, folder) for item in value]
    return facts(value, folder) if isinstance(value, str) else value


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def shortened(value: Any) -> Any:
    """A report without empty values, and with digests in place of long lists and texts."""
    if isinstance(value, dict):
        short = {key: digest(kept) if kept and key in DIGESTED else shortened(kept) for key, kept in value.items()}
        return {key: kept for key, kept in short.items() if kept not in (None, "", [], {})}
    if isinstance(value, list):
        most = MOST_ITEMS if any(isinstance(item, (dict, list)) for item in value) else 4 * MOST_ITEMS
        return [shortened(item) for item in value] if len(value) <= most else f"{len(value)} items {digest(value)}"
    return digest(value) if isinstance(value, str) and len(value) > MOST_LETTERS else value


def written(value: Any, indent: str = "") -> str:
    """JSON in which everything that fits on a line is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or len(indent) + len(line) <= 120:
        return line
    deeper = f"{indent} "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + written(item, deeper) for item in value) + f"\n{indent}]"
    items = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: {written(kept, deeper)}" for key, kept in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def perform(full: Path, run: Run) -> str:
    """The run's recording; the report before it was shortened is written into a folder."""
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="corpus-"))
    try:
        run.make(folder)
        report = folder / "report.json"
        argv = [a.replace("FOLDER", str(folder)) for a in run.argv]
        quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run(
            [sys.executable, "-m", "gguf_verify", *argv, "-o", str(report)], cwd=ROOT, env={**os.environ, **quiet},
            capture_output=True, text=True, timeout=TIME_LIMIT, check=False,
        )  # fmt: skip
        found = {"exit_code": done.returncode}
        if report.exists():
            found["report"] = computed(json.loads(report.read_text()), folder)
        else:
            found["errors"] = computed(done.stderr.splitlines(), folder)
    finally:
        shutil.rmtree(folder)
    (full / f"{run.name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(f"{time.monotonic() - begun:5.1f} s  {run.name}: exit code {done.returncode}", file=sys.stderr, flush=True)
    return written({"digest": digest(found), **shortened(found)}) + "\n"


def main(verb: str = "", *names: str) -> int:
    if verb not in ("record", "check"):
        print(__doc__)
        return 2
    assert ROOT in Path(gguf_verify.__file__).parents, f"{gguf_verify.__file__} is not of this checkout"
    chosen = [run for run in runs() if any(fnmatch(run.name, name) for name in names or ("*",))]
    full, different = BUILD / f"{verb}ed", 0
    for folder in (RECORDED, full):
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        for run, found in zip(chosen, pool.map(partial(perform, full), chosen), strict=True):
            path = RECORDED / f"{run.name}.json"
            if verb == "record":
                path.write_text(found)
                continue
            before = path.read_text() if path.exists() else ""
            lines = difflib.unified_diff(before.splitlines(True), found.splitlines(True), run.name, "now", n=6)
            different += before != found
            print("".join(lines), end="", flush=True)
    if verb == "record":
        print(f"{len(chosen)} runs recorded")
        return 0
    absent = {p.stem for p in RECORDED.glob("*.json")} - {run.name for run in runs()}
    print(f"{len(chosen)} runs, {different} different; {len(absent)} recorded runs cannot be made here")
    if different:
        print(f"the uncut reports: {BUILD / 'recorded'}, if they were recorded here, and {full}")
    return int(different > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
