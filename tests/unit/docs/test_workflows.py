"""The workflows: what a reviewer would ask of them, and the linters that are installed."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gguf_verify.formats import FORMATS
from gguf_verify.hosts import HOST_CHOICES
from gguf_verify.kernels.families import FAMILIES
from gguf_verify.kernels.ladder import KERNELS
from tests.support.needs import need
from tests.support.tools import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs() -> Iterator[tuple[str, dict[str, Any], dict[object, Any]]]:
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "fuzz.yml", "nightly.yml"}
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        for name, job in workflow["jobs"].items():
            yield f"{path.name}: {name}", job, workflow


JOBS = pytest.mark.parametrize(("job", "workflow"), [pytest.param(job, flow, id=name) for name, job, flow in jobs()])


@JOBS
def test_least_privilege(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    assert workflow["permissions"] == {}
    writes = {name for name, right in job["permissions"].items() if right != "read"}
    assert writes <= {"issues"}
    if writes:
        uses = [step.get("uses", "") for step in job["steps"]]
        assert not any("checkout" in name for name in uses), "who may write runs no code of the repository"
    for step in job["steps"]:
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@JOBS
def test_bounded(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    assert 0 < job["timeout-minutes"] <= 360
    assert workflow["concurrency"]["group"]


@JOBS
def test_no_text_becomes_code(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    for step in job["steps"]:
        assert "${{" not in step.get("run", ""), "pass it in env"


@JOBS
def test_a_machine_of_ones_own_is_off_by_default(job: dict[str, Any], workflow: dict[object, Any]) -> None:
    if "self-hosted" in job["runs-on"]:
        assert job["if"].startswith("vars.GPU_RUNNER == 'true'")
        triggers = workflow[True]  # YAML 1.1 reads `on` as a truth
        assert "pull_request" not in triggers or "github.event_name == 'push'" in job["if"]


def test_actions_are_pinned() -> None:
    for path in WORKFLOWS:
        found = re.findall(r"uses: (.*)", path.read_text())
        assert found
        for used in found:
            own = used.startswith("./ #")
            assert own or re.fullmatch(r"actions/[a-z/-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", used)


def test_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    stated = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == stated == ["3.11", "3.12", "3.13", "3.14"]


def test_the_matrix_of_the_night() -> None:
    config = tomllib.loads((ROOT / ".github/nightly.toml").read_text())
    assert {*config["kernels"]} <= {*KERNELS, *FAMILIES}
    assert {*config["hosts"]} <= {*HOST_CHOICES}
    assert {*config["quantize"]["types"]} <= {*FORMATS}
    for path in (*config["models"], *config["quantize"]["sources"]):
        assert (ROOT / path).is_file()
    versions = {v.get("llama-cpp-python") for v in config["variants"].values()}
    assert len(versions) >= 3


LINTERS = (
    "check-jsonschema --builtin-schema vendor.github-workflows",
    "zizmor --offline --no-progress --persona pedantic",
    "actionlint",
)


@pytest.mark.parametrize("command", LINTERS)
def test_linters(command: str) -> None:
    program, *arguments = command.split()
    need(program)
    line = [program, *arguments, *map(str, WORKFLOWS)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
