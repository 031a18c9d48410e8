"""The registry: its page and feed, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguf_verify.certificates.read import canonical
from gguf_verify.certificates.registry import entries, feed, table
from gguf_verify.certificates.signing import sign
from gguf_verify.support.errors import HarnessError
from tests.support.certificates import allowed, key, report, statement
from tests.support.tools import ROOT


def kept(folder: Path, name: str = "one.json", **changed: object) -> Path:
    path = folder / name
    path.write_bytes(canonical(statement(report(wrong=bool(changed.pop("wrong", False))), **changed)))
    return path


def test_page_and_feed(tmp_path: Path) -> None:
    kept(tmp_path)
    kept(tmp_path, "two.json", wrong=True)
    found = entries(tmp_path)
    lines = list(table(found, "certificates"))
    assert len(lines) == 4
    assert "**mismatch**" in lines[2]
    assert "](certificates/two.json)" in lines[2]
    assert "| not signed |" in lines[3]
    made = json.loads(feed(found))
    assert made["schema"] == 1
    assert [entry["verdict"] for entry in made["entries"]] == ["mismatch", "verified"]
    assert made["entries"][0]["signed_by"] == ""


def test_text_of_a_certificate_is_no_markup(tmp_path: Path) -> None:
    hostile = "<script>|\x1b[31m](javascript:alert(1)) ![x](http://x) `a` **b** {{ c }} https://x.org <!-- \\| &lt;"
    kept(tmp_path, kernel_name=hostile)
    row = list(table(entries(tmp_path), "certificates"))[2]
    assert row.count(" | ") == 9, "as many cells as there are"
    cell = row.split(" | ")[1]
    assert not set(cell) & set("<>\x1b[]()`*{}!\\|:")
    assert "https&#58;//x.org" in cell


def test_an_invalid_certificate_is_an_error(tmp_path: Path) -> None:
    path = kept(tmp_path)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(HarnessError, match=r"one\.json"):
        entries(tmp_path)


def test_a_name_that_would_be_markup_is_an_error(tmp_path: Path) -> None:
    kept(tmp_path, "a)b.json")
    with pytest.raises(HarnessError, match="name"):
        list(table(entries(tmp_path), "certificates"))


def test_a_signature_of_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "gone.json.sig").write_text("x")
    with pytest.raises(HarnessError, match=r"gone\.json\.sig"):
        entries(tmp_path)


@pytest.mark.needs("ssh-keygen")
def test_signatures_are_verified(tmp_path: Path) -> None:
    mine, other = key(tmp_path), key(tmp_path, "other")
    path = kept(tmp_path)
    (tmp_path / "one.json.sig").write_bytes(sign(path.read_bytes(), mine))
    allowed(tmp_path, me=mine)
    assert entries(tmp_path)[0].signed_by == "me@example.org"
    allowed(tmp_path, me=other)
    with pytest.raises(HarnessError, match="signature is bad"):
        entries(tmp_path)
    (tmp_path / "allowed_signers").unlink()
    with pytest.raises(HarnessError):
        entries(tmp_path)


def test_the_registry_of_this_project_names_no_folder_of_a_machine() -> None:
    for path in (ROOT / "docs" / "certificates").glob("*.json"):
        said = json.loads(path.read_text())
        names = [subject["name"] for subject in said["subject"]]
        assert not any(name.startswith(("/", "..", "outside/")) for name in names)
        assert not any(word.startswith(("/", "~")) for word in said["predicate"]["command"].split())
        said["predicate"]["kernel"].pop("system", None)  # libraries of the system have their names
        for folder in ("/home/", "/root/", "/tmp/", "/usr/", "/var/"):
            assert folder not in json.dumps(said)
