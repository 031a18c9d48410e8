"""Help texts, names in any case, suggestions, and old spellings."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_verify.cli import identify, verify
from gguf_verify.cli.command import commands
from gguf_verify.cli.common import add_reports, asked_for
from gguf_verify.cli.files import actions_of
from gguf_verify.cli.kernel_options import effort_of
from gguf_verify.cli.parser import WHERE, Old, Parser
from gguf_verify.cli.verify import build_parser
from gguf_verify.hosts.choice import make_host
from gguf_verify.invocation import command_of
from gguf_verify.report.writer import Kind, every_writer
from gguf_verify.results.options import Options
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.rungs.opening import Request
from gguf_verify.support.errors import UsageError
from gguf_verify.support.near import nearest
from tests.support.tools import assert_one_line, command_here

PARSERS = {name: command.parser for name, command in commands().items()}


@pytest.mark.parametrize("name", PARSERS)
def test_the_short_help_fits_on_one_screen(name: str) -> None:
    done = command_here(name, "-h")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(lines) <= 40
    if any(hasattr(a, "basic") for a in PARSERS[name]()._actions):
        assert max(map(len, lines)) <= 80
        assert len(lines) < len(command_here(name, "--help").stdout.splitlines())


def test_the_short_help_of_the_default_command_has_the_four_groups_and_the_kernel_first() -> None:
    shown = command_here("-h").stdout
    groups = [line for line in shown.splitlines() if line.endswith(":")]
    assert groups == ["what:", "how thorough:", "where:", "reports:"]
    assert shown.index("MODEL.gguf  ") < shown.index("--kernel") < shown.index("--tensor")
    assert "check-certificate, " in shown


@pytest.mark.parametrize("name", PARSERS)
def test_the_full_help_has_every_option_but_the_old_ones(name: str) -> None:
    parser, shown = PARSERS[name](), command_here(name, "--help").stdout
    for action in parser._actions:
        for flag in action.option_strings:
            assert (f"{flag}" in shown) or action.help == argparse.SUPPRESS
        if isinstance(action, Old):
            assert action.help == argparse.SUPPRESS
    assert "check-certificatecompare" not in shown


def test_without_arguments_a_short_help_and_no_success() -> None:
    done = command_here()
    assert (done.returncode, done.stdout) == (2, "")
    for name in PARSERS:
        assert f"\n  {name} " in done.stderr
    asked = command_here("help")
    assert (asked.returncode, asked.stdout) == (0, done.stderr)


def test_the_version_has_a_short_option_everywhere() -> None:
    for name in PARSERS:
        assert command_here(name, "-V").stdout.startswith("gguf-verify 0.")


def test_only_near_misses_are_suggested() -> None:
    known = ["--budget", "--kernel", "--effort", "--host"]
    assert nearest("--quiet", known) == ""
    assert nearest("--kernal", known) == "did you mean '--kernel'? "
    assert nearest("--buget", known) == "did you mean '--budget'? "
    assert nearest("verfy", ["verify", "audit"]) == "did you mean 'verify'? "
    assert_one_line(command_here("x.gguf", "--thorogh"), 2, r"unknown option --thorogh; see gguf-verify --help")


def test_names_in_any_case() -> None:
    parser = build_parser()
    for typed, host in (("CPU", "cpu"), ("cuda", "gpu"), ("CUDA", "gpu"), ("Gpu", "gpu"), ("auto", "auto")):
        assert parser.parse_args(["m.gguf", "--host", typed]).host == host
    assert make_host("CPU").name == "cpu"
    assert parser.parse_args(["m.gguf", "--reference", "CPU"]).reference == "cpu"
    assert parser.parse_args(["m.gguf", "--reference", "Vulkan0"]).reference == "Vulkan0"
    assert parser.parse_args(["m.gguf", "--effort", "Quick"]).effort == "quick"
    kernel = PARSERS["new-kernel"]()
    assert kernel.parse_args(["x.cu", "--type", "q4_k"]).type == "Q4_K"
    with pytest.raises(UsageError, match="--host"):
        parser.parse_args(["m.gguf", "--host", "tpu"])


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["--thorough"], "--thorough is now --effort thorough; this release"),
        (["--probes", "brief"], "--probes brief is now --effort quick; this release"),
        (["--probes", "full"], "--probes full is now --effort full; this release"),
        (["--json", "{}/a.json"], "/a.json is now -o {}/a.json; this release"),
        (["--json", "/dev/null"], "--json /dev/null is now -o report.json; this release"),
        (["--heat-map", "{}/a.svg"], "/a.svg is now -o {}/heat-map.svg; this release"),
        (["--identify"], "`gguf-verify identify KERNEL MODEL.gguf`; this release"),
        (
            ["--source", "f16.gguf"],
            "--source f16.gguf is now `gguf-verify cost MODEL.gguf --source FILE`; this release",
        ),
    ],
)
def test_old_spellings_are_accepted_with_one_line_of_advice(
    words: list[str], now: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_parser().parse_args(["m.gguf", *(word.format(tmp_path) for word in words)])
    said = capsys.readouterr().err
    assert now.format(tmp_path) in said
    assert len(said.splitlines()) == 1
    build_parser().parse_args(["m.gguf"])
    assert capsys.readouterr().err == ""


def test_old_and_new_spellings_of_effort_mean_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    def chosen(*words: str) -> dict[str, object]:
        return effort_of(build_parser().parse_args(["m.gguf", *words]))

    assert chosen("--probes", "brief") == chosen("--effort", "quick") == {"probes": "brief", "thorough": False}
    assert chosen("--thorough") == chosen("--effort", "thorough") == {"probes": "full", "thorough": True}
    assert chosen("--probes", "brief", "--thorough") == {"probes": "brief", "thorough": True}
    capsys.readouterr()
    for old in (["--probes", "full"], ["--probes", "brief"], ["--thorough"]):
        for level in ("quick", "full", "thorough"):
            with pytest.raises(UsageError, match=f"--effort replaces {old[0]}: give one of them"):
                chosen(*old, "--effort", level)
    assert capsys.readouterr().err == ""
    assert chosen() == chosen("--effort", "full") == {"probes": "full", "thorough": False}


@pytest.mark.parametrize("command", ["verify", "kernel", "identify", "cost"])
def test_the_command_that_repeats_a_run_can_be_parsed(command: str) -> None:
    few = Options(
        seed=3, threads=2, tensor="q", prompt="Once", reference="Vulkan0", llama="build", time_limit=5.0,
        sandbox="landlock",
    )  # fmt: skip
    more = replace(few, probes="brief", kernel_time_limit=9.0, kernel_memory=2.0, exact_on="cpu", order="find",
                   declare="k.toml", imports=("a", "b"), loads=("c",), sanitize=True, exit_first=True)  # fmt: skip
    request = {
        "verify": Request("m.gguf", "k.py:gemm", "cpu", ["layers"], replace(more, budget=60.0, repack=True)),
        "kernel": Request(Drawn(("Q4_0",), (1,)), "k.cu", "cpu", ["blocks"], replace(more, prompt=Options.prompt)),
        "identify": Request("m.gguf", "k.cu", "cpu", ["layers"], replace(more, budget=60.0, repack=True)),
        "cost": Request("m.gguf", rungs=("bytes",), options=few, source="f16.gguf", source_text="t.txt"),
    }[command]  # fmt: skip
    words = shlex.split(command_of(request, identify=command == "identify"))[1:]
    assert words[0] == command or command == "verify"
    args = PARSERS[command]().parse_args(words if command == "verify" else words[1:])
    assert (args.seed, args.tensor, args.sandbox, args.time_limit) == (3, "q", "landlock", 5)
    assert not hasattr(args, "advice"), "no old spelling"


@pytest.mark.parametrize("prompt", [("-p", "Once"), ("-f", "prompt.txt")])
def test_an_identification_takes_no_prompt(prompt: tuple[str, str]) -> None:
    """Its activations are known ones."""
    with pytest.raises(UsageError, match=f"^unknown option {prompt[0]}; "):
        identify.run(["k.py:f", *prompt])
    with pytest.raises(UsageError, match=r"^--(prompt|file) applies to a verification"):
        verify.run(["m.gguf", "--identify", *prompt])


def test_o_lists_the_kinds_of_reports_once() -> None:
    helps = [
        a.help or ""
        for p in PARSERS.values()
        for a in actions_of(p())
        if a.dest == "reports" and "-o" in a.option_strings
    ]
    assert len(helps) > 5
    for said in helps:
        listed = re.findall(r"(?<![\w-])[\w-]*\.[a-z]+", said)
        assert len(listed) == len({*listed}) > 0
        assert len(said) < 200


# ---- files of reports ------------------------------------------------------------------------------------------------


def _reports(*words: str, kind: Kind = Kind.RUN) -> dict[str, str]:
    parser = Parser(prog="x")
    add_reports(parser, *Kind)
    return {file.path.name: file.writer.name for file in asked_for(parser.parse_args([*words]), kind)}


def test_the_ending_of_a_file_selects_its_format(tmp_path: Path) -> None:
    names = {
        "a.json": "JSON", "A.HTML": "HTML", "b.md": "Markdown", "c.sarif": "SARIF", "d.sarif.json": "SARIF",
        "e.svg": "card", "f.png": "card", "my-heat-map.png": "heat map", "annotations.txt": "annotations",
    }  # fmt: skip
    words = [word for name in names for word in ("-o", str(tmp_path / name))]
    assert _reports(*words) == names
    assert _reports("-o", str(tmp_path / "g.xml"), kind=Kind.GRAPH) == {"g.xml": "JUnit"}
    assert _reports("--json", str(tmp_path / "a.txt")) == {"a.txt": "JSON"}, "an old flag needs no ending"


def test_an_unknown_ending_is_one_line(tmp_path: Path) -> None:
    for name in ("a.pdf", "a", "json"):
        with pytest.raises(UsageError, match=r"the ending selects the format; known endings: .*\.json") as raised:
            _reports("-o", str(tmp_path / name))
        assert raised.value.exit_code == 2
    with pytest.raises(UsageError, match=r"a\.xml: this command has no JUnit report"):
        _reports("-o", str(tmp_path / "a.xml"))
    with pytest.raises(UsageError, match="would overwrite a model"):
        _reports("-o", str(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("words", "said"), [(["m.gguf"], "the kernel is missing: "), (["M.GGUF", "k.py:f"], "the kernel comes first: ")]
)
def test_a_model_in_the_place_of_the_kernel(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}gguf-verify identify KERNEL MODEL.gguf$"):
        identify.run(words)


def test_a_folder_for_all_reports(tmp_path: Path) -> None:
    made = _reports("--report-dir", str(tmp_path / "new"))
    assert made == {
        "report.json": "JSON", "report.html": "HTML", "report.md": "Markdown", "report.sarif": "SARIF",
        "card.svg": "card", "heat-map.svg": "heat map", "annotations.txt": "annotations",
    }  # fmt: skip
    assert (tmp_path / "new").is_dir()
    assert _reports("--report-dir", str(tmp_path), kind=Kind.JUDGEMENT).keys() < made.keys()
    with pytest.raises(UsageError, match="cannot make the folder"):
        _reports("--report-dir", str(tmp_path / "no" / "such"))
    (tmp_path / "report.json").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        _reports("--report-dir", str(tmp_path))


def test_every_writer_has_an_ending_of_its_own() -> None:
    for kind in Kind:
        able = [w for w in every_writer() if kind in w.renders and w.flag is not None]
        endings = [end for writer in able for end in writer.endings]
        assert len(endings) == len({*endings})
        assert all(writer.endings for writer in able)


def test_a_group_is_made_once() -> None:
    parser = Parser(prog="x")
    assert parser.group(WHERE) is parser.group(WHERE)
    assert [*actions_of(parser)]
