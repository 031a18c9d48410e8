"""Files that are passed to a process as descriptors: it reads the opened files, and cannot change them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from gguf_verify.gguf.mapped import Mapped
from gguf_verify.processes import guard, sandbox, syscalls
from gguf_verify.processes.child import Spawned
from gguf_verify.processes.given import Given
from gguf_verify.processes.sandbox import Confinement
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import CHECKOUT
from tests.support.needs import fault_of

KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=f"{kind}: {why}"))
    for kind, why in {"bubblewrap": fault_of("bubblewrap"), "landlock": fault_of("landlock"), "none": None}.items()
]  # fmt: skip
REFUSED = {"PermissionError", "OSError"}


class Reader:
    """A process that is given files, and the record of those files."""

    def __init__(self) -> None:
        variables = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "harness")])}
        self.child = Spawned("tests.support.attempts", environment=variables, confined=Confinement())
        self.given = Given()

    def says(self, expression: str) -> str:
        self.child.link.send_bytes(expression.encode())
        return self.child.link.recv_bytes().decode()

    def takes(self, *groups: Sequence[Mapped]) -> tuple[list[list[str]], str]:
        """The paths of the files there, and the result."""
        paths = self.given.give(*groups)
        self.child.link.send_bytes(f"take({self.given.announced()!r})".encode())
        self.given.hand_over(self.child.link)
        return paths, self.child.link.recv_bytes().decode()

    def reads(self, path: str) -> str:
        return self.says(f"Path({path!r}).read_text()")


@pytest.fixture(params=KINDS)
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    with sandbox.sandboxed(request.param):
        made = Reader()
        try:
            yield made
        finally:
            made.child.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def opened(stack: ExitStack, *paths: Path) -> list[Mapped]:
    files = [Mapped(path) for path in paths]
    for file in files:
        stack.callback(file.close)
    return files


def written(folder: Path, **texts: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def test_the_opened_file_is_read(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Files of one group lie side by side; where they lay, another file may be by now."""
    first, second = written(tmp_path / "a", one="1", two="2")
    files = opened(stack, first, second)
    first.rename(tmp_path / "elsewhere")
    written(tmp_path / "a", one="another")
    second.unlink()
    ((one, two),), _ = reader.takes(files)
    assert (reader.reads(one), reader.reads(two)) == ("'1'", "'2'")
    assert os.path.dirname(one) == os.path.dirname(two)
    assert [os.path.basename(path) for path in (one, two)] == ["one", "two"]


def test_files_of_one_name(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """In two groups of one message, and one after the other, which is let go of."""
    a, b, c = (opened(stack, *written(tmp_path / name, same=name)) for name in "abc")
    ((of_a,), (of_b,)), _ = reader.takes(a, b)
    assert (reader.reads(of_a), reader.reads(of_b)) == ("'a'", "'b'")
    ((of_b,), (of_c,)), _ = reader.takes(b, c)
    assert (reader.reads(of_b), reader.reads(of_c)) == ("'b'", "'c'")
    assert reader.reads(of_a) == "FileNotFoundError"
    before = reader.says("len(os.listdir('/proc/self/fd'))")
    for files in (a, b, c, a, b, c):
        ((path,),), _ = reader.takes(files)
    assert (path, reader.reads(path)) == (of_c, "'c'")
    assert int(reader.says("len(os.listdir('/proc/self/fd'))")) < int(before)


def test_a_file_that_was_changed_is_given_anew(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Also where the system calls it by the same number."""
    (path,) = written(tmp_path / "a", one="1")
    ((before,),), _ = reader.takes(opened(stack, path))
    path.write_text("22")
    os.utime(path, (1, 1))
    ((given,),), _ = reader.takes(opened(stack, path))
    assert (given == before, reader.reads(given)) == (False, "'22'")


def test_a_file_that_was_closed_is_no_hang(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Its descriptor may be another file's by then."""
    (file,) = opened(stack, *written(tmp_path / "a", one="1"))
    reader.given.give([file])
    file.close()
    with pytest.raises(EnvironmentFault, match="cannot pass files to another process"):
        reader.given.hand_over(reader.child.link)


@pytest.mark.skipif(
    guard.landlock_abi() < 3 or syscalls.filter_fault() is not None, reason="nothing keeps it from that here"
)
@pytest.mark.parametrize("reader", KINDS[:2], indirect=True)
def test_it_cannot_change_them(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """Its descriptors are for reading, and a file may be opened again through them."""
    (path,) = written(tmp_path / "a", one="1")
    path.chmod(0o644)
    before = path.stat()
    assert reader.says("only_read()") == "None"
    ((given,),), _ = reader.takes(opened(stack, path))
    handle = f"os.open({given!r}, os.O_RDONLY)"
    for call in (f"open({given!r}, 'r+b')", f"open({given!r}, 'ab')", f"open({given!r}, 'wb')",
                 f"os.truncate({given!r}, 0)", f"os.ftruncate({handle}, 0)", f"os.write({handle}, b'2')",
                 f"os.chmod({given!r}, 0o600)", f"os.fchmod({handle}, 0o600)", f"os.utime({given!r}, (1, 1))",
                 f"os.utime({handle}, (1, 1))", f"os.fchown({handle}, 0, 0)",
                 f"os.setxattr({handle}, 'user.x', b'1')"):  # fmt: skip
        assert reader.says(call) in REFUSED, call
    assert path.read_text() == "1"
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode, before.st_mtime_ns, before.st_ctime_ns
    )  # fmt: skip
    assert reader.reads(given) == "'1'"
    assert reader.says("Path('own').write_text('2')") == "1"


def test_many_files(reader: Reader, stack: ExitStack, tmp_path: Path) -> None:
    """More than one message of the system holds, and more than a process may have: then none, and it goes on."""
    files = opened(stack, *written(tmp_path / "a", **{f"f{i}": str(i) for i in range(450)}))
    (paths,), _ = reader.takes(files)
    assert [reader.reads(paths[i]) for i in (0, 199, 200, 449)] == ["'0'", "'199'", "'200'", "'449'"]
    reader.takes(files[:1])
    assert reader.says("resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))") == "None"
    assert reader.takes(files)[1] == "OSError"
    reader.given.forget()
    (few,), said = reader.takes(files[:2])
    assert (said, reader.reads(few[1])) == ("None", "'1'")


def test_file_names_in_messages(stack: ExitStack, tmp_path: Path) -> None:
    given = Given()
    ((one,), (two,)) = given.give(*(opened(stack, *written(tmp_path / name, m="")) for name in ("a", "b 'c'")))
    said = f"cannot read '{one}', nor {two.replace('/m', '/m2')}: given/77/m"
    assert given.named(said) == f"cannot read '{tmp_path}/a/m', nor {tmp_path}/b 'c'/m2: given/77/m"
    assert given.named(f"in /tmp/own/given-1/{one}") == f"in {tmp_path}/a/m"


def test_naming_is_linear_in_the_message(stack: ExitStack, tmp_path: Path) -> None:
    given = Given()
    given.give(opened(stack, *written(tmp_path, m="")))
    began = time.monotonic()
    for said in ("/" * 4_000_000, "/a" * 2_000_000, "given/" * 500_000):
        assert given.named(said) == said
    assert time.monotonic() - began < 20
