"""The types of a file's weights by bytes in every report, and reports without the folders of this machine."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from gguf_verify.audit.many import Audits, Unopened
from gguf_verify.audit.record import Audit
from gguf_verify.gguf.model import composition, open_model
from gguf_verify.report import audit_card, scene
from gguf_verify.report.published import file_name, names, published
from gguf_verify.report.writer import Kind, writers
from gguf_verify.results.composition import Composition, TypeShare
from tests.support import nights
from tests.support.audits import audited
from tests.support.shown import json_of, text_of, written
from tests.support.tools import FIXTURES

TINY = FIXTURES / "tiny-Q4_0.gguf"


def of(**nbytes: int) -> Composition:
    """Types with this number of bytes each, and one byte for each weight."""
    return Composition([TypeShare(type=kind, tensors=1, weights=n, nbytes=n) for kind, n in nbytes.items()])


def test_types_are_ordered_by_bytes_and_not_by_tensors() -> None:
    with open_model(FIXTURES / "tiny-F16.gguf") as model:
        made = composition(model.tensors.values())
        info = model.info()
    with open_model(TINY) as model:
        other = composition(model.tensors.values())
    assert [share.type for share in made.types] == sorted(
        {share.type for share in made.types}, key=lambda kind: -next(s.nbytes for s in made.types if s.type == kind)
    )
    assert [(s.type, s.tensors, s.weights, s.nbytes) for s in other.types] == [
        ("Q4_0", 23, 2_621_440, 1_474_560), ("F32", 7, 1792, 7168),
    ]  # fmt: skip
    assert other.bits_per_weight == pytest.approx(8 * (1_474_560 + 7168) / (2_621_440 + 1792))
    assert tuple(made.types) == info.types


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        ({"A": 734, "B": 178, "C": 54, "D": 34}, "73 % A, 18 % B, 5.4 % C, 3.4 % D"),
        ({"A": 1}, "100 % A"), ({"A": 99_999, "B": 1}, "99.9 % A, <0.1 % B"), ({"A": 1, "B": 0}, "100 % A, 0 % B"),
        ({"A": 995, "B": 5}, "99.5 % A, 0.5 % B"), ({}, ""),
        (dict.fromkeys("ABCDEF", 1), "17 % A, 17 % B, 17 % C, 17 % D, and 2 more types"),
    ],
)  # fmt: skip
def test_shares_in_words(nbytes: dict[str, int], words: str) -> None:
    assert of(**nbytes).words() == words


def test_every_report_of_an_audit_has_bits_per_weight_and_the_types() -> None:
    audit = audited()
    made = json_of(Kind.AUDIT, audit)["composition"]
    assert made["bits_per_weight"] == pytest.approx(4.5188, abs=1e-4)
    assert [(t["type"], t["bytes"], t["bits_per_weight"]) for t in made["types"]] == [
        ("Q4_0", 1_474_560, 4.5), ("F32", 7168, 32.0),
    ]  # fmt: skip
    text = text_of(Kind.AUDIT, audit)
    assert "4.52 bits per weight" in text
    assert "Q4_0       23  2,621,440   4.5  1,474,560  99.5 %" in text
    for flag in ("--html", "--markdown"):
        page = str(written(flag, Kind.AUDIT, audit))
        assert "4.52 bits per weight" in page
        assert "1,474,560" in page
    several = Audits((audit, Unopened(Path("none.gguf"), "No such file", 4)))
    for page in (str(written("--html", Kind.AUDITS, several)), str(written("--markdown", Kind.AUDITS, several))):
        assert "bits per weight" in page
        assert "4.52" in page
    assert "(4.52 bits per weight)" in text_of(Kind.AUDITS, several)


def test_the_bar_of_a_page_is_as_wide_as_the_shares() -> None:
    page = str(written("--html", Kind.AUDIT, audited()))
    bar = page[page.index('<svg class="shares"') :].partition("</svg>")[0]
    widths = [float(part.partition('"')[0]) for part in bar.split('width="')[2:]]
    assert widths == pytest.approx([995.16, 4.84], abs=0.01)


def test_a_refused_file_has_no_types() -> None:
    audit = audited("trailing")
    audit = replace(audit, refused=audit.findings[0])
    assert "bits per weight" not in text_of(Kind.AUDIT, audit)
    assert "Types by bytes" not in str(written("--html", Kind.AUDIT, audit))
    assert "no types" in str(written("--card", Kind.AUDIT, audit, ".svg"))


# ---- the card --------------------------------------------------------------------------------------------------------


def test_the_card_of_an_audit_shows_the_shares_to_scale() -> None:
    made = audit_card.card(audited("scale-not-finite"))
    bar = [v for v in made.items if isinstance(v, scene.Box) and v.title]
    assert [box.title for box in bar] == ["Q4_0: 99.5 %", "F32: 0.5 %"]
    assert bar[0].width / bar[1].width == pytest.approx(1_474_560 / 7168)
    texts = [v.text for v in made.items if isinstance(v, scene.Words)]
    assert texts[0] == "WRONG"
    assert "2,623,232, 4.52 bits per weight" in texts
    assert "99.5 % Q4_0, 4.5 bits" in texts


@pytest.mark.parametrize("slugs", [(), ("scale-not-finite",), ("trailing", "gap")])
def test_no_text_of_the_card_overlaps_or_leaves_it(slugs: tuple[str, ...]) -> None:
    audit = audited(*slugs, path=Path("a" * 300 + ".gguf"))
    texts = [v for v in audit_card.card(audit).items if isinstance(v, scene.Words)]
    for i, one in enumerate(texts):
        assert one.left >= 0
        assert one.left + one.width <= scene.Words(1200, 0, "").x
        for other in texts[i + 1 :]:
            apart = one.left + one.width <= other.left or other.left + other.width <= one.left
            assert apart or abs(one.y - other.y) >= 17, (one, other)


def test_the_card_is_drawn_as_svg_and_png_with_one_font() -> None:
    svg = str(written("--card", Kind.AUDIT, audited(), ".svg"))
    assert "font-family:card;src:url(data:font/ttf;base64," in svg
    assert "4.52 bits per weight: 99.5 % Q4_0, 0.5 % F32." in svg, "for those who cannot see it"
    png = written("--card", Kind.AUDIT, audited(), ".png")
    assert isinstance(png, bytes)
    assert Image.open(io.BytesIO(png)).size == (1200, 630)


def test_the_card_of_a_run_has_types_by_bytes() -> None:
    report = nights.run_result()
    file = report.environment.file
    types = tuple(of(Q8_0=730, Q5_0=180, Q4_K=90).types)
    file = msgspec.structs.replace(file, architecture="g", types=types)
    report.environment = msgspec.structs.replace(report.environment, file=file)
    card = str(written("--card", Kind.RUN, report, ".svg"))
    assert "g: 73 % Q8_0, 18 % Q5_0, 9 % Q4_K" in card
    assert "73 % Q8_0, 18 % Q5_0, 9 % Q4_K" in text_of(Kind.RUN, report)
    assert "73 % Q8_0, 18 % Q5_0, 9 % Q4_K · 8.00 bits per weight" in text_of(Kind.RUN, report, detail=1)


# ---- no folders ------------------------------------------------------------------------------------------------------


@pytest.fixture
def customer(tmp_path: Path) -> Path:
    """A folder of this machine with a name that no one else should read."""
    folder = tmp_path / "secret customer's"
    folder.mkdir()
    return folder


def test_texts_lose_the_folders_of_this_machine(customer: Path) -> None:
    assert published(f"cannot read {customer}/m.gguf: no") == "cannot read m.gguf: no"
    assert published(f"audit --source={customer}/a.gguf -o {customer}/b/c") == f"audit --source=a.gguf -o {Path('b/c')}"
    assert published(f"'{customer}/k.py:gemm'") == "'k.py:gemm'"
    for kept in ("blk/0/attn", "/model/layers.0/attn", "hf://owner/repo/file", "https://example.org/tmp/x", "a / b",
                 "/usr/lib/libc.so", "/proc/self/maps", "", "/", "//", "../up/m.gguf", "M/s"):  # fmt: skip
        assert published(kept) == kept


def test_names_of_files(customer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names([customer / "a" / "m.gguf", customer / "b" / "m.gguf"]) == ["a/m.gguf", "b/m.gguf"]
    assert names([customer / "m.gguf"]) == ["m.gguf"]
    monkeypatch.chdir(customer)
    assert names([Path("a/m.gguf"), Path("m.gguf")]) == ["a/m.gguf", "m.gguf"]
    assert file_name(str(customer / "a" / "m.gguf")) == "a/m.gguf", "code scanning finds it in the repository"
    assert file_name("/elsewhere/m.gguf") == "m.gguf"
    assert file_name("hf://owner/repo/m.gguf") == "hf://owner/repo/m.gguf"


def _audit_in(folder: Path) -> Audit:
    audit = audited("trailing", path=folder / "m.gguf")
    header = replace(audit.header, source=str(folder / "f16.gguf"), imatrix=str(folder / "i.dat"))
    left = [("llama.cpp", f"cannot open {folder}/lib.so")]
    return replace(
        audit, header=header, command=f"gguf-verify audit '{folder}/m.gguf' --source '{folder}/f16.gguf'",
        fault=f"{folder}/m.gguf changed", left_out=left,
    )  # fmt: skip


def _published(kind: Kind) -> list[tuple[str, str]]:
    """Writers of a kind of result that leave this machine, with a suffix."""
    return [(str(w.flag), w.suffixes[0] if w.suffixes else w.endings[0]) for w in writers(kind) if w.flag is not None]


@pytest.mark.parametrize("flag", [flag for flag, _ in _published(Kind.AUDIT)])
def test_no_report_of_an_audit_names_a_folder(flag: str, customer: Path) -> None:
    suffix = dict(_published(Kind.AUDIT))[flag]
    page = str(written(flag, Kind.AUDIT, _audit_in(customer), suffix))
    assert "secret" not in page
    assert str(customer.parent) not in page
    if flag != "--annotations":
        assert "m.gguf" in page


@pytest.mark.parametrize("flag", [flag for flag, _ in _published(Kind.AUDITS)])
def test_no_report_of_several_audits_names_a_folder(flag: str, customer: Path) -> None:
    """Files of the same name in two folders are told apart."""
    unopened = Unopened(customer / "two" / "m.gguf", f"{customer}/two: no", 4)
    several = Audits((_audit_in(customer / "one"), unopened), command=f"gguf-verify audit '{customer}/m.gguf'")
    for folder in ("one", "two"):
        (customer / folder).mkdir()
    page = str(written(flag, Kind.AUDITS, several, dict(_published(Kind.AUDITS))[flag]))
    assert "secret" not in page
    if flag in ("--html", "--markdown", "--json"):
        assert "one/m" in page
        assert "two/m" in page


@pytest.mark.parametrize("flag", [flag for flag, _ in _published(Kind.RUN) if flag != "--json"])
def test_no_report_of_a_run_names_a_folder(flag: str, customer: Path) -> None:
    report = nights.run_result(["w"], "w")
    e = report.environment
    file = msgspec.structs.replace(e.file, path=f"{customer}/m.gguf")
    report.environment = msgspec.structs.replace(e, file=file)
    report.command = f"gguf-verify '{customer}/m.gguf' --kernel '{customer}/k.py:gemm'"
    report.rungs[0].fault = f"{customer}/k.py:19 raised"
    page = str(written(flag, Kind.RUN, report, dict(_published(Kind.RUN))[flag]))
    assert "secret" not in page


def test_sarif_names_files_relative_to_the_repository(customer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(customer)
    audit = replace(audited("trailing", path=customer / "models" / "m.gguf"), files=())
    (run,) = json.loads(str(written("--sarif", Kind.AUDIT, audit)))["runs"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/m.gguf"


def test_the_terminal_keeps_the_folders(customer: Path) -> None:
    """It is not published, and its command is pasted."""
    assert str(customer) in text_of(Kind.AUDIT, replace(_audit_in(customer), findings=()))
