"""Coverage-guided fuzzing of the GGUF parser.

Atheris (pip install atheris) makes files out of the crafted ones of the tests, keeps those that reach new
code of gguf_verify.gguf, and looks for one on which the parser or the check of the metadata raises, breaks an invariant
that holds for every file (tests/support/invariants.py), or takes more than 2 s or 1 GB. The exit code is 0 where it
finds none. Otherwise it is 1, the file is saved, and the last line says how to repeat the failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..support.errors import EnvironmentFault
from ..support.paths import CHECKOUT, PACKAGE
from .measure import Measure

SECONDS = 2  # that an input may take
MEMORY = 1024  # MB that the process may take
LARGEST = 1 << 16  # bytes of an input
FOUND = Path(tempfile.gettempdir(), "gguf-verify-found")
#: The name that an input is saved under, by its length, unless it is a part of a split model: the parser reads names
#: too.
NAMES = ("fuzzed.gguf", "tiny-Q8_0.gguf", "x-iq4_nl-F16.gguf")
#: The values to which a number is changed.
LIES = (0, 1, 3, 4, 8, 9, 31, 33, 64, 65535, 65536, 1 << 30, 1 << 31, 1 << 32, 1 << 61, 1 << 62, 1 << 63, -32, -1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measure."""
    add = parser.add_argument
    add("--seconds", type=int, default=60, help="how long to look (%(default)s)")
    add("--corpus", type=Path, help="a folder to keep interesting files in, and to go on from")
    add("--found", type=Path, default=FOUND, help="where to save what is found (%(default)s)")
    add("--input", type=Path, nargs="+", metavar="FILE", help="only run these files; this does not need atheris")
    add("--seed", type=int, default=0, help="of libFuzzer's random numbers (0: another one each time)")


def run(options: argparse.Namespace) -> int:
    """Fuzz, or run the given files; returns the exit code. Raises EnvironmentFault without atheris."""
    if not options.input and importlib.util.find_spec("atheris") is None:
        raise EnvironmentFault("atheris is not installed: pip install atheris")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        if options.input:
            with _child("repeat", scratch, *options.input) as child:
                return child.wait()
        return _supervised(options, Path(scratch))


def _child(work: str, *arguments: object, stderr: int | None = None) -> subprocess.Popen[str]:
    """This module in a process of its own, which can import the tests' helpers. libFuzzer ends its process by itself,
    and must see the parser being imported."""
    command = [sys.executable, "-m", "gguf_verify.measure.fuzz", work, *map(str, arguments)]
    paths = [str(PACKAGE.parent), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.Popen(command, text=True, errors="replace", env=environment, stderr=stderr)


def _repeat(folder: Path, paths: list[str]) -> int:
    """Run these files."""
    target = Target(folder)
    for path in paths:
        faulthandler.dump_traceback_later(5 * SECONDS, exit=True)
        target(Path(path).read_bytes())
        print(f"{path}: nothing wrong")
    return 0


def _supervised(options: argparse.Namespace, scratch: Path) -> int:
    """Fuzz in a child and report what it finds."""
    corpus = options.corpus or scratch / "corpus"
    for folder in (corpus, options.found):
        folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    child = _child(
        "fuzz", scratch, corpus, scratch / "seeds", f"-max_total_time={options.seconds}", f"-timeout={SECONDS}",
        f"-rss_limit_mb={MEMORY}", f"-max_len={LARGEST}", f"-artifact_prefix={options.found}/",
        f"-seed={options.seed}", "-print_final_stats=1", "-reload=0", stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stderr is not None
    covered = executed = "?"
    found: list[str] = []
    for line in child.stderr:
        if not re.match(r"#\d+\s+(NEW|REDUCE)", line):
            sys.stderr.write(line)
        covered = (re.findall(r"cov: (\d+)", line) or [covered])[0]
        executed = (re.findall(r"number_of_executed_units: (\d+)", line) or [executed])[0]
        found += re.findall(r"Test unit written to (.+)", line)
    code = child.wait()
    print(
        f"{executed} files in {time.monotonic() - start:.0f} s, {covered} branches covered, "
        f"{sum(1 for _ in corpus.iterdir())} files kept"
    )
    for path in found:
        print(f"found; to repeat it: gguf-verify measure fuzz --input {path}")
    if not found and code:
        print(f"the fuzzer itself ended with exit code {code}")
    return 1 if found or code else 0


def write_seeds(folder: Path) -> None:
    """Write the crafted files of the tests, and the headers of the fixtures."""
    from tests.support import corpus

    from ..gguf import parse

    crafted = [entry.build().data for entry in corpus.CORPUS]
    crafted += [data for entry in corpus.SPLITS for data in entry.files.values()]
    for i, data in enumerate(crafted):
        if len(data) <= LARGEST:
            (folder / f"crafted-{i}").write_bytes(data)
    for path in (CHECKOUT / "fixtures").glob("*.gguf"):
        with parse(path) as file:
            (folder / path.stem).write_bytes(file.buffer[: min(file.data_offset, LARGEST)].tobytes())


class Target:
    """Runs the checks on an input, which it writes to a folder first."""

    def __init__(self, folder: Path) -> None:
        from tests.support import corpus
        from tests.support.invariants import check_file, check_model

        self.checks: tuple[Callable[[Path], object], ...] = (check_file, check_model)
        self.folder, self.first = folder, corpus.ONE
        (folder / corpus.TWO).write_bytes(corpus.part(1))

    def __call__(self, data: bytes) -> None:
        path = self.folder / (self.first if b"split.count" in data else NAMES[len(data) % len(NAMES)])
        path.write_bytes(data)
        start = time.process_time()
        for check in self.checks:
            check(path)
        assert time.process_time() - start < SECONDS


def mutate(data: bytes, largest: int, seed: int, path: Path, anything: Callable[[bytes, int], bytes]) -> bytes:
    """Change fields of a file, where it can be parsed (it is saved as `path`), or, half of the time, do `anything`."""
    from ..gguf import parse

    rng = random.Random(seed)
    if rng.random() < 0.5:
        return anything(data, largest)
    path.write_bytes(data)
    try:
        with parse(path) as file:
            fields = [data[r.start : r.stop] for r in file.byte_map]
    except Exception:  # it will raise again when this file is run
        return anything(data, largest)
    for _ in range(rng.randint(1, 3)):
        if len(fields) < 5:
            break
        at = rng.randrange(2, len(fields))
        match rng.randrange(6):
            case 0 | 1:  # a number, or the length before a name, or one of the dimensions
                size = rng.choice((4, 8, 8))
                place = rng.choice((0, 0, 4))
                old = int.from_bytes(fields[at][place : place + size], "little")
                new = rng.choice((*LIES, old + 1, old - 1, old + 32, old * 2)) % (1 << 8 * size)
                fields[at] = fields[at][:place] + new.to_bytes(size, "little") + fields[at][place + size :]
            case 2:
                del fields[at]
            case 3:
                fields.insert(at, fields[at])
            case 4:
                other = rng.randrange(2, len(fields))
                fields[at], fields[other] = fields[other], fields[at]
            case _:
                fields[at] = anything(fields[at], max(len(fields[at]), 8))
    return b"".join(fields)[:largest]


def _fuzz(folder: Path, arguments: list[str]) -> int:
    """Run libFuzzer with these arguments; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["gguf_verify.gguf"], enable_loader_override=False):
        import gguf_verify.gguf  # noqa: F401 - what is imported here is watched

    for name in ("seeds", "work"):
        (folder / name).mkdir()
    write_seeds(folder / "seeds")

    def mutator(data: bytes, largest: int, seed: int) -> bytes:
        return mutate(data, largest, seed, folder / "parent.gguf", atheris.Mutate)

    atheris.Setup([sys.argv[0], *arguments], Target(folder / "work"), custom_mutator=mutator)
    atheris.Fuzz()
    return 0


MEASURE = Measure("fuzz", "whether an input breaks the GGUF parser", __doc__ or "", add_arguments, run)

if __name__ == "__main__":
    sys.exit({"fuzz": _fuzz, "repeat": _repeat}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:]))
