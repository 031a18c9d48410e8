"""Waivers where a file and a kernel are really wrong: audits, runs, the command line."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from gguf_verify import verify
from gguf_verify.report.writer import Form, Kind
from gguf_verify.report.writers import MARKDOWN
from gguf_verify.results.options import Options
from tests.support.audits import TINY, ids, run
from tests.support.shown import json_of, text_of
from tests.support.tools import TamperedKernel, block_bytes, command_here, patched_block

TENSOR = "blk.0.attn_q.weight"
DAY = date(2026, 6, 1)


def written(folder: Path, keys: str, until: str = "2026-12-31") -> Path:
    path = folder / "waivers.toml"
    path.write_text(f'[[waiver]]\n{keys}\nreason = "issue 42"\nuntil = {until}\n')
    return path


@pytest.fixture(scope="module")
def infinite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a scale that is not finite."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return patched_block(TINY["Q4_0"], path, TENSOR, 3, 1, 0, b"\x00\x7c")


def test_a_finding_is_waived_until_its_day(infinite: Path, tmp_path: Path) -> None:
    plain = run(infinite, readers=False, digest=False)
    assert plain.exit_code == 1
    (wrong,) = [f for f in plain.findings if f.severity == "error"]
    path = written(tmp_path, f'finding = "{wrong.id}"\ntensor = "{TENSOR}"')
    waived = run(infinite, readers=False, digest=False, waivers=path, today=DAY)
    assert (waived.exit_code, waived.verdict, waived.words) == (0, "waived", "clean with 1 waived finding")
    assert ids(waived) == ids(plain)
    shown = text_of(Kind.AUDIT, waived)
    assert f"WAIVED finding {wrong.id}, tensor {TENSOR}: 1 failure, until 2026-12-31: issue 42" in shown
    assert "CLEAN WITH 1 WAIVED FINDING in " in shown
    assert "(waived)" in shown
    made = json_of(Kind.AUDIT, waived)
    assert [f["waived"] for f in made["findings"] if f["severity"] == "error"] == [True]
    assert made["waivers"][0]["state"] == "applied"
    assert "Clean with 1 waived finding" in str(MARKDOWN.renders[Kind.AUDIT](waived, Form()))
    late = run(infinite, readers=False, digest=False, waivers=path, today=date(2027, 1, 1))
    assert (late.exit_code, late.waivers[0].state) == (1, "expired")
    number = "-".join(wrong.id.split("-")[:2])
    path = written(tmp_path, f'finding = "{number}"\ntensor = "blk.1.*"')
    other = run(infinite, readers=False, digest=False, waivers=path, today=DAY)
    assert (other.exit_code, other.waivers[0].state) == (1, "unused")


def test_a_refused_file_is_never_waived(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML" + TINY["Q4_0"].read_bytes()[4:])
    refused = run(path, readers=False, digest=False)
    held = written(tmp_path, f'finding = "{refused.refused.id}"')
    again = run(path, readers=False, digest=False, waivers=held, today=DAY)
    assert (again.exit_code, again.verdict) == (refused.exit_code, refused.verdict) == (4, "refused")
    assert (again.waived, again.waivers[0].state) == (frozenset(), "unused")


def test_a_wrong_kernel_is_waived_and_not_verified(tmp_path: Path) -> None:
    original = block_bytes(TINY["Q4_0"], TENSOR, 3, 1)
    kernel = TamperedKernel("q8_1_naive", original, original[:2] + bytes(b ^ 0x11 for b in original[2:]))
    options = Options(prompt="Once upon", n_predict=1, tensor=TENSOR, probes="brief", progress=False)

    def found(keys: str, day: date = DAY) -> tuple[int, str]:
        path = written(tmp_path, keys)
        report = verify(TINY["Q4_0"], kernel, rungs=["blocks"], options=options, waivers=path, today=day)
        assert sum(report.rungs[0].failing.values()) == report.n_failures > 0
        return report.exit_code, report.verdict

    assert found(f'tensor = "{TENSOR}"\nkernel = "q8_1_naive"') == (0, "waived")
    assert found(f'tensor = "{TENSOR}"\nkernel = "q8_1"') == (1, "mismatch")
    assert found(f'tensor = "{TENSOR}"', date(2027, 1, 1)) == (1, "mismatch")


def test_a_mistake_in_the_file_is_a_usage_error(tmp_path: Path) -> None:
    path = written(tmp_path, 'tensor = "x"', until='"soon"')
    for command in (["verify", "--rungs", "bytes"], ["audit"]):
        done = command_here(command[0], TINY["Q4_0"], *command[1:], "--waivers", path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "waiver[0].until: must be a date" in done.stderr
    done = command_here(TINY["Q4_0"], "--identify", "--waivers", path)
    assert done.returncode == 2
