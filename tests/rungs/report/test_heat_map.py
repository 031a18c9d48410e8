"""Heat maps of runs: the map of a wrong kernel, and the option that requests it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from gguf_verify.cli import main
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.report.grid import of_run
from gguf_verify.report.writer import Kind
from gguf_verify.results.failures import MAX_HEX_BYTES
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.judging import activations_of
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.verification import verify
from tests.support.shown import json_of, text_of
from tests.support.tools import FIXTURES, altered_kernel, write_model

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
NAIVE = "gemm/q8_1/01_naive.cu"


def wrong_in(tmp_path: Path, old: str, new: str) -> Report:
    kernel = altered_kernel(tmp_path, "q8_1_naive", NAIVE, old, new)
    options = Options(probes="brief", prompt="The import statement", tensor="blk.[01].attn_[qk]", progress=False)
    return verify(Q4_0, kernel, rungs=["layers"], options=options)


def test_of_a_wrong_kernel(tmp_path: Path) -> None:
    report = wrong_in(tmp_path, "y[i] = acc", "y[i] = i % N == 37 && i / N > 2 ? 2.0f * acc : acc")
    made = json_of(Kind.RUN, report)["rungs"][0]["heat_map"]
    assert (made["tensor"], made["who"], made["n"]) == ("blk.0.attn_q.weight", "kernel", 256)
    wrong = np.array(made["wrong"])
    assert made["tokens_per_cell"] == 1
    assert wrong.shape == (made["m"], 64)
    assert wrong.sum() == made["m"] - 3
    assert (wrong[3:, 37 // made["rows_per_cell"]] == 1).all()
    assert ((np.array(made["utilisation"]) > 1) == (wrong > 0)).all()
    shown = text_of(Kind.RUN, report).splitlines()
    start = next(i for i, line in enumerate(shown) if "utilisation of blk.0.attn_q.weight, kernel" in line)
    lines = [line[2:] for line in shown[start:]]
    assert [lines[2].split()[1], lines[3].split()[1]] == ["0", "3"]  # of lines that look the same the first
    assert set(lines[2].split()[2]) == {"."}
    assert lines[3].split()[2].strip(".").isdigit()
    first, second = of_run(report)
    assert first.title.startswith("blk.0.attn_q.weight, kernel")
    assert second.lines == ("blk.0", "blk.1")
    assert all(cell.wrong for line in second.cells for cell in line)


def test_of_a_kernel_with_tiles(tmp_path: Path) -> None:
    """Of a wrong tile the map has the borders and the frame; its blocks have the activations that they met, and the
    rungs have the times of their stages."""
    old = "y[(m0 + token) * N + n0 + row] = acc;"
    new = old.replace("acc", "n0 == 64 ? 2.0f * acc : acc")
    kernel = altered_kernel(tmp_path, "q8_1_tiled", "gemm/q8_1/02_tiled.cu", old, new)
    options = Options(probes="brief", prompt="The import statement", tensor="blk.0.attn_q", progress=False)
    report = verify(Q4_0, kernel, rungs=["blocks", "layers"], options=options)
    shown = of_run(report)[0]
    assert shown.tile == (16, 16)
    (region,) = shown.regions
    assert (region.left * shown.step[1], (region.right + 1) * shown.step[1]) == (64, 80)
    assert (region.top, region.bottom) == (0, len(shown.lines) - 1)
    of_blocks = [f for f in report.rungs[0].failures if f.block is not None]
    assert of_blocks
    for failure in of_blocks:
        assert failure.activation_type == "Q8_1"
        assert len(failure.activation_hex) == 2 * Q8_1.block_bytes
        weights, met = (
            Q.decode(np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(1, -1)).astype(np.float64).ravel()
            for Q, digits in ((FORMATS["Q4_0"], failure.block_hex), (Q8_1, failure.activation_hex))
        )
        # the product of the two blocks, but for the rounding of s = Σ x, which the definition takes for the offset
        assert float(weights @ met) == pytest.approx(failure.expected, abs=0.02 * float(abs(weights) @ abs(met)))
    for rung in report.rungs:
        assert {"llama.cpp", "compile", "upload", "quantize", "launch", "download", "exact product", "judging"} <= {
            *rung.stages
        }
        assert sum(rung.stages.values()) <= rung.seconds
    again = msgspec.convert(json_of(Kind.RUN, report), Report, strict=False)
    assert again.rungs[1].stages == report.rungs[1].stages


@pytest.mark.parametrize(("kind", "block", "first", "n"), [("Q4_0", 3, 3, 1), ("Q4_K", 1, 8, 8), ("Q8_0", 0, 0, 1)])
def test_activations_that_a_block_meets(kind: str, block: int, first: int, n: int) -> None:
    tensor: Any = SimpleNamespace(type=SimpleNamespace(weights=FORMATS[kind]))
    x = np.arange(16 * 36, dtype=np.uint32).astype(np.uint8)
    found = activations_of(tensor, SEMANTICS["q8_1"], x, block)
    assert found == ("Q8_1", x[36 * first : 36 * (first + n)].tobytes().hex())
    floats = np.arange(512, dtype=np.float32).view(np.uint8)
    size = FORMATS[kind].block_size
    room = min(size, MAX_HEX_BYTES // 4)
    assert activations_of(tensor, SEMANTICS["f32"], floats, block) == (
        "F32", np.arange(block * size, block * size + room, dtype=np.float32).tobytes().hex()
    )  # fmt: skip
    assert activations_of(tensor, SEMANTICS["q8_1"], x, 1000) == ("", None)
    kept = activations_of(tensor, SEMANTICS["q8_k_cpu"], np.zeros(2 * 292, np.uint8), block)
    assert kept == ("Q8_K", bytes(292).hex()), "a block of 256 is kept whole, for each of its slices"


def test_the_same_output_is_shown_once(tmp_path: Path) -> None:
    report = wrong_in(tmp_path, "y[i] = acc", "y[i] = i % N == 37 ? 2.0f * acc : acc")
    assert len(report.rungs[0].failures) == 20
    text = text_of(Kind.RUN, report, detail=2)
    rest, _ = text.split("\nrung    verdict ")
    shown = [line for line in rest.splitlines() if line.startswith("FAILED")]
    assert 1 <= len(shown) < 10
    assert text.count("\nFAILED") == len(shown) + 1  # the first stands by itself
    assert len({re.sub(".*: (blk[^:]*).*", r"\1", line) for line in shown}) == len(shown)
    assert re.search(r"… [0-9]+ of [0-9,]+ failures are shown; [0-9]+ more are of the same outputs", rest)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        str(Q4_0),
        "--effort",
        "quick",
        "--host",
        "cpu",
        "-p",
        "The",
        "-n",
        "1",
        "--rungs",
        "layers",
        "--tensor",
        "attn_[qk]",
    ]
    drawn = tmp_path / "heat-map.svg"
    assert main([*arguments, "-o", str(drawn)]) == 0
    root = ElementTree.parse(drawn).getroot()
    cells = [e.text or "" for e in root.findall(".//{*}rect/{*}title")]
    assert len(cells) == 6
    assert all(re.fullmatch(r"blk\.[0-2] attn_[qk]: [0-9.e-]+", c) for c in cells)
    arguments[-1] = "blk.0.attn_k"
    assert main([*arguments, "-o", str(tmp_path / "heat-map.png"), "-o", str(tmp_path / "r.json")]) == 0
    assert (tmp_path / "heat-map.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "r.json").read_text())["rungs"][0]["heat_map"] is None
    (tmp_path / "full-heat-map.svg").symlink_to("/dev/full")
    capsys.readouterr()
    assert main([*arguments, "-o", str(tmp_path / "full-heat-map.svg")]) == 3
    captured = capsys.readouterr()
    assert "VERIFIED" in captured.out
    assert captured.err.startswith("gguf-verify: cannot write ")
    assert len(captured.err.splitlines()) == 1


def test_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp cannot run such a model: the report says that there is no picture, and the verdict stands."""
    path = write_model(tmp_path / "none.gguf", {"w": (np.ones((4, 18), np.uint8), "Q4_0")})
    drawn = tmp_path / "heat-map.svg"
    assert main([str(path), "--effort", "quick", "--host", "cpu", "--rungs", "layers", "-o", str(drawn)]) == 5
    assert capsys.readouterr().err == "gguf-verify: no heat map: the layers rung judged nothing\n"
    assert not drawn.exists()
