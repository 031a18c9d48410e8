"""What the benchmark makes of its measurements, on made ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gguf_verify.support.errors import UsageError
from tools.measure.bench import figures


def record(who: str, us: float, kind: str = "Q4_0", m: int = 1, n: int = 4096, k: int = 4096, **more: Any) -> Any:
    nbytes = n * k * 18 // 32
    return {"who": who, "type": kind, "M": m, "N": n, "K": k, "us": us, "TFLOP/s": 2 * m * n * k / us / 1e6,
            "TB/s of weights": nbytes / us / 1e6, "weight bytes": nbytes, **more}  # fmt: skip


def made_of(*records: Any, host: str = "gpu: Card (sm_90), driver") -> Any:
    return {"header": {"host": host, "repeat": 20, "copy TB/s": 4.0, "int8 TFLOP/s": 900.0}, "results": list(records)}


DATA = made_of(
    record("q8_1_naive", 1000, m=512), record("q8_1_tiled", 100, m=512), record("q8_1_mma", 50, m=512),
    record("f32_naive", 1000, m=512), record("llama.cpp", 80, m=512), record("llama.cpp", 6),
    record("q8_1", 4, by="q8_1_gemv"), record("q8_1", 40, m=512, by="q8_1_wgmma"),
    record("cuBLAS int8", 20, kind="-", m=512), record("dequantize + cuBLAS", 30, m=512, by="this project's kernel"),
    record("dequantize + cuBLAS", 32), record("f16", 5, by="f16_wgmma"), record("f16", 25, m=512, by="f16_wgmma"),
    record("q8_1", 5, "Q4_K", by="q8_1_decode"), record("llama.cpp", 4, "Q4_K"),
)  # fmt: skip


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_tables() -> None:
    made = figures.tables(DATA)
    assert set(made) == {
        "card", "ladder", "ladder of f32", "against llama.cpp", "other families", "against dequantize + cuBLAS",
        "rivals", "fastest", "decode", "choices",
    }  # fmt: skip
    rows = cells(made["ladder"])
    assert rows[2] == ["`q8_1_naive`", "17.2", "0.15"]
    assert rows[3] == ["`q8_1_tiled`", "172 (10×)", "0.26"]
    assert rows[4] == ["`q8_1_mma`", "344 (2×)", "2.6"]
    assert rows[5] == ["`q8_1_wgmma`", "429 (1.2×)", ""], "what the family chose"
    assert rows[6] == ["llama.cpp", "215", "13"]
    assert cells(made["against llama.cpp"]) == [
        ["type", "N", "M = 1", "M = 512"], ["---"] * 4, ["Q4_0", "4096", "1.50× (4)", "2.00× (40)"],
        ["Q4_K", "4096", "0.80× (5)", ""],
    ]  # fmt: skip
    longer = {
        **DATA,
        "results": [*DATA["results"], {**record("llama.cpp", 9), "K": 64}, {**record("q8_1", 3), "K": 64}],
    }
    assert cells(figures.tables(longer)["against llama.cpp"])[2] == ["Q4_0", "4096", "64", "3.00× (3)", ""]
    assert "2.36 (59 %)" in made["decode"]
    assert "4.00 TB/s" in made["card"]


def test_the_tables_take_any_family() -> None:
    made = figures.tables(DATA)
    assert made["other families"].startswith("llama.cpp ÷ `f16`:")
    assert cells(made["other families"])[2] == ["Q4_0", "4096", "1.20× (5)", "3.20× (25)"]
    both = made["against dequantize + cuBLAS"]
    assert both.index("÷ `q8_1`") < both.index("÷ `f16`")
    assert cells(both)[2] == ["Q4_0", "4096", "8.00× (4)", "0.75× (40)"]
    other = made_of(record("mine", 4, by="mine_fast"), record("llama.cpp", 8))
    assert cells(figures.tables(other)["other families"])[2] == ["Q4_0", "4096", "2.00× (4)"]
    other["header"]["families"] = {"mine": "own"}
    assert cells(figures.tables(other)["definitions"])[2] == ["`mine`", "own"]


def test_all_rivals_side_by_side() -> None:
    """A member of a family is none, and cuBLAS alone is no product of a type."""
    one, many = figures.tables(DATA)["rivals"].split("\n\nM = 512, ")
    assert one.startswith("M = 1, N = 4096, in µs:")
    assert many.startswith("N = 4096, in µs; cuBLAS int8 20 µs:")
    assert cells(one)[0] == ["type", "llama.cpp", "q8_1", "dequantize + cuBLAS", "f16"]
    assert cells(one)[2:] == [["Q4_0", "6", "**4**", "32", "5"], ["Q4_K", "**4**", "5", "", ""]]
    assert cells(many)[2:] == [["Q4_0", "80", "40", "30", "**25**"]]


def test_ladder_products_are_in_no_other_table() -> None:
    ladder = [record("f32", 500, m=512, by="f32_tiled"), record("f32_tiled", 500, m=512)]
    ladder += [record("q8_1", 40, m=512, n=8192, by="q8_1_wgmma"), record("llama.cpp", 80, m=512, n=8192)]
    made, alone = figures.tables(made_of(*DATA["results"], *ladder)), figures.tables(DATA)
    different = {name for name in made if made[name] != alone[name]}
    assert different == {"ladder of f32", "choices"}
    assert figures.tables(made_of(*ladder))["against llama.cpp"], "where nothing else was timed, it is shown"


def test_the_table_of_the_fastest() -> None:
    text = figures.tables(DATA)["fastest"]
    assert text.startswith("One of this project's kernels is the fastest for 2 of 3 products.")
    assert cells(text)[2:] == [["4096", "1", "q8_1: Q4_0; llama.cpp: Q4_K"], ["4096", "512", "f16: Q4_0"]]


def test_one_token_and_the_least_time() -> None:
    """9.44 MB of Q4_0 in 4 µs, where an empty kernel takes 1.5 µs and a copy 4 TB/s."""
    data = made_of(*DATA["results"])
    data["header"]["empty us"] = 1.5
    assert cells(figures.tables(data)["decode"])[2] == [
        "Q4_0", "4096", "9.4", "4", "3.859", "1.04×", "2.36 (59 %)", "1.57 (39 %)"
    ]  # fmt: skip
    assert "An empty kernel takes 1.50 µs" in figures.tables(data)["card"]
    assert cells(figures.tables(DATA)["decode"])[2][4:6] == ["", ""]


def test_a_roof_is_the_kernels_own() -> None:
    roof = {"who": "q8_1", "by": "q8_1_wgmma", "type": "Q4_0", "M": 512, "registers": 168, "local bytes": 0,
            "instructions": 3.02, "float instructions": 2.0, "TFLOP/s": 700.0}  # fmt: skip
    data = {**DATA, "roofs": [roof]}
    assert cells(figures.tables(data)["roofs"])[2] == [
        "`q8_1_wgmma`", "Q4_0", "3.02", "2.00", "168", "0", "700", "429 (61 %)"
    ]  # fmt: skip


def test_the_roof_of_products_and_terms() -> None:
    """The best of each arrangement; the share is that of the better order with scales that are loaded."""
    rates = {"PRODUCTS": 800.0, "TERMS_ALONE": 900.0, "IN_TURN": 380.0, "OVERLAPPED": 400.0, "APART": 500.0}
    probed = [
        {"arrangement": name, "minimum": minimum, "columns": 64, "warpgroups": 2, "tiles": 1, "loaded": loaded,
         "us": 1.0, "TFLOP/s": share * rate * (0.8 if loaded else 1)}
        for name, rate in rates.items()
        for minimum in (("OFFSET", "NONE", "MEETS_S") if name != "PRODUCTS" else ("NONE",))
        for loaded in ((False, True) if name in ("IN_TURN", "OVERLAPPED") else (False,))
        for share in (0.5, 1.0, 0.7)
    ]  # fmt: skip
    ours = [record("q8_1", us, kind, m=4096, by="q8_1_wgmma") for us, kind in ((500, "Q4_0"), (400, "Q5_0"))]
    data = {**made_of(*DATA["results"], *ours), "terms": probed}
    text = figures.tables(data)["terms"]
    assert "*With scales* is the better one of the first two" in " ".join(text.split())
    assert cells(text)[2:] == [
        ["Q4_0, Q5_0", "2", "800", "900", "380", "400", "500", "320", "Q5_0: 344 (107 %)"],
        ["Q8_0", "2", "800", "900", "380", "400", "500", "320", ""],
        ["Q4_1, Q5_1", "3", "800", "900", "380", "400", "500", "320", ""],
    ]
    assert "terms" not in figures.tables({**data, "terms": probed[:-3]}), "not all were timed"


def test_no_table_without_measurements() -> None:
    assert set(figures.tables(made_of(record("f32_naive", 5)))) == {"card"}


def test_slower_choices() -> None:
    assert figures.choices(DATA) == "3 times another kernel of a family was timed beside the choice. " + (
        "None was faster by more than 5 %."
    )
    slow = made_of(*DATA["results"], record("q8_1_gemv", 3.7), record("q8_1_split_k", 5))
    line = "Q4_0 M 1 N 4096 K 4096: q8_1 takes q8_1_gemv, 4.0 us; q8_1_gemv 3.7 us"
    assert list(figures.slower_choices(slow)) == [line]
    assert figures.choices(slow).startswith("5 times another kernel")
    assert figures.choices(slow).endswith(f"It was faster by more than 5 % here:\n\n- {line}")
    near = made_of(record("q8_1", 4, by="q8_1_gemv"), record("q8_1_gemv", 3.9))
    assert list(figures.slower_choices(near)) == []
    assert figures.choices(made_of(record("q8_1", 4, by="q8_1_gemv"))) == ""


def test_several_files_of_one_gpu(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(4)]
    first, second = made_of(record("q8_1", 4), record("llama.cpp", 6)), made_of(record("q8_1", 3))
    first["header"]["families"], second["header"]["families"] = {"q8_1": "a"}, {"f16": "b"}
    first["roofs"], first["terms"], second["terms"] = [{"who": "q8_1", "type": "Q4_0", "M": 1}], [{"us": 1}], []
    paths[0].write_text(json.dumps(first))
    paths[1].write_text(json.dumps(second))
    paths[2].write_text(json.dumps(made_of(host="another")))
    paths[3].write_text('{"results": 1}')
    data = figures.load(paths[:2])
    assert [r["us"] for r in data["results"]] == [3, 6]
    assert (data["header"]["families"], data["roofs"]) == ({"q8_1": "a", "f16": "b"}, first["roofs"])
    assert data["terms"] == [{"us": 1}]
    with pytest.raises(UsageError, match=r"2\.json: measured on another, others on gpu: Card"):
        figures.load([*paths[:2], paths[2]])
    with pytest.raises(UsageError, match=r"3\.json holds no measurements"):
        figures.load(paths[3:])


@pytest.mark.needs("matplotlib")
def test_roofline(tmp_path: Path) -> None:
    path = tmp_path / "roofline.svg"
    figures.roofline(DATA, path)
    first = path.read_bytes()
    texts = [e.text or "" for e in ElementTree.fromstring(first).iter("{http://www.w3.org/2000/svg}text")]
    assert {"this project, q8_1", "llama.cpp", "dequantize + cuBLAS", "cuBLAS int8, 900 TFLOP/s"} <= set(texts)
    assert any(t.startswith("Card (sm_90)") for t in texts)
    figures.roofline(DATA, path)
    assert path.read_bytes() == first
    with pytest.raises(UsageError, match="nothing can be plotted"):
        figures.roofline(made_of(record("q8_1_gemv", 4)), path)
    figures.roofline(made_of(record("q8_1", 4, by="q8_1_gemv")), tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert figures.intensity(record("q8_1", 1)) == pytest.approx(2 * 4096**2 / (4096**2 * 18 / 32 + 4 * 8192))
