"""action.yml: its form, and its steps with programs that stand in for the real ones."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.report.annotations import MOST, render
from gguf_verify.report.digest import Digest, Finding
from gguf_verify.report.writer import Form, Kind
from gguf_verify.report.writers import ANNOTATIONS
from gguf_verify.results.failures import Unverified
from tests.support.actions import ACTION, STEPS, Ran, program, run_step
from tests.support.needs import need
from tests.support.nights import HOSTILE, run_result
from tests.support.tools import ROOT

WRONG = "blk.1.attn_k.weight"
#: Stands in for gguf-verify: writes its arguments and the requested reports, and ends with a code.
STUB = """
import json, os, sys
open(os.path.join(os.environ["HOME"], "called"), "w").write(json.dumps(sys.argv[1:]))
print("::error::said by a hostile name")
code, reports = {code}, {reports}
for word in sys.argv if reports else ():
    name, _, path = word.partition("=")
    if name == "--report-dir":
        texts = {{"report.md": "## Summary", "annotations.txt": "::error title=t::told", "report.json": "x"}}
        for name, text in (texts | {{"report.html" if "verify" in sys.argv else "report.sarif": "x"}}).items():
            open(os.path.join(path, name), "w").write(text + "\\n")
sys.exit(code)
"""


def ran(folder: Path, code: int = 0, reports: bool = True, **inputs: Any) -> tuple[Ran, list[str]]:
    """The last step with a stub, and the stub's arguments."""
    stub = program(folder, STUB.format(code=code, reports=reports))
    given = {"COMMAND": "verify", "MODEL": "m.gguf", "KERNEL": "", "ARGS": "", "FAIL_ON": "unverified", **inputs}
    done = run_step("Run gguf-verify", folder, GGUF_VERIFY=stub, **given)
    called = folder / "called"
    return done, json.loads(called.read_text()) if called.exists() else []


# ---- its form --------------------------------------------------------------------------------------------------------


def test_no_input_becomes_code() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", ""), "pass it in env"


def test_other_actions_are_pinned() -> None:
    for used in re.findall(r"uses: (.*)", (ROOT / "action.yml").read_text()):
        assert re.fullmatch(r"actions/[a-z/-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", used)


def test_every_input_is_used_and_every_output_is_made(tmp_path: Path) -> None:
    text = (ROOT / "action.yml").read_text()
    for name, declared in ACTION["inputs"].items():
        assert f"inputs.{name} " in text
        assert declared["description"]
        assert declared.get("required") or "default" in declared
    done, _ = ran(tmp_path)
    named = {re.search(r"outputs\.([\w-]+)", o["value"])[1] for o in ACTION["outputs"].values()}
    assert named == done.outputs.keys()


def test_the_page_lists_every_input_and_output() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    for name in (*ACTION["inputs"], *ACTION["outputs"]):
        assert f"| `{name}` |" in page


@pytest.mark.parametrize(
    "command",
    ["check-jsonschema --builtin-schema vendor.github-actions", "zizmor --offline --no-progress --persona pedantic"],
)
def test_linters(command: str) -> None:
    name, *arguments = command.split()
    need(name)
    line = [name, *arguments, str(ROOT / "action.yml")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- its steps -------------------------------------------------------------------------------------------------------


def test_a_pass(tmp_path: Path) -> None:
    done, called = ran(tmp_path, KERNEL="my kernel.py:gemm", ARGS="--rungs blocks --prompt 'two words'")
    reports = done.outputs["reports"]
    assert done.code == 0
    assert called == [
        "verify", f"--report-dir={reports}", "--kernel=my kernel.py:gemm", "--rungs", "blocks", "--prompt",
        "two words", "--", "m.gguf",
    ]  # fmt: skip
    assert done.summary == "## Summary\n"
    assert done.out.splitlines()[-1] == "::error title=t::told"
    assert (done.outputs["exit-code"], done.outputs["sarif"]) == ("0", "")
    assert Path(done.outputs["html"]).is_file()


def test_an_audit_has_sarif_and_no_kernel(tmp_path: Path) -> None:
    done, called = ran(tmp_path, COMMAND="audit", KERNEL="q8_1")
    assert called[0] == "audit"
    assert not any(word.startswith("--kernel") for word in called)
    assert Path(done.outputs["sarif"]).is_file()


@pytest.mark.parametrize(
    ("fail_on", "codes"),
    [("unverified", [0, 1, 2, 3, 4, 5]), ("mismatch", [0, 1, 2, 3, 4, 0]), ("never", [0, 0, 0, 0, 0, 0])],
)
def test_exit_codes_that_fail_the_job(tmp_path: Path, fail_on: str, codes: list[int]) -> None:
    for code, expected in enumerate(codes):
        done, _ = ran(tmp_path, code, FAIL_ON=fail_on)
        assert (done.code, done.outputs["exit-code"]) == (expected, str(code))


def test_a_missing_report_is_an_error(tmp_path: Path) -> None:
    done, _ = ran(tmp_path, 3, reports=False)
    assert done.code == 3
    assert "ended with exit code 3" in done.summary
    assert done.out.splitlines()[-1].startswith("::error title=gguf-verify::verify ended with exit code 3")
    assert done.outputs["json"] == done.outputs["html"] == ""


def test_printed_text_is_no_command(tmp_path: Path) -> None:
    """A tensor may have any name, and GitHub obeys lines of the log that begin with two colons."""
    done, _ = ran(tmp_path)
    lines = done.out.splitlines()
    stop = lines.index("::error::said by a hostile name")
    token = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", lines[stop - 1])[1]
    assert lines[stop + 1] == f"::{token}::"
    again, _ = ran(tmp_path)
    assert token not in again.out


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"COMMAND": "rm"}, "command is verify or audit"), ({"FAIL_ON": "x"}, "fail-on is"),
        ({"MODEL": ""}, "model is empty"), ({"ARGS": "'open"}, "quotation mark"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_one_line(tmp_path: Path, inputs: dict[str, Any], words: str) -> None:
    done, called = ran(tmp_path, **inputs)
    assert (done.code, called) == (2, [])
    (line,) = done.out.splitlines()
    assert line.startswith("::error title=gguf-verify::")
    assert words in line


def test_inputs_run_nothing(tmp_path: Path) -> None:
    hostile = "$(touch pwned) `touch pwned`; touch pwned"
    done, called = ran(tmp_path, MODEL=hostile, KERNEL=hostile, ARGS="'$(touch pwned)' \\; touch pwned")
    assert done.code == 0
    assert called[-1] == hostile
    assert f"--kernel={hostile}" in called
    assert not (tmp_path / "pwned").exists()


def test_an_input_is_no_option(tmp_path: Path) -> None:
    _, called = ran(tmp_path, MODEL="--help-me")
    assert called[-2:] == ["--", "--help-me"]


def test_it_installs_its_own_checkout_in_an_environment_of_its_own(tmp_path: Path) -> None:
    record = """
import os, sys
with open(os.path.join(os.environ["HOME"], "calls"), "a") as log:
    log.write(" ".join([*sys.argv[1:], os.environ["PIP_CACHE_DIR"]]) + "\\n")
if sys.argv[1:3] == ["-m", "venv"]:
    os.makedirs(sys.argv[3] + "/bin")
    os.symlink(sys.argv[0], sys.argv[3] + "/bin/python")
print("noise")
"""
    packages = "torch '-r requirements.txt'"
    done = run_step("Install gguf-verify", tmp_path, PYTHON=program(tmp_path, record), PACKAGES=packages)
    assert done.code == 0, done.err
    environment, cache = tmp_path / "runner" / "gguf-verify", tmp_path / ".cache" / "gguf-verify-action"
    calls = (tmp_path / "calls").read_text().splitlines()
    wanted = "torch -r requirements.txt"
    installs = [line for line in calls if line.startswith("-m pip install")]
    assert calls[0] == f"-m venv {environment} {cache}"
    assert all(line.endswith(str(cache)) for line in calls if line.startswith("-m "))
    for line, name in zip(installs, ("build", "llama"), strict=False):
        assert "--require-hashes" in line
        assert f" -r {ROOT}/requirements/{name}.txt " in line
    assert installs[2:] == [
        f"-m pip install --quiet --no-deps --no-build-isolation {ROOT} {cache}",
        f"-m pip install --quiet --constraint {tmp_path}/runner/gguf-verify-locked.txt {wanted} {cache}",
    ]
    locked = (tmp_path / "runner" / "gguf-verify-locked.txt").read_text()
    assert "--hash" not in locked
    assert re.search(r"^llama-cpp-python==[0-9.]+$", locked, re.MULTILINE)
    assert done.outputs == {"program": f"{environment}/bin/gguf-verify"}


def test_a_build_is_kept_for_its_python_and_its_processor(tmp_path: Path) -> None:
    keys = set()
    for minor in (11, 13, 13):
        stand_in = program(tmp_path, f"print('py3.{minor}')")
        done = run_step("Name the build of llama.cpp", tmp_path, PYTHON=stand_in)
        assert re.fullmatch(rf"py3\.{minor}-[0-9a-f]{{32}}", done.outputs["key"])
        keys.add(done.outputs["key"])
    assert len(keys) == 2


# ---- annotations -----------------------------------------------------------------------------------------------------


def finding(heading: str, message: str) -> Finding:
    return Finding(rule="layers-mismatch", level="error", heading=heading, message=message, path="tiny-Q4_0.gguf")


def rendered(*findings: Finding) -> str:
    return render(Digest(level="bad", words="mismatch", exit_code=1, findings=findings))


def lines_of(report: object) -> list[str]:
    return str(ANNOTATIONS.renders[Kind.RUN](report, Form())).splitlines()


def test_a_verified_run_has_one_notice_of_what_was_skipped() -> None:
    (line,) = lines_of(run_result())
    assert line.startswith("::notice title=tiny-Q4_0.gguf%3A verified::skipped: ")


def test_the_diagnosis_comes_first() -> None:
    lines = lines_of(run_result(wrong=WRONG))
    assert lines[0].startswith("::error title=tiny-Q4_0.gguf%3A mismatch::blk.1.attn_k.weight: unknown: no fault")
    assert "layers: kernel: blk.1.attn_k.weight row 17 block 3" in lines[2]


def test_an_unverified_check_is_a_warning() -> None:
    report = run_result()
    report.rungs[1].unverified.append(Unverified("blk.0.x", "no kernel"))
    line, notice = lines_of(report)
    assert notice.startswith("::notice title=")
    assert line.startswith("::warning title=")
    assert line.endswith("::blocks: blk.0.x could not be verified: no kernel")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_begins_a_command(name: str) -> None:
    report = run_result([name], name)
    for line in [*lines_of(report), *rendered(finding(name, f"{name}\n::error::x\r%0A")).split("\n")[:-1]]:
        assert re.fullmatch(r"::(error|warning|notice) title=[^:,]*::.*", line)
        assert line.isprintable()


def test_no_more_than_github_shows() -> None:
    lines = rendered(*(finding("t", str(i)) for i in range(40))).splitlines()
    assert len(lines) == MOST
    assert lines[-1] == "::error title=gguf-verify::and 31 more, see the report"
    assert len(rendered(*(finding("t", str(i)) for i in range(10))).splitlines()) == 10


def test_a_broken_run_is_reported() -> None:
    report = run_result()
    report.rungs[3].fault = "llama.cpp died"
    assert any(line.endswith("::tokens: llama.cpp died") for line in lines_of(report))
