"""Files that a command line names: inputs are regular files of limited size, outputs never take an input's place."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_verify.cli import main
from gguf_verify.cli.command import commands
from gguf_verify.cli.files import output
from gguf_verify.report.writer import every_writer
from gguf_verify.support.errors import UsageError
from gguf_verify.support.files import inputs_kept, read_input, write_output
from tests.support.tools import FIXTURES, ROOT, assert_one_line, command_here

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
AUDIT = [sys.executable, "-m", "gguf_verify", "audit", "--no-llama", str(Q4_0)]


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "k.py"
    path.write_text((ROOT / "examples" / "numpy_q4_0.py").read_text())
    return path


def test_what_is_read_is_a_regular_file_of_limited_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for flags in (["-f"], ["--waivers"]):
        for path in (tmp_path / "pipe", Path("/dev/zero")):
            assert_one_line(command_here(Q4_0, *flags, path), 2, "it is not a regular file")
    assert_one_line(command_here("nightly", "run", tmp_path / "pipe"), 2, "it is not a regular file")
    text = command_here("cost", Q4_0, "--source", Q4_0, "--text", tmp_path / "pipe")
    assert_one_line(text, 2, "cannot read the text pipe: it is not a regular file")
    (tmp_path / "large").write_bytes(b"a" * 101)
    assert len(read_input(tmp_path / "large", "prompt", 101)) == 101
    with pytest.raises(UsageError, match="more than 100 bytes"):
        read_input(tmp_path / "large", "prompt", 100)


@pytest.mark.parametrize("flag", ["-o", "--certificate"])
def test_no_report_takes_the_place_of_the_kernel(kernel: Path, flag: str) -> None:
    """Nor of its declaration, nor of a library that is loaded; by whatever name, also before anything runs."""
    source = kernel.read_bytes()
    declared, library = kernel.with_suffix(".toml"), kernel.with_name("more.so")
    declared.write_text("")
    library.write_text("")
    named = kernel.with_name("other-name")
    named.hardlink_to(kernel)
    for path in (kernel, named, declared, library):
        asked = [Q4_0, "--kernel", f"{kernel}:gemm", "--load", library, flag, path]
        assert_one_line(command_here(*asked), 2, f"{flag}.* would overwrite {path.name}, which is an input")
    assert kernel.read_bytes() == source


def test_no_report_takes_the_place_of_what_the_kernel_reads(tmp_path: Path) -> None:
    """A header that no flag names is known once the kernel was opened."""
    text = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
    (tmp_path / "k.cu").write_text('#include "more.h"\n' + text)
    header = tmp_path / "more.h"
    header.write_text("// nothing\n")
    asked = ["kernel", f"{tmp_path / 'k.cu'}:gemm", "--type", "Q4_0", "--rungs", "blocks", "--seed", "0", "-N", "32"]
    done = command_here(*asked, "-K", "32", "--effort", "quick", "--json", header)
    assert header.read_text() == "// nothing\n"
    assert done.returncode == 3, done.stdout + done.stderr
    assert "more.h is not written: the kernel was built from it" in done.stderr


def test_an_output_is_whole_and_follows_no_link_that_waits_for_it(tmp_path: Path) -> None:
    path, victim = tmp_path / "out.json", tmp_path / "victim"
    victim.write_bytes(b"theirs")
    (tmp_path / ".out.json.part").symlink_to(victim)
    mask = os.umask(0o027)
    try:
        write_output(path, b"ours")
    finally:
        os.umask(mask)
    assert (path.read_bytes(), victim.read_bytes()) == (b"ours", b"theirs")
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    write_output(path, b"again")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"again", 0o600)
    (tmp_path / "link").symlink_to(victim)
    write_output(tmp_path / "link", b"through")
    assert victim.read_bytes() == b"through"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".out.json.part", "link", "out.json", "victim"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what commands read, each in a subfolder of its own or by its name."""
    for name in ("k.py", "p.txt", "w.toml", "source/model.safetensors", "build/libggml.so", "case/x.npy", "history.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("theirs")
    (tmp_path / "night.toml").write_text(f'models = ["{Q4_0}"]\nkernels = ["k.py:gemm"]\nhistory = "history.db"\n')
    return tmp_path


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("{model} -f p.txt -o", "p.txt"),
        ("{model} --waivers w.toml -o", "w.toml"),
        ("{model} --llama build -o", "build/libggml.so"),
        ("kernel k.py:gemm -o", "k.py"),
        ("audit {model} --source source -o", "source/model.safetensors"),
        ("judge case -o", "case/x.npy"),
        ("nightly run night.toml -o", "night.toml"),
        ("nightly run night.toml -o", "k.py"),
        ("nightly run night.toml -o", "history.db"),
        ("bisect {model} --good build --bad b -o", "build/libggml.so"),
        ("bisect {model} --good a --bad b --json p.txt -- -f", "p.txt"),
        ("bisect {model} --nvrtc --good 1 --bad 2 --json k.py -- --kernel=k.py:gemm -p", "k.py"),
    ],
)
def test_no_output_takes_the_place_of_an_input(
    folder: Path, command: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own name, and by links of both kinds."""
    monkeypatch.chdir(folder)
    words = command.format(model=Q4_0).split()
    assert main([*words, name]) == 2
    assert "which is an input" in capsys.readouterr().err
    assert (folder / name).read_text() == "theirs" or name == "night.toml"
    if words[-1] == "-o":
        (folder / "link.json").symlink_to(folder / name)
        assert main([*words, "link.json"]) == 2
        assert "link.json, which is an input" in capsys.readouterr().err


def test_every_report_is_an_output() -> None:
    """So it is compared with what the command line names."""
    flags = {flag for command in commands().values() for flag in written(command.parser())}
    assert flags >= {writer.flag for writer in every_writer() if writer.flag is not None} | {"-o", "--certificate"}


def written(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.type is output:
            yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from written(child)


def test_what_was_read_is_not_written(tmp_path: Path) -> None:
    """By any of its names, as long as the command runs that has read it."""
    path, named = tmp_path / "a.json", tmp_path / "b.json"
    path.write_bytes(b"theirs")
    named.hardlink_to(path)
    with inputs_kept():
        assert read_input(path, "prompt", 100) == b"theirs"
        for output_ in (path, named):
            with pytest.raises(OSError, match="it was read as an input"):
                write_output(output_, b"ours")
        write_output(tmp_path / "c.json", b"ours")
    assert path.read_bytes() == b"theirs"
    write_output(path, b"ours")
    assert path.read_bytes() == b"ours"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "r.json"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody reads it"):
        write_output(pipe, b"ours")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, b"ours")
    assert os.read(reader, 100) == b"ours"
    monkeypatch.setattr("gguf_verify.support.files._PIPE_LIMIT", 0.1)
    with pytest.raises(OSError, match="nobody read it"):
        write_output(pipe, b"x" * 10_000_000)
    os.close(reader)
    write_output(Path("/dev/null"), b"ours")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of other users")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "r.json"
    victim.write_bytes(b"theirs")
    link.symlink_to(victim)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(OSError, match="link of another user"):
        write_output(link, b"ours")
    assert victim.read_bytes() == b"theirs"


def test_no_definitions_take_the_place_of_a_header(tmp_path: Path) -> None:
    """What only a run knows to be an input, with `identify` too."""
    text = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
    (tmp_path / "k.cu").write_text('#include "more.h"\n' + text)
    header = tmp_path / "more.h"
    header.write_text("// nothing\n")
    sizes = ["--type", "Q4_0", "-N", "32", "-K", "32", "-M", "1", "--seed", "0"]
    done = command_here("identify", f"{tmp_path / 'k.cu'}:gemm", *sizes, "--json", header)
    assert header.read_text() == "// nothing\n"
    assert done.returncode in (1, 3, 5)
    assert "it was read as an input" in done.stderr


def run(command: list[str], **how: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, stderr=subprocess.PIPE, timeout=120, check=False, **how)  # type: ignore[call-overload]


@pytest.mark.parametrize("given", [AUDIT[3:], ["--help"], ["--version"]])
@pytest.mark.parametrize(("where", "said"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_what_cannot_be_written_is_no_success(given: list[str], where: str, said: str) -> None:
    done = run(["bash", "-c", f'exec "$0" "$@" {where}', *AUDIT[:3], *given])
    assert done.stderr.decode() == f"gguf-verify: cannot write to standard output: {said}\n"
    assert done.returncode == 3


def test_an_error_writes_nothing_to_standard_output() -> None:
    done = run(["bash", "-c", 'exec "$0" "$@" >/dev/full', *AUDIT[:3], "explain", "no-such-id"])
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    done = run(["bash", "-c", 'exec "$0" "$@" 2>&-', *AUDIT[:3], "explain", "no-such-id"], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_reader_that_stops_is_no_fault() -> None:
    """The reader of a pipe has seen enough."""
    line = '"$0" "$@" --help | head -c 0; exit "${PIPESTATUS[0]}"'
    done = run(["bash", "-c", line, *AUDIT[:3]])
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("limit", "said"),
    [("-n 12", "Too many open files (ulimit -n)"), ("-f 0", "File too large (ulimit -f)")],
)
def test_a_limit_of_the_process_is_one_line(tmp_path: Path, limit: str, said: str) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    script = f'ulimit {limit}; exec "$0" "$@"'
    done = run(["bash", "-c", script, *AUDIT, "--json", str(tmp_path / "a.json")], stdout=subprocess.DEVNULL, env=env)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 3, lines
    assert said in lines[-1]
    assert "internal error" not in done.stderr.decode()
    assert not [line for line in lines if not line.startswith("gguf-verify: ")]


@pytest.mark.parametrize("call", ["other-m", "other-m,m=0", "again,n=5", "quantizer"])
def test_a_call_without_its_size_is_refused(call: str) -> None:
    done = command_here(Q4_0, "--rungs", "layers", "--only-call", call)
    assert_one_line(done, 2, "has m=NUMBER; copy it from a report")


GIVES_COMMANDS = """
from gguf_verify import kernel


@kernel(formats=["Q4_0"], semantics="f32")
def gemm(weights, activations, shape):
    raise ValueError("x" * 60 + " ::stop-commands::hush " + "y" * 55 + " ::notice::VERIFIED " + "z" * 50 + " ##[group]")
"""


def test_words_of_a_kernel_are_no_commands_of_a_log(tmp_path: Path) -> None:
    """Wherever lines are wrapped; also in a file's name on standard error."""
    kernel = tmp_path / "k.py"
    kernel.write_text(GIVES_COMMANDS)
    asked = [Q4_0, "--kernel", f"{kernel}:gemm", "--rungs", "layers", "--tensor", "blk.0.attn_q", "--effort", "quick"]
    done = command_here(*asked, "--progress", "always", "--host", "cpu", "--seed", "1")
    said = done.stdout + done.stderr
    assert "x3a:stop-commands" in said
    assert not re.search(r"^\s*::|##\w*\[", said, re.MULTILINE)
