"""What the benchmark makes of its measurements, on made ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gguf_verify.measure.bench import figures
from gguf_verify.support.errors import UsageError


def record(who: str, us: float, kind: str = "Q4_0", m: int = 1, n: int = 4096, k: int = 4096, **more: Any) -> Any:
    nbytes = n * k * 18 // 32
    return {"who": who, "type": kind, "M": m, "N": n, "K": k, "us": us, "TFLOP/s": 2 * m * n * k / us / 1e6,
            "TB/s of weights": nbytes / us / 1e6, "weight bytes": nbytes, **more}  # fmt: skip


def made(*records: Any, host: str = "gpu: Card (sm_90), driver") -> Any:
    return {"header": {"host": host, "repeat": 20, "copy TB/s": 4.0, "int8 TFLOP/s": 900.0}, "results": list(records)}


DATA = made(
    record("q8_1_naive", 1000, m=512), record("q8_1_tiled", 100, m=512), record("q8_1_mma", 50, m=512),
    record("f32_naive", 1000, m=512), record("llama.cpp", 80, m=512), record("llama.cpp", 6),
    record("q8_1", 4, by="q8_1_gemv"), record("q8_1", 40, m=512, by="q8_1_wgmma"),
    record("cuBLAS int8", 20, kind="-", m=512),
)  # fmt: skip


def test_tables() -> None:
    made = figures.tables(DATA)
    assert set(made) == {"card", "ladder", "ladder of f32", "against llama.cpp", "decode"}
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in made["ladder"].splitlines()]
    assert rows[2] == ["`q8_1_naive`", "17.2", "0.15"]
    assert rows[3] == ["`q8_1_tiled`", "172 (10×)", "0.26"]
    assert rows[4] == ["`q8_1_mma`", "344 (2×)", "2.6"]
    assert rows[5] == ["llama.cpp", "215", "13"]
    assert made["against llama.cpp"].splitlines()[2:] == ["| 4096 | 1 | 1.50× (4) |", "| 4096 | 512 | 2.00× (40) |"]
    assert "2.36 (59 %)" in made["decode"]
    assert "4.00 TB/s" in made["card"]


def test_one_token_beside_the_least_time() -> None:
    """9.44 MB of Q4_0 in 4 µs, where an empty kernel takes 1.5 µs and a copy 4 TB/s."""
    data = made(*DATA["results"])
    data["header"]["empty us"] = 1.5
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in figures.tables(data)["decode"].splitlines()]
    assert rows[3] == ["4096", "ours, of the least time", "1.04×"]
    assert "An empty kernel takes 1.50 µs" in figures.tables(data)["card"]
    assert "of the least time" not in figures.tables(DATA)["decode"]


def test_what_was_not_measured_has_no_table() -> None:
    assert set(figures.tables(made(record("f32_naive", 5)))) == {"card"}


def test_slower_choices() -> None:
    assert list(figures.slower_choices(DATA)) == []
    slow = made(*DATA["results"], record("q8_1_gemv", 3.7), record("q8_1_split_k", 5))
    assert list(figures.slower_choices(slow)) == [
        "Q4_0 M 1 N 4096 K 4096: q8_1 takes q8_1_gemv, 4.0 us; q8_1_gemv 3.7 us"
    ]
    assert list(figures.slower_choices(made(record("q8_1", 4, by="q8_1_gemv"), record("q8_1_gemv", 3.9)))) == []


def test_several_files_of_one_card(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(4)]
    paths[0].write_text(json.dumps(made(record("q8_1", 4), record("llama.cpp", 6))))
    paths[1].write_text(json.dumps(made(record("q8_1", 3))))
    paths[2].write_text(json.dumps(made(host="another")))
    paths[3].write_text('{"results": 1}')
    data = figures.load(paths[:2])
    assert [r["us"] for r in data["results"]] == [3, 6]
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
    assert {"this project, Q4_0", "llama.cpp, Q4_0", "cuBLAS int8, 900 TFLOP/s"} <= set(texts)
    assert any(t.startswith("Card (sm_90)") for t in texts)
    figures.roofline(DATA, path)
    assert path.read_bytes() == first
    figures.roofline(made(record("q8_1", 4)), tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert figures.intensity(record("q8_1", 1)) == pytest.approx(2 * 4096**2 / (4096**2 * 18 / 32 + 4 * 8192))
