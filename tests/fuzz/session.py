"""The command `python -m tools.measure fuzz`: runs each target in a process of its own and prints the findings.

python -m tests.fuzz.session OPTIONS      the options of `tools.measure.fuzz` as JSON
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gguf_verify.support.errors import EXIT_MISMATCH, EXIT_USAGE, EXIT_VERIFIED
from tests.fuzz.target import Target, targets

#: MB that a process may take; and seconds after which an input is called a hang.
MEMORY, HANG = 2048, 20


def main(options: dict[str, Any]) -> int:
    """Returns the exit code."""
    known = targets()
    if unknown := [name for name in options["targets"] if name not in known]:
        print(f"no target is called {unknown[0][:60]!a}; there are: {', '.join(known)}", file=sys.stderr)
        return EXIT_USAGE
    chosen = [known[name] for name in options["targets"]] or list(known.values())
    if options["list"]:
        for target in chosen:
            size = sum(path.stat().st_size for path in target.kept)
            print(f"{target.name:16} {target.takes}; {len(target.kept)} inputs kept, {size:,} bytes")
        return EXIT_VERIFIED
    if options["input"]:
        if len(chosen) != 1:
            print("--input needs the name of one target", file=sys.stderr)
            return EXIT_USAGE
        return _child("runs", chosen[0].name, *options["input"]).wait()
    if options["keep"]:
        return _child("lines", "keep", options["corpus"], *(t.name for t in chosen)).wait()
    if options["coverage"]:
        return _coverage(chosen, options["corpus"])
    return _fuzz(chosen, options)


def _child(module: str, *arguments: object, **pipes: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.fuzz.{module}", *map(str, arguments)], text=True, errors="replace", **pipes
    )


def _coverage(chosen: list[Target], corpus: str) -> int:
    names = [target.name for target in chosen if target.covered]
    child = _child("lines", "report", corpus, *names, stdout=subprocess.PIPE)
    said, _ = child.communicate()
    if child.returncode:
        return int(child.returncode)
    print("| target | module | inputs | lines | branches | lines that no input reaches |\n|---|---|---|---|---|---|")
    for row in json.loads(said):
        missing = ", ".join(map(str, row["missing"])) or "none"
        print(
            f"| {row['target']} | {row['module']} | {row['inputs']:,} | {row['lines']:.1f} % | {row['branches']:.1f} % "
            f"| {missing} |"
        )
    return EXIT_VERIFIED


def _fuzz(chosen: list[Target], options: dict[str, Any]) -> int:
    by_guide = importlib.util.find_spec("atheris") is not None
    if not by_guide:
        print("atheris is not installed (pip install atheris), so nothing guides the mutations", file=sys.stderr)
    found: list[str] = []
    share = options["seconds"] / sum(target.share for target in chosen)
    for target in chosen:
        seconds = max(1, round(share * target.share))
        run = _guided if by_guide else _unguided
        found += run(target, seconds, options)
    print(f"found: {len(found)}" if found else f"nothing found in {len(chosen)} targets")
    return EXIT_MISMATCH if found else EXIT_VERIFIED


def _unguided(target: Target, seconds: int, options: dict[str, Any]) -> list[str]:
    child = _child("runs", target.name, "--seconds", seconds, "--found", options["found"])
    return [target.name] if child.wait() else []


def _guided(target: Target, seconds: int, options: dict[str, Any]) -> list[str]:
    """Fuzz in a child, which libFuzzer ends."""
    corpus, kept = Path(options["corpus"], target.name), Path(options["found"])
    for folder in (corpus, kept):
        folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=_memory()))
    start = time.monotonic()
    covered = executed = "?"
    found: list[str] = []
    last: list[str] = []
    child = _child(
        "guided", target.name, scratch, corpus, f"-max_total_time={seconds}", f"-timeout={HANG}",
        f"-rss_limit_mb={MEMORY}", f"-max_len={target.largest}", f"-artifact_prefix={kept}/{target.name}-",
        f"-seed={options['seed']}", "-print_final_stats=1", "-reload=0", "-verbosity=1", stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stderr is not None
        for line in child.stderr:
            if not re.match(r"#\d+\s|INFO|stat::|Done ", line):
                last = [*last[-60:], line]
            covered = (re.findall(r"cov: (\d+)", line) or [covered])[0]
            executed = (re.findall(r"number_of_executed_units: (\d+)", line) or [executed])[0]
            found += re.findall(r"Test unit written to (.+)", line)
        code = child.wait()
    finally:
        child.kill()
        shutil.rmtree(scratch, ignore_errors=True)
    print(
        f"{target.name}: {executed} inputs in {time.monotonic() - start:.0f} s, {covered} branches, "
        f"{sum(1 for _ in corpus.iterdir())} inputs in {corpus}", flush=True,
    )  # fmt: skip
    if found or code:
        sys.stderr.writelines(last)
    for path in found:
        print(f"found; to repeat it: python -m tools.measure fuzz {target.name} --input {path}", flush=True)
    if code and not found:
        print(f"{target.name}: the fuzzer itself ended with exit code {code}", flush=True)
    return found or ([target.name] if code else [])


def _memory() -> Path | None:
    """A folder in memory, where there is one: every input is written to a file."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
