"""`gguf-verify new-kernel`: what it writes is right, whatever the type, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify import Options, verify
from gguf_verify.cli import kernel, main
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.foreign.template import SEMANTICS, Template
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.semantics.declared import declared
from tests.support.shown import last_line

#: Whether a definition of half activations exists: 2 bytes a value.
HALVES = declared("f32", takes="float16", output="float16").bytes_of(np.zeros((1, 32), np.float32)).shape == (1, 64)


def test_a_new_kernel_is_written_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is that of `gguf-verify kernel`, but for the number of probes."""
    whole = kernel.run
    monkeypatch.setattr(kernel, "run", lambda argv: whole([*argv, "--effort", "quick"]))
    monkeypatch.chdir(tmp_path)
    assert main(["new-kernel", "my.cu", "--host", "cpu"]) == 0
    captured = capsys.readouterr()
    assert "wrote q4_0.cuh, my.cu; now: gguf-verify kernel my.cu:gemm --host cpu" in captured.err
    assert last_line(captured.out).startswith("VERIFIED ON RANDOM DATA (NO MODEL) (quick) in")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["new-kernel", "my.cu", "--type", "Q8_0"]) == 2
    assert "my.cu exists and is not overwritten" in capsys.readouterr().err
    (tmp_path / "q8_0.cuh").write_text("mine")
    assert main(["new-kernel", "other.cu", "--type", "Q8_0"]) == 2
    assert "q8_0.cuh exists and is not overwritten" in capsys.readouterr().err
    assert not (tmp_path / "other.cu").exists()
    (tmp_path / "link.py").symlink_to("nowhere")
    assert main(["new-kernel", "link.py"]) == 2
    assert main(["new-kernel", "no/folder/my.cu"]) == 2
    assert "there is no folder no/folder to write into" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


def verified(folder: Path, kind: str, semantics: str, takes: str = "", output: str = "float32") -> None:
    files = Template.of(kind, semantics, takes, output).files(folder / "my.cu")
    for path, text in files.items():
        path.write_text(text)
    report = verify(Drawn(n=(33,)), f"{folder / 'my.cu'}:gemm", "cpu", options=Options(probes="brief", progress=False))
    report.raise_for_mismatch()


def test_a_template_with_tables(tmp_path: Path) -> None:
    verified(tmp_path, "IQ2_XS", "q8_1")


def test_a_template_that_quantizes_its_activations(tmp_path: Path) -> None:
    verified(tmp_path, "Q4_0", "q8_1", "float32")


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_template_of_every_type(kind: str, semantics: str, tmp_path: Path) -> None:
    verified(tmp_path, kind, semantics)


@pytest.mark.skipif(not HALVES, reason="no definition takes halves")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_templates_of_halves(dtype: str, tmp_path: Path) -> None:
    verified(tmp_path, "Q4_0", "f32", dtype, dtype)
