"""Coverage-guided fuzzing of the container: python scripts/fuzz_container.py --seconds 600

Atheris (pip install 'gguf-verify[fuzz]') makes files out of the crafted ones of the tests, keeps those that reach new
code of harness/container, and looks for one on which parsing or the check of the claims raises, breaks what has to
hold for every file (tests/invariants.py), or takes more than 2 s or 1 GB. Exit code 0: none was found; 1: one was, it
is saved, and the last line says how to repeat it; 2: usage; 3: atheris is not installed.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..support.paths import CHECKOUT

ROOT = CHECKOUT

SECONDS = 2  # an input may take
MEMORY = 1024  # MB that the process may take
LARGEST = 1 << 16  # bytes of an input
FOUND = Path(tempfile.gettempdir(), "gguf-verify-found")
#: What an input is saved as, by its length, unless it is a part of a split model: names make claims too.
NAMES = ("fuzzed.gguf", "tiny-Q8_0.gguf", "x-iq4_nl-F16.gguf")
#: What a number is changed to.
LIES = (0, 1, 3, 4, 8, 9, 31, 33, 64, 65535, 65536, 1 << 30, 1 << 31, 1 << 32, 1 << 61, 1 << 62, 1 << 63, -32, -1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for how long (60)")
    parser.add_argument("--corpus", type=Path, help="a folder to keep interesting files in and to go on from")
    parser.add_argument("--found", type=Path, default=FOUND, help=f"where to save what is found ({FOUND})")
    parser.add_argument("--input", type=Path, nargs="+", help="run these files only; atheris is not needed")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer's random numbers (0: another one each time)")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child is not None:
        return fuzz(Path(args.child[0]), args.child[1:])
    if not args.input and importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install 'gguf-verify[fuzz]'", file=sys.stderr)
        return 3
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        if args.input:
            target = Target(Path(scratch))
            for path in args.input:
                faulthandler.dump_traceback_later(5 * SECONDS, exit=True)
                target(path.read_bytes())
                print(f"{path}: nothing wrong")
            return 0
        return supervise(args, Path(scratch))


def supervise(args: argparse.Namespace, scratch: Path) -> int:
    """libFuzzer ends its process with exit codes of its own; so it runs in a child."""
    corpus, seeds, work = args.corpus or scratch / "corpus", scratch / "seeds", scratch / "work"
    for folder in (corpus, seeds, work, args.found):
        folder.mkdir(parents=True, exist_ok=True)
    write_seeds(seeds)
    command = [
        sys.executable, __file__, "--child", str(work), str(corpus), str(seeds), f"-max_total_time={args.seconds}",
        f"-timeout={SECONDS}", f"-rss_limit_mb={MEMORY}", f"-max_len={LARGEST}", f"-artifact_prefix={args.found}/",
        f"-seed={args.seed}", "-print_final_stats=1", "-reload=0",
    ]  # fmt: skip
    start = time.monotonic()
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
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
        print(f"found; to repeat it: {sys.executable} {__file__} --input {path}")
    if not found and code:
        print(f"the fuzzer itself ended with exit code {code}")
    return 1 if found or code else 0


def write_seeds(folder: Path) -> None:
    """The crafted files of the tests, and the headers of the fixtures."""
    from tests.support import corpus

    from ..gguf import parse

    crafted = [entry.build().data for entry in corpus.CORPUS]
    crafted += [data for entry in corpus.SPLITS for data in entry.files.values()]
    for i, data in enumerate(crafted):
        if len(data) <= LARGEST:
            (folder / f"crafted-{i}").write_bytes(data)
    for path in (ROOT / "fixtures").glob("*.gguf"):
        with parse(path) as file:
            (folder / path.stem).write_bytes(file.buffer[: min(file.data_offset, LARGEST)].tobytes())


class Target:
    """What is run on each input, which is written to a folder for that."""

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
    """Half of the time changes fields, as far as the file, saved as `path`, can be read; `anything` otherwise."""
    from ..gguf import parse

    rng = random.Random(seed)
    if rng.random() < 0.5:
        return anything(data, largest)
    path.write_bytes(data)
    try:
        with parse(path) as file:
            fields = [data[r.start : r.stop] for r in file.byte_map]
    except Exception:  # as it will again when this file is run
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


def fuzz(folder: Path, arguments: list[str]) -> int:
    import atheris

    with atheris.instrument_imports(include=["gguf_verify.gguf"], enable_loader_override=False):
        import gguf_verify.gguf  # noqa: F401 - what is imported here is watched

    def mutator(data: bytes, largest: int, seed: int) -> bytes:
        return mutate(data, largest, seed, folder / "parent.gguf", atheris.Mutate)

    atheris.Setup([sys.argv[0], *arguments], Target(folder), custom_mutator=mutator)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
