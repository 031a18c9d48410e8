"""A file that changes between two rungs is not verified under the digest that it had."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from gguf_verify.verification.climb import Event, RungEnds
from tests.support.shown import json_of, text_of, written
from tests.support.tools import FIXTURES, split_model

SAID = "a file was changed while it was verified"
TENSOR = "blk.0.attn_q.weight"


def tiny(folder: Path) -> Path:
    return Path(shutil.copy(FIXTURES / "tiny-Q4_0.gguf", folder / "m.gguf"))


def last_byte(path: Path) -> int:
    """The offset of the last byte of a tensor's codes."""
    with open_model(path) as model:
        tensor = model.tensors[TENSOR]
        return tensor.offset + tensor.nbytes - 1


def verified(path: Path, after: str, change: Callable[[], object], rungs: list[str]) -> Report:
    """A run during which the file changes after a rung."""

    def told(event: Event) -> None:
        if isinstance(event, RungEnds) and event.result.name == after:
            change()

    options = Options(prompt="Once", n_predict=1, tensor=TENSOR, threads=2, progress=False, probes="brief")
    return verify(path, "q8_1_dp4a", CpuHost(2), rungs, options, told=told, command="gguf-verify m.gguf")


def restored(path: Path, write: Callable[[], object]) -> None:
    """Write, and set the times back, as programs that synchronise folders do."""
    before = path.stat()
    write()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def flipped(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))


def there_and_back(path: Path, at: int) -> None:
    """Whoever reads the file in between sees other bytes."""
    flipped(path, at)
    flipped(path, at)


def replaced(path: Path) -> None:
    other = Path(shutil.copy(path, path.with_name("other")))
    flipped(other, last_byte(path))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a code": lambda path: restored(path, lambda: flipped(path, last_byte(path))),
    "a code, and back": lambda path: restored(path, lambda: there_and_back(path, last_byte(path))),
    "replaced": replaced,
    "cut": lambda path: os.truncate(path, 1000),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_bytes_rung(change: str, tmp_path: Path) -> None:
    path = tiny(tmp_path)
    report = verified(path, "bytes", lambda: CHANGES[change](path), ["bytes", "blocks", "layers"])
    assert (report.exit_code, report.verdict) == (3, "broken off")
    assert report.changed == "m.gguf was written to, cut or replaced"
    assert [rung.name for rung in report.rungs] == ["bytes", "blocks"]  # what comes later need not be tried
    shown = [text_of(Kind.RUN, report), str(written("--html", Kind.RUN, report))]
    assert [page.lower().count(SAID) for page in shown] == [1, 1]
    assert f"BROKEN OFF: {SAID}: m.gguf was written to, cut or replaced\n" in shown[0]
    made = json_of(Kind.RUN, report)
    assert (made["verdict"], made["exit_code"], made["changed"]) == ("broken off", 3, report.changed)


def test_a_change_through_a_mapping(tmp_path: Path) -> None:
    """Writes to pages that are dirty already leave the times of most file systems as they are."""
    path = tiny(tmp_path)
    at = last_byte(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:

        def write(by: int) -> None:
            mapped[at] ^= by

        write(0)
        report = verified(path, "bytes", lambda: write(1), ["bytes", "blocks"])
    assert report.exit_code == 3
    assert report.changed is not None
    assert report.changed.startswith("m.gguf ")
    assert text_of(Kind.RUN, report).count(SAID) == 1


def test_only_the_content_tells(tmp_path: Path) -> None:
    """The digest finds what the inode does not tell."""
    path = tiny(tmp_path)
    with open_model(path) as model:
        before = model.sha256()
        assert model.altered() is None
        flipped(path, last_byte(path))
        for part in model.parts:  # as if the file system had kept the times
            now = path.stat()
            part.mapped._state = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        assert not model.changed
        said = model.altered()
    with open_model(path) as model:
        assert model.sha256() != before
        assert said == f"m.gguf has the SHA-256 {model.sha256()[0]} now"


def test_a_part_of_a_split_model(tmp_path: Path) -> None:
    paths = split_model(FIXTURES / "tiny-Q4_0.gguf", tmp_path, 12)
    report = verified(paths[0], "bytes", lambda: os.utime(paths[2]), ["bytes"])
    assert (report.exit_code, report.changed) == (3, f"{paths[2].name} was written to, cut or replaced")


def test_a_failure_of_a_file_that_changes_is_none(tmp_path: Path) -> None:
    """What was wrong need not be wrong in the file that has the digest."""
    path = tiny(tmp_path)

    def told(event: Event) -> None:
        if isinstance(event, RungEnds):
            flipped(path, last_byte(path))
            event.result.n_failures = 1

    options = Options(tensor=TENSOR, progress=False, probes="brief")
    report = verify(path, "q8_1_dp4a", CpuHost(1), ["bytes"], options, told=told)
    assert (report.n_failures, report.exit_code) == (1, 3)
