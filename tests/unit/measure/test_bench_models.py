"""Random models of the benchmarks: their files, shapes and weights."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_verify.gguf.model import open_model
from gguf_verify.support.errors import EnvironmentFault, UsageError
from tools.measure.bench import models
from tools.measure.bench.models import FILES, SHAPES, RandomModel, Shape, model_file, type_of
from tools.measure.inputs import decoded, rows_of

TINY = Shape(layers=1, width=256, ff=512, heads=4, kv_heads=2, vocab=300)


@pytest.mark.parametrize("kind", FILES)
def test_weights_keep_the_size_of_activations(kind: str, tmp_path: Path) -> None:
    """The variance of a weight is 1/K, so a row times activations of size 1 has size 1."""
    with model_file(tmp_path, RandomModel(TINY, kind)) as path, open_model(path) as model:
        for name, n, k in TINY.matrices:
            tensor = model.tensors[name]
            assert tensor.type.name == type_of(kind, name, 1).name
            assert (tensor.n_rows, tensor.k) == (n, k)
            weights = decoded(tensor.type.weights, rows_of(tensor)).astype(np.float64) * k**0.5
            assert weights.std() == pytest.approx(1, abs=0.15), name
            assert abs(weights.mean()) < 0.2, name
            assert len(np.unique(rows_of(tensor), axis=0)) == n  # no row is there twice
        norm = model.tensors["blk.0.ffn_norm.weight"]
        assert (np.array(norm.raw).view(np.float32) == 1).all()


def test_a_model_does_not_depend_on_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread or several, kept or not; another seed gives another one."""
    made = {}
    for threads in (1, 3):
        monkeypatch.setattr(models, "cores", lambda threads=threads: threads)
        with model_file(tmp_path / f"{threads}", RandomModel(TINY, "Q4_K_M")) as path:
            made[threads] = path.read_bytes()
    assert made[1] == made[3]
    monkeypatch.setattr(models, "_PIECE", 1000)  # pieces of some rows
    monkeypatch.setattr(models, "_POOL", 7)  # of which codes repeat
    with model_file(None, RandomModel(TINY, "Q4_K_M", seed=1)) as path:
        assert len(path.read_bytes()) == len(made[1])
        assert path.read_bytes() != made[1]
        with open_model(path) as model:
            assert np.array(model.tensors["blk.0.ffn_down.weight"].raw).any()
    assert not path.exists()


def test_a_kept_model_is_used_again(tmp_path: Path) -> None:
    with model_file(tmp_path, RandomModel(TINY, "Q8_0")) as path:
        path.write_bytes(b"kept")
    with model_file(tmp_path, RandomModel(TINY, "Q8_0")) as path:
        assert path.read_bytes() == b"kept"
    with model_file(tmp_path, RandomModel(replace(TINY, vocab=301), "Q8_0")) as path:
        assert path.read_bytes() != b"kept"


def test_a_full_disk_is_detected_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RandomModel(SHAPES["70B"], "Q4_K_M")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40_000_000_000))
    wanted = re.escape(f"{tmp_path} has 40.0 GB free, and the model needs 42.")
    with pytest.raises(EnvironmentFault, match=wanted), model_file(tmp_path, model):
        pass
    assert not list(tmp_path.iterdir())


def test_unfinished_models_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", broken)
    said = pytest.raises(EnvironmentFault, match="cannot be written: No space left")
    with said, model_file(tmp_path, RandomModel(TINY, "Q4_0")):
        pass
    assert not list(tmp_path.iterdir())


def test_another_width_keeps_proportions() -> None:
    base = SHAPES["8B"]
    assert base.wide(4096) == base
    assert base.wide(8192) == replace(base, width=8192, ff=28672, heads=64, kv_heads=16)
    for shape in SHAPES.values():
        for width in (256, 512, 2048, 3072, 5120):
            wide = shape.wide(width)
            assert wide.heads % wide.kv_heads == 0
            assert wide.ff % 256 == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 0}, "--layers 0: it must be between 1 and"),
        ({"vocab": 258}, "--vocab 258: it must be between 259"),
        ({"width": 250}, "a width of 250 is not 4 heads of an even size"),
        ({"kv_heads": 3}, "these are no multiple of 3 heads of keys"),
        ({"ff": 520}, "rows of 520 values are no whole blocks of Q4_0, which have 32"),
    ],
)
def test_impossible_shapes(change: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        RandomModel(replace(TINY, **change), "Q4_0")
