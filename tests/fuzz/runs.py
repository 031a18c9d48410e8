"""Runs of a target without a guide: the kept inputs, and mutations of them that are always the same.

python -m tests.fuzz.runs TARGET FILE…      these inputs
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.target import Target, targets

#: Where inputs are saved that break something.
FOUND = Path(tempfile.gettempdir(), "gguf-verify-found")


class Found(AssertionError):
    """An input fails; the message says how to repeat it."""


def name_of(data: bytes) -> str:
    """The name under which the corpus keeps an input."""
    return hashlib.sha256(data).hexdigest()[:12]


def kept_inputs(target: Target) -> list[bytes]:
    """The inputs that the repository keeps."""
    return [path.read_bytes() for path in target.kept]


def starting_inputs(target: Target) -> list[bytes]:
    """The inputs that are mutated: the kept ones and the target's seeds."""
    whole = [*kept_inputs(target), *(data for data in target.seeds() if len(data) <= target.largest)]
    return list(dict.fromkeys(whole))


def mutated(target: Target, parents: list[bytes], number: int) -> bytes:
    """The mutated input of this number: always the same for the same parents."""
    rng = random.Random(f"{target.name} {number}")
    data = rng.choice(parents)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        data = target.mutate(data, rng)
    return data[: target.largest]


def all_mutated(target: Target, count: int) -> Iterator[bytes]:
    """The first `count` mutated inputs."""
    parents = starting_inputs(target)
    return (mutated(target, parents, number) for number in range(count))


def check(target: Target, folder: Path, data: bytes, found: Path = FOUND) -> None:
    """Run an input. Raises Found, with the input saved under `found`."""
    try:
        target.check(folder, data)
    except Exception as error:
        found.mkdir(parents=True, exist_ok=True)
        saved = found / f"{target.name}-{name_of(data)}"
        saved.write_bytes(data)
        said = f"{type(error).__name__}: {error}"
        raise Found(
            f"{said[:2000]}\nto repeat it: python -m tools.measure fuzz {target.name} --input {saved}\n"
            f"once it is mended, keep the input as tests/fuzz/corpus/{target.name}/found-WHAT"
        ) from error


def main(arguments: list[str]) -> int:
    """Run files, or mutations for some seconds: `TARGET FILE…`, or `TARGET --seconds N --found FOLDER`."""
    target = targets()[arguments[0]]
    with tempfile.TemporaryDirectory() as folder:
        if arguments[1] != "--seconds":
            for path in arguments[1:]:
                target.check(Path(folder), Path(path).read_bytes())
                print(f"{path}: nothing wrong")
            return 0
        seconds, found = float(arguments[2]), Path(arguments[4])
        parents, start, number = starting_inputs(target), time.monotonic(), 0
        while time.monotonic() - start < seconds:
            try:
                check(target, Path(folder), mutated(target, parents, number), found)
            except Found as error:
                print(error)
                return 1
            number += 1
        print(f"{target.name}: {number} inputs in {time.monotonic() - start:.0f} s, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
