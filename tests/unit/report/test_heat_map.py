"""Heat maps: no wrong cell is lost, every reader can read them, and a file that cannot be written is said at once."""

from __future__ import annotations

import io
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.cli import main
from gguf_verify.cli.common import shows_blocks
from gguf_verify.report import heat_map
from gguf_verify.report.heat_map import Cell, Grid, as_text, grids, of_gemm, of_layers, png, svg
from gguf_verify.results import OutputMap, RungResult
from tests.support.records import gemm
from tests.support.tools import FIXTURES

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


def made(ratio: np.ndarray, wrong: np.ndarray, rows: int = 1, tokens: int = 1) -> Grid:
    """The map of a GEMM with these cells."""
    m, n = ratio.shape
    return of_gemm(
        OutputMap(
            tensor="w", where="w", who="kernel", m=m * tokens, n=n * rows, rows_per_cell=rows, tokens_per_cell=tokens,
            utilisation=ratio.tolist(), wrong=wrong.astype(int).tolist(),
        )
    )  # fmt: skip


def mixed() -> Grid:
    """Right cells of every size, wrong ones, one that is not finite."""
    rng = np.random.default_rng(0)
    ratio = 10 ** rng.uniform(-5, 0, (16, 64))
    ratio[3, 5], ratio[3, 6], ratio[15, 63], ratio[9, 0] = 20, 3e7, np.inf, 0.5
    wrong = ratio > 1
    wrong[9, 0] = True  # in its bits
    return made(ratio, wrong, rows=4, tokens=2)


def test_text_loses_no_wrong_cell() -> None:
    for blocks in (False, True):
        lines = as_text(mixed(), blocks)
        assert len(lines) <= 15
        right = "·" if blocks else "."
        at = lines[2].index(right)
        cells = [line[at:] for line in lines[2:-1]]
        assert all(line.startswith("token ") for line in lines[2:-1])
        # two of the map's lines are one here
        labelled = {int(line[6:at]): line[at:] for line in lines[2:-1]}
        assert labelled[4][5:7] == ("▒█" if blocks else "17")
        assert labelled[28][63] == "#"
        assert labelled[16][0] == "x"
        assert sum(c not in right for line in cells for c in line) == 4
        assert lines[-1].count(";") == (4 if blocks else 3)
        assert "right" in lines[-1]
    for line in as_text(mixed())[1:]:
        assert line.replace("×", "x").replace("…", ".").isascii()


def test_text_is_aligned() -> None:
    lines = as_text(mixed())
    at = lines[2].index(".")
    assert lines[0].startswith("utilisation of w, kernel: 32 tokens × 256 rows, a cell 2 tokens × 4 rows")
    assert lines[1].startswith("row ")
    for number in re.finditer(r"[0-9]+", lines[1]):
        assert int(number[0]) == 4 * (number.start() - at)
    assert [int(n) for n in re.findall(r"[0-9]+", lines[1])] == [32 * i for i in range(8)]


def test_lines_that_look_the_same_are_one() -> None:
    ratio = np.full((8, 8), 0.1)
    ratio[5:] = 50
    lines = as_text(made(ratio, ratio > 1))
    assert [line.split() for line in lines[2:-1]] == [["token", "0", "........"], ["token", "5", "11111111"]]
    assert lines[-1] == ". right; 1 over it by that power of 10"


def test_svg_tells_each_cell() -> None:
    drawn = svg([mixed()])
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img"
    assert "32 tokens × 256 rows" in (root.get("aria-label") or "")
    assert (root[0].tag.rpartition("}")[2], root[0].text) == ("title", root.get("aria-label"))
    titled = [rect for rect in root.findall(".//{*}rect") if len(rect)]
    assert len(titled) == 16 * 64
    said = {rect[0].text: rect for rect in titled}
    assert "token 6, row 20: 20, 1 failure" in said
    assert "token 30, row 252: inf, 1 failure" in said
    assert sum("failure" in key for key in said) == 4
    assert len(list(root.findall(".//{*}path"))) == 4 + 1  # the crosses, and the legend's
    words = [t.text or "" for t in root.findall(".//{*}text")]
    assert {"row", "token 0", "0.01", "0.1", "1"} <= set(words)
    assert any("ratio without unit" in w for w in words)
    assert any("over the bound" in w for w in words)
    assert not any("not checked" in w for w in words)
    assert "prefers-color-scheme:dark" in drawn
    assert " id=" not in drawn  # it may stand in a page more than once


def test_names_cannot_break_out() -> None:
    rung = RungResult(name="layers", details=[gemm('blk.0.a<script>"&\x00\x1b[31m\u202e\ud800', 0.1)])
    grid = of_layers(rung)
    assert grid is not None
    drawn = svg([grid])
    root = ElementTree.fromstring(drawn)
    assert not [e for e in root.iter() if "script" in e.tag]
    assert "\x1b" not in drawn
    drawn.encode()
    assert png([grid])
    evil = of_gemm(
        {"tensor": "w", "where": "</title>" * 100 + "\ud800", "who": "kernel", "M": 1, "N": 1, "rows_per_cell": 1,
         "tokens_per_cell": 1, "utilisation": [[2.0]], "wrong": [[1]]}
    )  # fmt: skip
    assert ElementTree.fromstring(svg([evil])).get("role") == "img"
    assert png([evil])


def lightness(colour: str) -> float:
    r, g, b = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_colours_are_in_order() -> None:
    """Up to the bound ever lighter, beyond it ever darker and red; what is written on them can be read."""
    right = [lightness(heat_map._colour(10**e)) for e in np.linspace(-4, 0, 40)]
    assert (np.diff(right) > 0).all()
    wrong = [lightness(heat_map._colour(10**e)) for e in np.linspace(0.001, 6, 40)]
    assert (np.diff(wrong) < 0).all()
    assert heat_map._colour(0.0) == heat_map._colour(heat_map.LEAST)
    assert heat_map._colour(np.inf) == heat_map._colour(1e9)
    for value in (0.0, 1e-3, 0.05, 0.5, 1.0, 2.0, 1e9):
        colour = heat_map._colour(value)
        r, g, _ = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert (g < 0.6 * r) == (value > 1)
        assert abs(lightness(colour) - lightness(heat_map._ink(colour))) > 100


@pytest.mark.needs("matplotlib")
def test_png_is_what_another_decoder_reads(tmp_path: Path) -> None:
    from matplotlib import image

    path = tmp_path / "map.png"
    path.write_bytes(png([mixed()]))
    pixels = np.rint(image.imread(path)[..., :3] * 255).astype(int)
    root = ElementTree.fromstring(svg([mixed()]))
    assert pixels.shape[:2] == (int(root.get("height", 0)), int(root.get("width", 0)))
    crossed = 0
    for rect in root.findall(".//{*}rect"):
        if not len(rect):
            continue
        x, y, w, h = (int(rect.get(key, 0)) for key in ("x", "y", "width", "height"))
        colour = [int(rect.get("fill", "")[i : i + 2], 16) for i in (1, 3, 5)]
        box = pixels[y : y + h, x : x + w]
        assert (box[0] == colour).all()  # its edge; a mark is within
        crossed += bool((box != colour).any())
        assert (pixels[y - 1, x : x + w] == 255).all()
    assert crossed == 4
    assert (pixels[:16] == 255).all()
    assert (pixels[16:26] < 255).any()  # the title


def test_png_chunks() -> None:
    """W3C, PNG: signature; length, type, content, CRC-32 of type and content."""
    data = png([mixed()])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds = 8, []
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(kind + content),)
        kinds.append(kind)
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", content)
            assert rest == [8, 2, 0, 0, 0]
        if kind == b"IDAT":
            assert len(zlib.decompress(content)) == height * (1 + 3 * width)
        at += 12 + length
    assert kinds == [b"IHDR", b"tEXt", b"IDAT", b"IEND"]


def test_every_character_has_a_shape() -> None:
    shapes = list(heat_map._FONT.values())
    assert all(re.fullmatch("[0-7]{5}", s) for s in shapes)
    assert len(set(shapes)) == len(shapes)
    words = "".join(v.text for v in heat_map._scene([mixed()])[0] if isinstance(v, heat_map._Words))
    assert set(words.upper()) - {" "} <= heat_map._FONT.keys()


def test_layers_are_in_order_and_nothing_is_hidden() -> None:
    names = [f"blk.{i}.{m}.weight" for i in (0, 1, 2, 10) for m in ("attn_q", "ffn_up")]
    rung = RungResult(name="layers", details=[gemm(n, 0.01) for n in [*names, "output.weight"]])
    rung.details.append(gemm("blk.2.attn_q.weight", 0.3))  # of another pass
    rung.details.append(gemm("blk.1.ffn_up.weight", float("nan"), 7))
    rung.unverified = [
        ("blk.10.ffn_gate_inp.weight", "no"),
        ("blk.0.ffn_up.weight expert 3", "no"),
        ("all GEMMs", "no"),
    ]
    grid = of_layers(rung)
    assert grid is not None
    assert grid.lines == ("blk.0", "blk.1", "blk.2", "blk.10", "model")
    assert grid.columns == ("attn_q", "ffn_up", "output", "ffn_gate_inp")
    assert grid.cells[2][0].value == 0.3
    assert grid.cells[1][1] == Cell(np.inf, 7)
    assert grid.cells[0][1] == Cell(0.01, 0, True)
    assert grid.cells[3][3] == Cell(None, 0, True)
    assert grid.cells[4] == (Cell(), Cell(), Cell(0.01), Cell())
    drawn = svg([grid])
    for said in ("blk.0 attn_q: 0.01<", "blk.1 ffn_up: inf, 7 failures<", "blk.10 ffn_gate_inp: not checked<",
                 "blk.0 ffn_up: 0.01, part not checked<"):  # fmt: skip
        assert said in drawn
    assert ">not checked<" in drawn
    assert of_layers(RungResult(name="layers")) is None
    assert grids([RungResult(name="bytes")]) == []


def test_many_layers_are_put_together() -> None:
    details = [gemm(f"blk.{i}.m{j}.weight", 0.01) for i in range(1000) for j in range(100)]
    details[77_777]["kernel"] = 5.0
    details[77_777]["failures"] = 1
    grid = of_layers(RungResult(name="layers", details=details))
    assert grid is not None
    assert len(grid.lines) <= heat_map.MOST_LINES
    assert len(grid.columns) <= heat_map.MOST_COLUMNS
    found = [(i, j) for i, line in enumerate(grid.cells) for j, c in enumerate(line) if c.wrong]
    assert [(grid.lines[i], grid.columns[j]) for i, j in found] == [("blk.776 - blk.783", "m76 - m79")]
    assert len(png([grid])) < 1 << 20


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--heat-map", "{}/no/such/folder/map.svg"], "cannot write"),
        (["--heat-map", "{}/map.jpg"], "FILE.svg or FILE.png"),
        (["--heat-map", "{}/folder.svg"], "cannot write"),
        (["--heat-map", "{}/model.gguf"], "--heat-map would overwrite a model"),
        (["--heat-map", "{}/link.svg"], "--heat-map would overwrite the model"),
        (["--heat-map", "{}/map.svg", "--rungs", "bytes"], "what the layers rung finds"),
        (["--heat-map", "{}/map.svg", "--identify"], "what the layers rung finds"),
        (["--heat-map", "{0}/map.svg", "--json", "{0}/map.svg"], "the same file"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "link.svg").symlink_to(Q4_0)
    monkeypatch.setattr("gguf_verify.cli.verify.verify", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr("gguf_verify.cli.verify.identify_model", lambda *_: pytest.fail("it ran"))
    assert main([str(Q4_0), *(argument.format(tmp_path) for argument in more)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_blocks_only_where_they_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stdout, shown in (
        (Terminal(io.BytesIO(), "utf-8"), True), (Terminal(io.BytesIO(), "ascii"), False),
        (io.TextIOWrapper(io.BytesIO(), "utf-8"), False), (None, False),
    ):  # fmt: skip
        monkeypatch.setattr("sys.stdout", stdout)
        assert shows_blocks() == shown
    monkeypatch.setattr("sys.stdout", Terminal(io.BytesIO(), "utf-8"))
    monkeypatch.setenv("TERM", "dumb")
    assert not shows_blocks()
