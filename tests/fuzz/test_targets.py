"""Every target on the inputs that the repository keeps, and on mutations of them that are always the same.

More of them, guided by coverage: `make fuzz`.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_verify.gguf.parser import parse
from tests.fuzz import lines, mutations, runs, session
from tests.fuzz.target import CORPUS, Target, targets
from tests.support import corpus
from tests.support.tools import ROOT

EVERY = pytest.mark.parametrize("target", targets().values(), ids=targets())
#: Of the kept inputs of all targets together.
MOST_BYTES = 300_000
#: Of the lines of a module that a target names as covered.
LEAST_PERCENT = 90.0


@EVERY
def test_kept_and_mutated_inputs(target: Target, tmp_path: Path) -> None:
    for data in [*runs.starting_inputs(target), *runs.all_mutated(target, target.inputs)]:
        runs.check(target, tmp_path, data)


@EVERY
def test_a_target_is_reproducible(target: Target) -> None:
    """Its seeds, and so its mutated inputs, are the same each time; most mutated inputs differ from their parents."""
    seeds = list(target.seeds())
    assert seeds == list(target.seeds())
    assert seeds
    assert target.takes
    first, again = (list(runs.all_mutated(target, 30)) for _ in range(2))
    assert first == again
    assert len(set(first) - set(runs.starting_inputs(target))) > 15


@EVERY
def test_inputs_are_kept(target: Target) -> None:
    assert target.kept, f"python -m tools.measure fuzz {target.name} --keep"
    for path in target.kept:
        data = path.read_bytes()
        assert len(data) <= target.largest
        assert path.name.startswith(lines.FOUND) or path.name == runs.name_of(data)


def test_the_corpus_is_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(targets())
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST_BYTES


def test_kept_inputs_reach_the_readers() -> None:
    """Without the mutations. Missing lines are listed: a rule without an input is not tested."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    names = [target.name for target in targets().values() if target.covered]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.lines", "report", str(ROOT / "build" / "none"), *names],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join((str(ROOT / "harness"), str(ROOT)))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {row["module"] for row in found} >= {"gguf_verify.gguf.parser", "gguf_verify.support.protocol"}
    few = [row for row in found if not row["lines"] >= LEAST_PERCENT]
    assert not few, "\n".join(f"{row['module']}: {row['lines']:.1f} %, not lines {row['missing']}" for row in few)


# -- bounded by the file ----------------------------------------------------------------------------------------


def test_parsing_is_linear_in_the_file(tmp_path: Path) -> None:
    """Lines that are run and bytes that are allocated, which no clock and no other process changes."""
    target, path = targets()["gguf"], tmp_path / "fuzzed.gguf"
    for data in [*runs.starting_inputs(target), *runs.all_mutated(target, 100)]:
        path.write_bytes(data)
        # A byte is run into lines by the shortest tensor, of 24 bytes, and by the shortest array, of 12.
        _, count = lines.traced(lambda: parse(path).close())
        assert count < 1_000 + 8 * len(data), runs.name_of(data)
        tracemalloc.start()
        try:
            parse(path).close()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 200_000 + 60 * len(data), runs.name_of(data)


# -- the machinery ----------------------------------------------------------------------------------------------


def planted(check: Callable[[Path, bytes], object]) -> Target:
    return Target("planted", "anything", lambda: [b"seed", b"other seed"], check)


def test_an_input_that_fails_is_saved_and_can_be_repeated(tmp_path: Path) -> None:
    def check(folder: Path, data: bytes) -> None:
        assert b"seed" in data, "no seed"

    target, found = planted(check), tmp_path / "found"
    broken = next(data for data in runs.all_mutated(target, 50) if b"seed" not in data)
    runs.check(target, tmp_path, b"seed", found)
    assert not found.exists()
    with pytest.raises(
        runs.Found, match=r"no seed[^$]*\nto repeat it: python -m tools.measure fuzz planted --input "
    ) as error:
        runs.check(target, tmp_path, broken, found)
    (saved,) = found.iterdir()
    assert str(saved) in str(error.value)
    assert saved.read_bytes() == broken


def test_the_fewest_inputs_that_reach_as_much() -> None:
    a, b, c = (("f", 0, n) for n in range(3))
    reached = {b"1": frozenset({a}), b"22": frozenset({a, b}), b"333": frozenset({c}), b"4444": frozenset({a, b, c})}
    assert lines.fewest(reached) == [b"22", b"333"]
    assert lines.fewest(reached, [b"4444"]) == [b"4444"]
    assert set(lines.fewest(reached, [b"1"])) == {b"1", b"22", b"333"}


def test_lines_are_traced_where_they_should_be(tmp_path: Path) -> None:
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(b"GGUF")
    short, count = lines.traced(lambda: parse(path).close())
    assert any(name.endswith("gguf/parser.py") for name, _, _ in short)
    assert not any("tests" in name for name, _, _ in short)
    path.write_bytes(corpus.gguf().data)
    longer, more = lines.traced(lambda: parse(path).close())
    assert (len(longer), more) > (len(short), count)


@pytest.mark.parametrize(
    ("mutate", "data"),
    [
        (mutations.of_json, b'{"a": [1, {"b": "c"}], "d": null}'), (mutations.of_lines(("word",)), b"a = 1\nb = 2\n"),
        (mutations.of_frames, mutations.framed(b'{"a": 1}\nrest', b"bytes")), (mutations.of_bytes, b"bytes 12 bytes"),
    ],
    ids=["json", "lines", "frames", "bytes"],
)  # fmt: skip
def test_mutations(mutate: Callable[[bytes, random.Random], bytes], data: bytes) -> None:
    """They accept any input, and their outputs differ."""
    made = [mutate(data, random.Random(seed)) for seed in range(300)]
    assert len(set(made)) > 100
    assert made == [mutate(data, random.Random(seed)) for seed in range(300)]
    for strange in (b"", b"\xff", b"[" * 5000, b"\0" * 9):
        for seed in range(50):
            assert isinstance(mutate(strange, random.Random(seed)), bytes)


def test_frames_are_what_was_framed() -> None:
    assert mutations.frames(mutations.framed(b"a", b"", b"bc")) == [b"a", b"", b"bc"]
    assert mutations.frames(mutations.framed(b"a") + b"\0\0\0\7x") == [b"a", b"\0\0\0\7x"]
    assert mutations.frames(b"\xff\xff\xff\xff") == [b"\xff\xff\xff\xff"]


def options(*names: str, **changed: object) -> dict[str, object]:
    usual = {"seconds": 1, "seed": 0, "corpus": "none", "found": "none", "input": []}
    return usual | dict.fromkeys(("list", "keep", "coverage"), False) | {"targets": names} | changed


def test_the_list_and_names_that_are_not_in_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert session.main(options(list=True)) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(targets())
    assert session.main(options("no-such\x1b")) == 2
    assert session.main(options("gguf", "waivers", input=["x"])) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert "\x1b" not in said


def test_without_a_guide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert runs.main(["waivers", "--seconds", "0.3", "--found", str(tmp_path / "found")]) == 0
    assert re.fullmatch(r"waivers: [1-9]\d* inputs in 0 s, nothing found\n", capsys.readouterr().out)
    assert not (tmp_path / "found").exists()


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"waiver")
    done = subprocess.run(
        [sys.executable, "-m", "tools.measure", "fuzz", "waivers", "--input", str(tmp_path / "input")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "harness"), str(ROOT)])},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'input'}: nothing wrong\n"), done.stderr
