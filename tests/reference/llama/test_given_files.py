"""Model files are passed to llama.cpp and to the readers as descriptors: they have no names of this machine, and the
opened bytes are read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_verify.audit.readers import Readers
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.origin import Origin
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.processes import sandbox
from gguf_verify.support.errors import NoSuchFile
from tests.support.needs import fault_of
from tests.support.tools import FIXTURES, split_model

Q4_0, Q5_1 = FIXTURES / "tiny-Q4_0.gguf", FIXTURES / "tiny-Q5_1.gguf"
KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=f"{kind}: {why}"))
    for kind, why in {"bubblewrap": fault_of("bubblewrap"), "landlock": fault_of("landlock"), "none": None}.items()
]  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    with sandbox.sandboxed(request.param):
        yield request.param


@pytest.fixture
def llama(kind: str) -> Iterator[Llama]:
    with Llama() as process:
        yield process


def replaced(folder: Path) -> None:
    """Move a model's folder away, and put files that are no models at the old names."""
    shutil.move(folder, folder.with_name("moved"))
    folder.mkdir()
    for path in folder.with_name("moved").iterdir():
        (folder / path.name).write_bytes(b"no model")


def test_what_was_opened_is_what_is_loaded(llama: Llama, tmp_path: Path) -> None:
    """Of a model in parts, too, which llama.cpp finds by their names."""
    folder = tmp_path / "models"
    folder.mkdir()
    first, *_ = split_model(Q4_0, folder, 12)
    with open_model(Q4_0) as whole, open_model(first) as model:
        replaced(folder)
        opened = llama.model.open(model, 1)
        llama.model.make_context(8)
        logits = llama.model.evaluate([1, 2, 3]).logits
        assert llama.model.open(whole, 1) == opened
        llama.model.make_context(8)
        assert (llama.model.evaluate([1, 2, 3]).logits == logits).all()


def test_what_was_opened_is_what_is_compared_with_its_source(llama: Llama, tmp_path: Path) -> None:
    """Files of one name, one after the other."""
    for name, source in (("a", Q4_0), ("b", Q5_1)):
        (tmp_path / name).mkdir()
        shutil.copy(source, tmp_path / name / "model.gguf")
    with open_model(tmp_path / "a" / "model.gguf") as a, open_model(tmp_path / "b" / "model.gguf") as b:
        replaced(tmp_path / "a")
        for model in (a, b, a):
            tensor = model.tensors["blk.0.attn_q.weight"]
            assert llama.files.requantize(tensor, Origin.of(tensor)).differing == 0


def test_what_was_opened_is_what_the_readers_read(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    first, *_ = split_model(Q4_0, folder, 12)
    with open_model(first) as model, Readers() as readers:
        replaced(folder)
        for reading, part in zip(readers.read_model(model), model.parts, strict=True):
            assert [r.verdict for r in reading] == ["accepted", "accepted"]
            assert all(len(r.tensors) == len(part.tensors) for r in reading)
        assert readers.read_model(model)[0][1].loads


def test_a_path_stands_for_the_parts_that_lie_beside_it(llama: Llama, tmp_path: Path) -> None:
    """llama.cpp's words name the user's files."""
    first, second, third = split_model(Q4_0, tmp_path, 12)
    assert llama.model.open(first, 1) == llama.model.open(Q4_0, 1)
    with pytest.raises(LlamaRefused, match="split"):
        llama.model.open(third, 1)
    second.unlink()
    with pytest.raises(LlamaRefused) as refused:
        llama.model.open(first, 1)
    assert str(second) in str(refused.value)
    assert "given/" not in str(refused.value)
    with pytest.raises(NoSuchFile):
        llama.model.open(second, 1)


def test_a_model_in_parts_is_quantized(llama: Llama, tmp_path: Path) -> None:
    """The target lies in a folder of the user's, in which the process has one of its own meanwhile."""
    first, *_ = split_model(FIXTURES / "tiny-F16.gguf", tmp_path, 12)
    llama.quantize_file(first, tmp_path / "made.gguf", 2, False)
    llama.quantize_file(FIXTURES / "tiny-F16.gguf", tmp_path / "same.gguf", 2, False)
    with open_model(tmp_path / "made.gguf") as made, open_model(tmp_path / "same.gguf") as same:
        assert made.tensors.keys() == same.tensors.keys()
        assert all(bytes(made.tensors[name].raw) == bytes(t.raw) for name, t in same.tensors.items())
    assert not list(tmp_path.glob(".*"))
