"""A target under atheris: libFuzzer keeps the inputs that reach new branches of the package, and goes on from them.

    python -m tests.fuzz.guided TARGET FOLDER [libFuzzer's arguments]

libFuzzer ends its process by itself, so this runs in one of its own.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

#: Seconds of a processor that an input may take.
SECONDS = 5


def main(arguments: list[str]) -> None:
    """Run libFuzzer with these arguments; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["gguf_verify"], enable_loader_override=False):
        from tests.fuzz import runs
        from tests.fuzz.target import targets

        target = targets()[arguments[0]]  # every target's module is imported here, and what they import is watched
    folder = Path(arguments[1])
    seeds = folder / "seeds"
    seeds.mkdir(parents=True)
    for data in runs.starting_inputs(target):
        (seeds / runs.name_of(data)).write_bytes(data)
    work = Path(tempfile.mkdtemp(dir=folder))

    def run(data: bytes) -> None:
        start = time.process_time()
        target.check(work, data)
        assert time.process_time() - start < SECONDS, "the input takes too long"

    def mutate(data: bytes, largest: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.3:
            mutant: bytes = atheris.Mutate(data, largest)
            return mutant
        for _ in range(rng.choice((1, 1, 2))):
            data = target.mutate(data, rng)
        return data[:largest]

    atheris.Setup([sys.argv[0], *arguments[2:], str(seeds)], run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
