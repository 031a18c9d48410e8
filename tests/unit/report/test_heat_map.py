"""Heat maps: all renderings show one grid, no wrong cell is lost, and every reader can read them."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gguf_verify.cli import main
from gguf_verify.cli.common import shows_blocks
from gguf_verify.report import grid, heat_map, scene, shades
from gguf_verify.report.grid import Cell, Grid, of_gemm, of_layers, of_run
from gguf_verify.report.heat_map import png, svg
from gguf_verify.report.html import page
from gguf_verify.report.terminal.failures import as_text
from gguf_verify.report.writer import Kind
from gguf_verify.results.failures import Unverified
from gguf_verify.results.products import OutputMap
from gguf_verify.results.report import Report
from tests.support import records
from tests.support.shown import written
from tests.support.tools import FIXTURES

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


def made(ratio: np.ndarray, wrong: np.ndarray, rows: int = 1, tokens: int = 1, where: str = "w") -> Grid:
    """The map of a GEMM with these cells."""
    m, n = ratio.shape
    return of_gemm(
        OutputMap(tensor="w", where=where, who="kernel", m=m * tokens, n=n * rows, rows_per_cell=rows,
                  tokens_per_cell=tokens, utilisation=ratio.tolist(), wrong=wrong.astype(int).tolist())
    )  # fmt: skip


def mixed() -> Grid:
    """Right cells of every size, wrong ones, one that is not finite."""
    rng = np.random.default_rng(0)
    ratio = 10 ** rng.uniform(-5, 0, (16, 64))
    ratio[3, 5], ratio[3, 6], ratio[15, 63], ratio[9, 0] = 20, 3e7, np.inf, 0.5
    wrong = ratio > 1
    wrong[9, 0] = True  # in its bits
    return made(ratio, wrong, rows=4, tokens=2)


# -- one grid ----------------------------------------------------------------------------------------------------------


def layers_report(**fields: float) -> Report:
    """A run with one GEMM that is right on its own activations, and so wrong at another M."""
    rung = records.rung("layers")
    rung.details = [records.gemm("blk.0.attn_q.weight", 0.05, 3, **{"other_m": 7.0, **fields})]
    rung.fail(records.failure("blk.0.attn_q.weight"), 3)
    return Report(environment=records.environment(), rungs=[rung])


def test_all_pictures_show_the_same_value() -> None:
    """What is worst of a matrix is said once, by the record, and drawn by all."""
    report = layers_report()
    (layers,) = of_run(report)
    assert layers.cells == ((Cell(7.0, 3, False, "blk.0.attn_q.weight"),),)
    drawn = str(written("--heat-map", Kind.RUN, report, ".svg"))
    shown = page.run(report)
    for picture in (drawn, shown):
        assert "<title>blk.0 attn_q: 7, 3 wrong</title>" in picture
        assert re.search('<text class="on x0 mono"[^>]*>7</text>', picture)
        assert re.search('<rect class="fill x0"', picture)
    png_file = written("--heat-map", Kind.RUN, report, ".png")
    assert isinstance(png_file, bytes)
    pixels = Image.open(io.BytesIO(png_file))
    box = heat_map.boxes(heat_map.drawn([layers]).items)[0]
    assert pixels.getpixel((int(scene.SCALE * box.x), int(scene.SCALE * box.y))) == rgb(
        shades.PALETTE["light"]["x0"][0]
    )
    assert [c.shade for c in of_run(layers_report(other_m=0.04, other_shapes=np.nan))[0].drawn] == ["x5"]


def test_a_map_of_outputs_is_the_same_in_text_and_pictures() -> None:
    shown = mixed()
    bad = {(i, j) for i, line in enumerate(shown.cells) for j, c in enumerate(line) if shades.is_wrong(c.shade)}
    assert bad == {(3, 5), (3, 6), (15, 63), (9, 0)}
    boxes = heat_map.boxes(heat_map.drawn([shown]).items)
    assert {divmod(i, 64) for i, box in enumerate(boxes) if box.mark == "x"} == bad
    text = as_text(shown)
    assert sum(c not in "." for line in text[2:-1] for c in line[text[2].index(".") :]) == 4


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


# -- text --------------------------------------------------------------------------------------------------------------


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
        assert "correct" in lines[-1]
    for line in as_text(mixed())[1:]:
        assert line.replace("×", "x").replace("…", ".").isascii()


def test_text_is_aligned() -> None:
    lines = as_text(mixed())
    at = lines[2].index(".")
    assert lines[0] == "utilisation of w, kernel: 32 tokens × 256 rows, 2 tokens × 4 rows to a cell"
    assert lines[1].startswith("row ")
    for number in re.finditer(r"[0-9]+", lines[1]):
        assert int(number[0]) == 4 * (number.start() - at)
    assert [int(n) for n in re.findall(r"[0-9]+", lines[1])] == [32 * i for i in range(8)]


def test_lines_that_look_the_same_are_one() -> None:
    ratio = np.full((8, 8), 0.1)
    ratio[5:] = 50
    lines = as_text(made(ratio, ratio > 1))
    assert [line.split() for line in lines[2:-1]] == [["token", "0", "........"], ["token", "5", "11111111"]]
    assert lines[-1] == ". correct; 1: over the bound by that power of 10"


def test_svg_tells_each_cell() -> None:
    drawn = svg([mixed()])
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img"
    assert "32 tokens × 256 rows" in (root.get("aria-label") or "")
    assert (root[0].tag.rpartition("}")[2], root[0].text) == ("title", root.get("aria-label"))
    titled = [rect for rect in root.findall(".//{*}rect") if len(rect)]
    assert len(titled) == 16 * 64
    said = {rect[0].text: rect for rect in titled}
    assert "token 6, row 20: 20, 1 wrong" in said
    assert "token 30, row 252: inf, 1 wrong" in said
    assert sum("wrong" in (key or "") for key in said) == 4
    words = [t.text or "" for t in root.findall(".//{*}text")]
    assert {"rows (N = 256)", "tokens", "0", "256", "32", "1e-4", "1", "1e4"} <= set(words)
    assert any("|error| / bound" in w for w in words)
    assert any("logarithmic" in w for w in words)
    assert any("over the bound" in w for w in words)
    assert not any("not checked" in w for w in words)
    assert "prefers-color-scheme:dark" in drawn
    assert " id=" not in drawn  # it may stand in a page more than once


#: Boxes of a legend: the scale, and the sample of a cross.
LEGEND = shades.STEPS + len(shades.WRONG) + 2


def test_a_page_names_the_wrong_cells_first() -> None:
    drawn = svg([mixed()], most_titles=10)
    assert drawn.count("<title>token") == 10
    assert drawn.count(" wrong</title>") == 4
    assert (
        sum(len(re.findall("M", d)) for d in re.findall('<path class="fill [^"]*" d="([^"]*)"', drawn))
        == 16 * 64 - 10 + LEGEND
    )


def test_names_cannot_break_out() -> None:
    rung = records.rung("layers")
    rung.details = [records.gemm('blk.0.a<script>"&\x00\x1b[31m\u202e\ud800', 0.1)]
    layers = of_layers(rung)
    assert layers is not None
    drawn = svg([layers])
    root = ElementTree.fromstring(drawn)
    assert not [e for e in root.iter() if "script" in e.tag]
    assert "\x1b" not in drawn
    drawn.encode()
    assert png([layers])
    evil = made(np.array([[2.0]]), np.array([[1]]), where="</title>" * 100 + "\ud800")
    assert ElementTree.fromstring(svg([evil])).get("role") == "img"
    assert png([evil])


# -- axes, tiles, frames, words ----------------------------------------------------------------------------------------


def of_size(m: int, n: int, rows: int, tokens: int, tile: tuple[int, int] = (0, 0), wrong: Any = None) -> Grid:
    """The map of an output float32[m, n]; `wrong` is a slice of its cells, of utilisation 50."""
    ratio = np.full((-(-m // tokens), -(-n // rows)), 0.1)
    if wrong is not None:
        ratio[wrong] = 50
    return of_gemm(
        OutputMap(tensor="w", where="w", who="kernel", m=m, n=n, rows_per_cell=rows, tokens_per_cell=tokens,
                  utilisation=ratio.tolist(), wrong=(ratio > 1).astype(int).tolist(), tile_tokens=tile[0],
                  tile_rows=tile[1])
    )  # fmt: skip


SHAPES = {
    "one output": of_size(1, 1, 1, 1, wrong=np.s_[:]),
    "narrow": of_size(3, 4, 1, 1, wrong=np.s_[1:2, 1:2]),
    "one token": of_size(1, 4096, 64, 1, (16, 64), np.s_[:, 3:5]),
    "uneven": of_size(13, 950, 16, 1, (64, 64), np.s_[4:8, 10:20]),
    "long numbers": of_size(1 << 20, 1 << 24, 1 << 18, 1 << 16, (128, 128), np.s_[0, 0]),
    "scattered": of_size(16, 64, 1, 1, wrong=np.s_[::2, ::3]),
    "flat": of_size(16, 64, 1, 1, wrong=np.s_[:]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("alone", [True, False])
def test_no_text_is_clipped_or_overlaps(name: str, alone: bool) -> None:
    """A text that does not fit is left out. Widths are those of the widest usual font."""
    layers = of_layers(layers_report().rungs[0])
    made = heat_map.drawn([SHAPES[name], layers], alone)
    texts = [v for v in made.items if isinstance(v, scene.Words)]
    cells = heat_map.boxes(made.items)
    for text in texts:
        assert text.left >= 0, text
        assert text.left + text.width <= made.width, text
        assert 8 <= text.y <= made.height, text
    for i, one in enumerate(texts):
        for other in texts[i + 1 :]:
            apart = one.left + one.width <= other.left or other.left + other.width <= one.left
            assert apart or abs(one.y - other.y) >= 13, (one, other)
        inside = [c for c in cells if c.x < one.left + one.width and one.left < c.x + c.width
                  and c.y < one.y and one.y - 10 < c.y + c.height]  # fmt: skip
        if one.shade:
            (cell,) = inside
            assert cell.x <= one.left
            assert one.left + one.width <= cell.x + cell.width
        else:
            assert not inside, (one, inside)


def test_axes_number_rows_and_tokens() -> None:
    made = heat_map.drawn([SHAPES["uneven"]])
    texts = {v.text: v for v in made.items if isinstance(v, scene.Words)}
    cells = heat_map.boxes(made.items)
    left, top = min(c.x for c in cells), min(c.y for c in cells)
    by_title = {c.title.partition(":")[0]: c for c in cells}
    assert texts["512"].x == by_title["token 0, row 512"].x
    assert texts["950"].x == pytest.approx(max(c.x + c.width for c in cells) + 1), "the axis ends where the rows do"
    assert texts["8"].y - 4 == by_title["token 8, row 0"].y
    assert texts["13"].x < left
    assert texts["0"].y < top or texts["0"].x < left
    assert by_title["token 0, row 944"].width < by_title["token 0, row 928"].width, "its last cell has 6 rows of 16"


def test_tiles_have_borders_where_they_can_be_told_apart() -> None:
    made = heat_map.drawn([SHAPES["uneven"]])
    cells = {c.title.partition(":")[0]: c for c in heat_map.boxes(made.items)}
    upright = {v.x1 for v in made.items if isinstance(v, scene.Line) and v.x1 == v.x2 and v.y2 - v.y1 > 100}
    assert upright == {cells[f"token 0, row {row}"].x - 0.5 for row in range(64, 950, 64)}
    texts = " ".join(v.text for v in made.items if isinstance(v, scene.Words))
    assert "border of the kernel's tiles: 64 tokens × 64 rows" in texts
    for unknown in ("long numbers", "flat"):
        made = heat_map.drawn([SHAPES[unknown]])
        assert "tiles" not in " ".join(v.text for v in made.items if isinstance(v, scene.Words))


def test_wrong_regions_are_framed() -> None:
    ratio = np.full((8, 32), 0.1)
    ratio[2:4, 5:9], ratio[4, 9], ratio[6, 20] = 30, 40, 2  # the second touches the first at a corner
    shown = made(ratio, ratio > 1, rows=4, tokens=2)
    assert shown.regions == [(2, 5, 4, 9), (6, 20, 6, 20)]
    assert shown.told == [
        "10 of 256 cells are wrong: rows 20 to 39 × tokens 4 to 9; rows 80 to 83 × tokens 12 to 13. The largest "
        "utilisation is 40."
    ]  # fmt: skip
    items = heat_map.drawn([shown]).items
    cells = {c.title.partition(":")[0]: c for c in heat_map.boxes(items)}
    frame, *_ = (v for v in items if isinstance(v, scene.Frame))
    first, last = cells["token 4, row 20"], cells["token 8, row 36"]
    assert frame.x < first.x
    assert frame.y < first.y
    assert frame.x + frame.width >= last.x + last.width
    assert frame.y + frame.height >= last.y + last.height
    assert frame.x + frame.width < last.x + last.width + first.width, "and no further cell"
    assert svg([shown]).count('class="rule frame') == 3, "two, and the legend's"
    many = heat_map.drawn([SHAPES["scattered"]]).items
    assert sum(isinstance(v, scene.Frame) for v in many) == 2, "one around all that are too many, and the legend's"


def test_regions_whose_frames_would_cross_are_one() -> None:
    ratio = np.full((5, 5), 0.1)
    ratio[0, :], ratio[:, 0], ratio[2, 2] = 9, 9, 9  # a corner, and a cell in its rectangle
    assert made(ratio, ratio > 1).regions == [(0, 0, 4, 4)]


def test_a_flat_map_says_so() -> None:
    (told,) = SHAPES["flat"].told
    assert told.startswith("Every cell is wrong, with utilisation 50: the map is flat, so look for a cause that all")
    items = heat_map.drawn([SHAPES["flat"]]).items
    assert not [b for b in heat_map.boxes(items) if b.mark], "a cross on each cell would tell nothing"
    assert sum(isinstance(v, scene.Frame) for v in items) == 0
    ratio = np.geomspace(2, 1e9, 64).reshape(4, 16)
    assert "so look for what the worst cells share" in made(ratio, ratio > 1).told[0]
    assert made(ratio * 0 + 0.5, ratio < 0).told == ["Nothing is wrong. The largest utilisation is 0.5."]
    ratio[0, 0] = np.nan
    assert "from 2.7 to inf" in made(ratio, ~(ratio <= 1)).told[0]


def test_names_of_both_ends_are_kept() -> None:
    name = "Meta-Llama-" + "x" * 300 + "-Q4_K_M.gguf"
    cut = scene.shortened(name, 300, 20, mono=False)
    assert scene.text_width(cut, 20, mono=False) <= 300
    assert cut.startswith("Meta-Llama-")
    assert cut.endswith("Q4_K_M.gguf")
    assert scene.shortened("short", 300, 20) == "short"
    assert scene.shortened("a sentence that ends", 140, 20, mono=False) == "a sentence…", "never within a word"
    assert scene.shortened("one, two, three", 112, 20, mono=False) == "one, two…"
    assert scene.shortened("gguf-verify-q8_1-naive.cu", 225, 20, mono=False) == "gguf-…q8_1-naive.cu"
    assert scene.shortened("é" * 10**6, 100, 20).count("é") < 20
    assert scene.shortened("abc", 0, 20) == "a"


# -- PNG ---------------------------------------------------------------------------------------------------------------


def test_png_has_the_colours_of_the_svg() -> None:
    picture = Image.open(io.BytesIO(png([mixed()])))
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert (picture.format, picture.info["Title"]) == ("PNG", mixed().title)
    root = ElementTree.fromstring(svg([mixed()]))
    k = scene.SCALE
    assert picture.size == (k * int(root.get("width", 0)), k * int(root.get("height", 0)))
    for rect in root.findall(".//{*}rect"):
        if not len(rect):
            continue
        x, y, w, h = (round(k * float(rect.get(key, 0))) for key in ("x", "y", "width", "height"))
        shade = rect.get("class", "").removeprefix("fill ")
        box = pixels[y : y + h, x : x + w]
        same = (box == rgb(shades.PALETTE["light"][shade][0])).all(axis=2)
        assert same[h // 2, 2] or same[2, w // 2], "beside a mark and a frame it has its colour"
    assert (pixels[k * 14 : k * 30, k * 16 : k * 200] < 128).any()  # the title


def test_layers_are_in_order_and_nothing_is_hidden() -> None:
    names = [f"blk.{i}.{m}.weight" for i in (0, 1, 2, 10) for m in ("attn_q", "ffn_up")]
    rung = records.rung("layers")
    rung.details = [records.gemm(n, 0.01) for n in [*names, "output.weight"]]
    rung.details.append(records.gemm("blk.2.attn_q.weight", 0.3))  # of another pass
    rung.details.append(records.gemm("blk.1.ffn_up.weight", float("nan"), 7))
    rung.unverified = [
        Unverified("blk.10.ffn_gate_inp.weight", "no", "blk.10.ffn_gate_inp.weight"),
        Unverified("blk.0.ffn_up.weight expert 3", "no", "blk.0.ffn_up.weight"),
        Unverified("all GEMMs", "no"),
    ]  # fmt: skip
    layers = of_layers(rung)
    assert layers is not None
    assert layers.lines == ("blk.0", "blk.1", "blk.2", "blk.10", "model")
    assert layers.columns == ("attn_q", "ffn_up", "output", "ffn_gate_inp")
    assert layers.cells[2][0].value == 0.3
    assert layers.cells[1][1] == Cell(np.inf, 7, False, "blk.1.ffn_up.weight")
    assert layers.cells[0][1] == Cell(0.01, 0, True, "blk.0.ffn_up.weight")
    assert layers.cells[3][3][:3] == (None, 0, True)
    assert [c.value for c in layers.cells[4]] == [None, None, 0.01, None]
    drawn = svg([layers])
    for said in ("blk.0 attn_q: 0.01<", "blk.1 ffn_up: inf, 7 wrong<", "blk.10 ffn_gate_inp: not checked<",
                 "blk.0 ffn_up: 0.01, part not checked<"):  # fmt: skip
        assert said in drawn
    assert ">not checked<" in drawn
    assert ">0.01*</text>" in drawn, "a value of which a part was not checked has a mark of its own"
    assert "part of it was not checked" in drawn
    struck = [b for b in heat_map.drawn([layers]).items if isinstance(b, scene.Box) and b.mark == scene.STROKE]
    assert len(struck) == 2, "the cell without a value, and the legend's"
    assert of_layers(records.rung("layers")) is None
    assert of_run(Report(environment=records.environment(), rungs=[records.rung("bytes")])) == []


def test_the_legend_shows_its_shades_and_does_not_describe_them() -> None:
    """In a dark theme the worst shade is the lightest one."""
    ratio = np.array([[0.5, 2.0, np.inf]])
    items = heat_map.drawn([made(ratio, ~(ratio <= 1))]).items
    samples = {b.shade for b in items if isinstance(b, scene.Box) and b.mark == scene.CROSS and not b.title}
    assert samples == {"x0", "x5"}
    words = " ".join([*(v.text for v in items if isinstance(v, scene.Words)), *made(ratio, ~(ratio <= 1)).told])
    assert "not finite, or above 1e5" in words
    assert not re.search("dark|light", words)


def test_many_layers_are_put_together() -> None:
    rung = records.rung("layers")
    rung.details = [records.gemm(f"blk.{i}.m{j}.weight", 0.01) for i in range(1000) for j in range(100)]
    rung.details[77_777] = records.gemm("blk.777.m77.weight", 5.0, 1)
    layers = of_layers(rung)
    assert layers is not None
    assert len(layers.lines) <= grid.MOST_LINES
    assert len(layers.columns) <= grid.MOST_COLUMNS
    found = [(i, j) for i, line in enumerate(layers.cells) for j, c in enumerate(line) if c.wrong]
    assert [(layers.lines[i], layers.columns[j]) for i, j in found] == [("blk.776 - blk.783", "m76 - m79")]
    assert heat_map.summary(layers).endswith(
        "1 of 3,125 cells is wrong: blk.776 - blk.783, m76 - m79. The largest utilisation is 5, of blk.777.m77.weight."
    )
    assert len(png([layers])) < 1 << 20


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-o", "{}/no/such/folder/heat-map.svg"], "cannot write"),
        (["-o", "{}/map.jpg"], "known endings: .*heat-map.svg, heat-map.png"),
        (["-o", "{}/folder.svg"], "cannot write"),
        (["-o", "{}/model.gguf"], "-o/--output would overwrite a model"),
        (["-o", "{}/link.svg"], "would overwrite link.svg, which is an input"),
        (["-o", "{}/heat-map.svg", "--rungs", "bytes"], "shows results of the layers rung"),
        (["-o", "{0}/map.svg", "-o", "{0}/map.svg"], "the same file twice"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "link.svg").symlink_to(Q4_0)
    monkeypatch.setattr("gguf_verify.cli.runs.verify.verify", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr("gguf_verify.identification.identify_model", lambda *_: pytest.fail("it ran"))
    assert main([str(Q4_0), *(argument.format(tmp_path) for argument in more)]) == 2
    captured = capsys.readouterr()
    assert re.search(said, captured.err)
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
