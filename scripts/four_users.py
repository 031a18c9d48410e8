"""Play four users from a fresh clone, with times: python scripts/four_users.py. See --help.

A kernel author, a maintainer with continuous integration, a publisher of models and a student follow the README and the
tutorials. Each step must give the result that its page promises, and the first verdicts must come in time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL, SOURCE = "fixtures/tiny-Q4_0.gguf", "fixtures/tiny-F16.gguf"
#: Largest number of lines in the first file for continuous integration.
MOST_CI_LINES = 10


class Broken(Exception):
    """A step did not give the result that its page promises."""


@dataclass(frozen=True)
class Step:
    """A user's step, and its time limit.

    Args:
        user: the user.
        does: the step in words.
        run: performs it; returns a short result. Raises Broken.
        limit: seconds; None for no limit.
    """

    user: str
    does: str
    run: Callable[[], str]
    limit: float | None = None


@dataclass(frozen=True)
class Done:
    """A step that was tried: its time, its result, and why it failed, if it did."""

    step: Step
    seconds: float
    told: str
    fault: str = ""


class Clone:
    """A fresh clone and the environment for gguf-verify.

    Args:
        folder: the clone's folder.
        environment: a virtual environment with the dependencies; None to make one by `make setup`.
    """

    def __init__(self, folder: Path, environment: Path | None) -> None:
        self.folder = folder
        self.environment = environment
        self._python = (environment or folder / ".venv") / "bin" / "python"

    def clone(self) -> str:
        self._run(["git", "clone", "--quiet", str(ROOT), str(self.folder)], ROOT, 0)
        return self._run(["git", "log", "-1", "--format=%h"], self.folder, 0).strip()

    def install(self) -> str:
        if self.environment is not None:
            return f"skipped: {self._python} has everything"
        self._run(["make", "setup", f"PYTHON={sys.executable}"], self.folder, 0)
        return "make setup"

    def path(self, name: str) -> Path:
        return self.folder / name

    def write(self, name: str, text: str) -> str:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)
        return name

    def verify(self, code: int, *arguments: str, words: Sequence[str] = ()) -> str:
        """Run gguf-verify, check its exit code and that its output contains `words`; returns the output."""
        out = self._run([str(self._python), "-m", "gguf_verify", *arguments], self.folder, code)
        for wanted in words:
            if wanted not in out:
                raise Broken(f"the output does not contain {wanted!r}")
        return out

    def action(self, code: int, **inputs: str) -> str:
        """Run the action's last step as a CI job would; returns the job's log and summary."""
        runner = Path(tempfile.mkdtemp(prefix="runner-", dir=self.folder.parent))
        program = runner / "gguf-verify"
        program.write_text(f'#!/bin/sh\nexec "{self._python}" -m gguf_verify "$@"\n')
        program.chmod(0o755)
        usual = {"COMMAND": "verify", "KERNEL": "", "ARGS": "", "FAIL_ON": "unverified"}
        files = {"GITHUB_OUTPUT": str(runner / "output"), "GITHUB_STEP_SUMMARY": str(runner / "summary.md")}
        given = {**files, "GGUF_VERIFY": str(program), "RUNNER_TEMP": str(runner), **usual, **inputs}
        log = self._run([str(self.path(".ci/action-run"))], self.folder, code, **given)
        return log + (runner / "summary.md").read_text()

    def _run(self, command: list[str], folder: Path, code: int, **variables: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "harness"), **variables}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != code:
            last = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise Broken(f"exit code {done.returncode} instead of {code}: {' | '.join(last)}")
        return done.stdout


def code_of(page: Path, language: str, holds: str) -> str:
    """Return the code block of a page that contains a text. Raises Broken."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        if holds in block:
            return str(block)
    raise Broken(f"{page.name} has no {language} block that contains {holds!r}")


def changed(text: str, old: str, new: str) -> str:
    """Replace `old` by `new`. Raises Broken if `old` does not occur."""
    if old not in text:
        raise Broken(f"there is no {old!r} to change")
    return text.replace(old, new)


def last_line(out: str) -> str:
    """Return the line of the verdict."""
    verdicts = [
        line for line in out.splitlines() if re.match(r"(VERIFIED|MISMATCH|CLEAN|WRONG|NOT EVERYTHING)\b", line)
    ]
    return verdicts[-1] if verdicts else ""


def readme_kernel(clone: Clone) -> str:
    """Return the kernel of the README, with its bug."""
    return code_of(clone.path("README.md"), "python", "def gemm")


def repaired_kernel(clone: Clone) -> str:
    """Return the kernel of the README, repaired as the README explains."""
    return changed(readme_kernel(clone), "np.stack(", "np.concatenate(")


def author(clone: Clone) -> Iterator[Step]:
    """Yield the author's steps: the kernel of the README, first with its bug."""

    def first() -> str:
        clone.write("my_kernel.py", readme_kernel(clone))
        arguments = (MODEL, "--kernel", "my_kernel.py:gemm", "--rungs", "layers")
        return last_line(clone.verify(1, *arguments, words=["neighbouring values"]))

    def repaired() -> str:
        clone.write("my_kernel.py", repaired_kernel(clone))
        return last_line(clone.verify(0, MODEL, "--kernel", "my_kernel.py:gemm"))

    def begins() -> str:
        return last_line(clone.verify(0, "new-kernel", "begin.cu", words=["VERIFIED ON RANDOM DATA (NO MODEL)"]))

    def breaks() -> str:
        text = changed(clone.path("begin.cu").read_text(), "row[b].unpack(s, codes)", "row[0].unpack(s, codes)")
        clone.write("begin.cu", text)
        words = ["DIAGNOSIS", "repeat with: gguf-verify kernel"]
        return last_line(clone.verify(1, "kernel", "begin.cu:gemm", words=words))

    yield Step("author", "writes a starter kernel: it passes, without a model", begins, 60)
    yield Step("author", "breaks it: detected without a model", breaks, 60)
    yield Step("author", "writes the README's kernel: the bug has a name", first, 300)
    yield Step("author", "repairs it: every rung, the whole probe plan", repaired)


def maintainer(clone: Clone) -> Iterator[Step]:
    """Yield the maintainer's steps: the first file of docs/ci.md, a broken kernel, its repair, a waiver."""

    def file() -> str:
        text = code_of(clone.path("docs/ci.md"), "yaml", "OWNER/gguf-verify@COMMIT")
        n = len(text.splitlines())
        if n > MOST_CI_LINES:
            raise Broken(f"the file has {n} lines; {MOST_CI_LINES} are promised")
        return f"{n} lines: {clone.write('.github/workflows/kernel.yml', text)}"

    def inputs(**more: str) -> dict[str, str]:
        text = clone.path(".github/workflows/kernel.yml").read_text()
        kernel = re.search(r"kernel: (\S+)", text)
        assert kernel is not None
        args = f"--rungs layers --effort quick -n 1 {more.pop('ARGS', '')}"
        return {"MODEL": MODEL, "KERNEL": kernel[1], "ARGS": args, **more}

    def red() -> str:
        clone.write("my_kernel.py", readme_kernel(clone))
        log = clone.action(1, **inputs())
        return f"{len(re.findall('^::error title=', log, re.MULTILINE))} annotations"

    def green() -> str:
        clone.write("my_kernel.py", repaired_kernel(clone))
        if "✅ Verified" not in clone.action(0, **inputs()):
            raise Broken("the summary does not say Verified")
        return "the summary says Verified"

    def waived() -> str:
        clone.write("my_kernel.py", readme_kernel(clone))
        clone.write("waivers.toml", '[[waiver]]\nrung = "layers"\nreason = "issue 42"\nuntil = 9999-12-31\n')
        found = re.search(
            r"Verified with [\d,]+ waived failures", clone.action(0, **inputs(ARGS="--waivers waivers.toml"))
        )
        if found is None:
            raise Broken("the summary does not report waived failures")
        return found[0]

    yield Step("maintainer", "copies the first file for continuous integration", file)
    yield Step("maintainer", "a pull request breaks the kernel: the job fails", red)
    yield Step("maintainer", "a pull request repairs it: the job passes", green)
    yield Step("maintainer", "a known mismatch is waived until a date", waived)


def publisher(clone: Clone) -> Iterator[Step]:
    """Yield the publisher's steps: audits of a good and a damaged file, and the costs for a model card."""

    def audit() -> str:
        return last_line(clone.verify(0, "audit", MODEL))

    def damaged() -> str:
        content = bytearray(clone.path(MODEL).read_bytes())
        content[-18 * 1000 : -18 * 1000 + 4096] = bytes([0xFF]) * 4096  # non-finite scales
        clone.path("damaged.gguf").write_bytes(content)
        return last_line(clone.verify(1, "audit", "damaged.gguf"))

    def card() -> str:
        clone.verify(0, "cost", MODEL, "--source", SOURCE, "-o", "card.md")
        found = re.search(r"\| perplexity \| ([\d.]+) \| ([\d.]+) \|", clone.path("card.md").read_text())
        if found is None:
            raise Broken("the card has no perplexity")
        return f"perplexity {found[1]}, of the source {found[2]}"

    yield Step("publisher", "audits a file", audit, 60)
    yield Step("publisher", "audits a damaged one", damaged)
    yield Step("publisher", "measures the costs for the model card", card)


def student(clone: Clone) -> Iterator[Step]:
    """Yield the steps of the student's tutorial."""

    def block() -> str:
        tensor = "blk.0.attn_q.weight"
        out = clone.verify(0, "audit", MODEL, "--tensor", tensor, "--row", "2", "--block", "1", words=["llama.cpp"])
        return f"{len(out.splitlines())} lines"

    def naive() -> str:
        return last_line(clone.verify(0, MODEL, "--kernel", "q8_1_naive", "--rungs", "blocks,layers"))

    def break_it() -> str:
        kernel = clone.path("examples/cuda_q4_0.cu").read_text()
        clone.write("mine.cu", changed(kernel, " - 8.0f * from_half(xb.s)", ""))
        arguments = (MODEL, "--kernel", "mine.cu:gemm", "--rungs", "layers")
        return last_line(clone.verify(1, *arguments, words=["offset is not applied"]))

    yield Step("student", "looks at one block", block)
    yield Step("student", "verifies the first kernel of the ladder", naive)
    yield Step("student", "breaks the example: the fault has a name", break_it)


USERS: dict[str, Callable[[Clone], Iterator[Step]]] = {
    "author": author, "maintainer": maintainer, "publisher": publisher, "student": student,
}  # fmt: skip


def play(steps: Sequence[Step], judge_times: bool, say: Callable[[str], object]) -> list[Done]:
    """Perform each step, even after one fails."""
    done = []
    for step in steps:
        start = time.perf_counter()
        try:
            told, fault = step.run(), ""
        except (Broken, OSError) as error:
            told, fault = "", str(error)
        seconds = time.perf_counter() - start
        if not fault and judge_times and step.limit is not None and not seconds <= step.limit:
            fault = f"took longer than {step.limit:g} s"
        done.append(Done(step, seconds, told, fault))
        say(line(done[-1]))
    return done


def line(done: Done) -> str:
    """Format one row of the table."""
    limit = "" if done.step.limit is None else f"≤ {done.step.limit:g}"
    state = "FAILED" if done.fault else "ok"
    return (
        f"{done.step.user:<11}{done.step.does:<50}{done.seconds:>8.1f} {limit:<6} {state:<7}{done.fault or done.told}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if every step gave the promised result in time, otherwise 1."""
    parser = argparse.ArgumentParser(description="Play four users of gguf-verify from a fresh clone, with times.")
    parser.add_argument("users", nargs="*", metavar="USER", help=f"users to play: {', '.join(USERS)} (default: all)")
    parser.add_argument(
        "--environment",
        type=Path,
        metavar="DIR",
        help="a virtual environment with the dependencies (default: made by `make setup`)",
    )
    parser.add_argument("--lenient", action="store_true", help="show times without checking limits")
    parser.add_argument("--keep", action="store_true", help="keep the clone")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.users if name not in USERS]:
        parser.error(f"unknown user {', '.join(unknown)}; known users: {', '.join(USERS)}")
    folder = Path(tempfile.mkdtemp(prefix="four-users-"))
    clone = Clone(folder / "clone", args.environment and args.environment.absolute())
    try:
        set_up = [Step("everybody", "clones", clone.clone), Step("everybody", "installs", clone.install)]
        chosen = [name for name in USERS if not args.users or name in args.users]
        print(f"{'user':<11}{'step':<50}{'seconds':>8} {'limit':<6} {'':<7}result", flush=True)
        say = lambda text: print(text, flush=True)  # noqa: E731
        done = play(set_up, not args.lenient, say)
        if not any(d.fault for d in done):
            done += play([step for name in chosen for step in USERS[name](clone)], not args.lenient, say)
    finally:
        if args.keep:
            print(f"kept: {clone.folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    faults = sum(bool(d.fault) for d in done)
    print(f"{len(done)} steps, {faults} failed, {sum(d.seconds for d in done):.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
