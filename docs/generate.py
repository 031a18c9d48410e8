"""Write the pages, tables and pictures that are made from the code and from kept results.

python docs/generate.py            # writes the files of PAGES; of benchmarks.md, backend-measurements.md,
                                   # certificates.md and evidence.md only the tables between the marks
python docs/generate.py --check    # exits with 1 if a file is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE.parent)]

from docs import pictures  # noqa: E402
from gguf_verify.certificates import registry  # noqa: E402
from gguf_verify.cli.command import commands  # noqa: E402 - the checkout's package comes first
from gguf_verify.cli.explain import explanations  # noqa: E402
from gguf_verify.diagnosis.faults import FAULTS  # noqa: E402
from gguf_verify.diagnosis.observed import OBSERVED  # noqa: E402
from gguf_verify.formats.block import BlockFormat  # noqa: E402
from gguf_verify.formats.diagram import bit_diagram  # noqa: E402
from gguf_verify.formats.element import SLICE  # noqa: E402
from gguf_verify.formats.tensor_types import ACTIVATION_FORMATS, ELEMENT_TYPES, ELEMENTS, FORMATS  # noqa: E402
from gguf_verify.gguf.rules import RULES, Rule  # noqa: E402
from gguf_verify.kernels.ladder import KERNELS  # noqa: E402
from gguf_verify.kernels.shipped import ELEMENT_KERNELS  # noqa: E402
from gguf_verify.semantics.definitions import SEMANTICS  # noqa: E402
from gguf_verify.support.text import sentence  # noqa: E402
from tests.meta.museum.page import museum  # noqa: E402
from tools.measure import coverage, markdown  # noqa: E402
from tools.measure.__main__ import build_parser  # noqa: E402
from tools.measure.backends import RESULTS as BACKENDS_RESULTS  # noqa: E402
from tools.measure.backends import page as backends_page  # noqa: E402
from tools.measure.backends import records as backends_records  # noqa: E402
from tools.measure.bench import growth, records  # noqa: E402
from tools.measure.engines import page as engines_page  # noqa: E402
from tools.measure.engines.catalogue import read as engines_catalogue  # noqa: E402
from tools.measure.markdown import NOTE, cell  # noqa: E402

#: The effect of a rule → its heading on the page, and the consequence for the file.
EFFECTS = {
    "refuse": ("Refused", "To continue reading would be unsafe or ambiguous. Exit code 4."),
    "error": ("Errors", "The file is well defined but wrong. Exit code 1."),
    "warning": ("Warnings", "Programs can still interpret the file. Exit code 0, or 1 with `--strict`."),
    "note": ("Notes", "For information. A note never changes the exit code."),
}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


# ---- the command line ------------------------------------------------------------------------------------------------


def _spelled(action: argparse.Action) -> str:
    """Return an option or positional argument as the user types it."""
    value = action.metavar
    if value is None and action.choices is not None:
        value = "|".join(map(str, action.choices))
    if value is None and action.nargs != 0:
        value = action.dest.upper() if action.option_strings else action.dest
    names = ", ".join(action.option_strings)
    return " ".join(filter(None, (names, value if isinstance(value, str) and action.nargs != 0 else "")))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog, "choices": ", ".join(map(str, action.choices or ()))}
    return cell((action.help or "") % values)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    first, second, *others = parser._action_groups  # positional arguments, options, groups with titles
    groups = [("", [*first._group_actions, *second._group_actions])]
    for title, actions in [*groups, *((g.title, g._group_actions) for g in others)]:
        shown = [
            a for a in actions
            if a.help != argparse.SUPPRESS and not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)
            and "--version" not in a.option_strings
        ]  # fmt: skip
        if shown:
            rows = [(f"`{_spelled(a)}`".replace("|", "\\|"), _help(parser, a)) for a in shown]
            yield from (*([f"*{title}*", ""] if title else []), *_table(("argument", "meaning"), rows), "")


def _command(parser: argparse.ArgumentParser, level: int, summary: str = "") -> Iterator[str]:
    yield from (f"{'#' * level} {parser.prog}", "")
    yield from ((parser.description or summary).strip(), "")
    yield from _arguments(parser)
    if parser.epilog:
        yield from ("```", *parser.epilog.strip().splitlines(), "```", "")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {a.dest: a.help or "" for a in action._choices_actions}
            for name, child in action.choices.items():
                yield from _command(child, level + 1, summaries.get(name, ""))


#: The section on settings.
SETTINGS = """\
## Settings of a project
`gguf-verify.toml`, or the table `[tool.gguf-verify]` of `pyproject.toml`, changes defaults for every command that runs
something, for the pytest plug-in and for the cells of a night (in the folder of its configuration). The file of the
current folder is read, or else that of the nearest parent that has settings. Options of the command line take
precedence. One line on standard error, or in pytest's head, says what was read. A wrong key or value, or a file that
cannot be read, is exit code 2.

```toml
sandbox = "bubblewrap"       # require the boundary; the only other value is "auto"
time-limit = 900             # seconds that llama.cpp may take for one answer
kernel-time-limit = 60       # seconds of one call of a kernel
kernel-memory = 16           # GiB of a kernel's processes
ray = "local"                # judge in processes of Ray on this machine
import = ["my_package.ops"]  # modules to import before PyTorch's operators are looked up
load = ["build/libops.so"]   # libraries to load before that, relative to the file
```

There is no key that skips a check, waives a finding or lowers the isolation:
[security](../SECURITY.md#settings-of-a-project) says why. Functions of Python, such as `gguf_verify.verify`, read no
settings.""".splitlines()


def command_line() -> str:
    """docs/command-line.md."""
    found = commands()
    lines = [
        "# Command line", "", NOTE, "",
        "    gguf-verify [COMMAND] …", "",
        *_table(("command", ""), [(f"[`{c.name}`](#gguf-verify-{c.name})", cell(c.summary)) for c in found.values()]),
        "",
        "Without a command, `verify` runs: `gguf-verify MODEL.gguf`. `python -m gguf_verify` is the same program. In a "
        "checkout, `python scripts/verify_model.py` is `verify`, `python scripts/audit_layout.py` is `audit`, and "
        "`python scripts/nightly.py` is `nightly`.",
        "",
        "The result goes to standard output, progress and errors go to standard error. `-h` shows the most used "
        "options of a command, `--help` all of them, and `-V` the version. Names of types, hosts and levels may be "
        "written in any case; `cuda` is another name of the host `gpu`. See also [exit codes](exit-codes.md).", "",
        *SETTINGS, "",
    ]  # fmt: skip
    for command in found.values():
        parser = command.parser()
        parser.prog = f"gguf-verify {command.name}"
        lines += _command(parser, 2, command.summary)
    lines += _command(build_parser(), 2)
    return "\n".join(lines).rstrip("\n") + "\n"


# ---- findings --------------------------------------------------------------------------------------------------------


def findings() -> str:
    """docs/findings.md."""
    rules: list[Rule] = sorted(RULES.values(), key=lambda rule: rule.number)
    lines = [
        "# Findings", "", NOTE, "",
        "Every problem that [an audit](tutorials/model-publisher.md) can report about a file. Ids are stable, so "
        "scripts may rely on them.",
    ]  # fmt: skip
    for effect, (title, meaning) in EFFECTS.items():
        of_effect = [rule for rule in rules if rule.effect == effect]
        if of_effect:
            lines += ["", f"## {title}", meaning]
        for rule in of_effect:
            why = f"{sentence(rule.why)}."
            lines += ["", f"### {rule.id}", why, "", f"**Cause:** {rule.cause}", "", f"**Cure:** {rule.cure}"]
    return "\n".join(lines) + "\n"


# ---- known faults ----------------------------------------------------------------------------------------------------


def faults() -> str:
    """docs/faults.md."""
    lines = [
        "# Known faults", "", NOTE, "",
        f"The {len(FAULTS)} faults whose outputs [the diagnosis](diagnosis.md) predicts and compares with those of a "
        "wrong kernel. Some have variants (a direction, a tile).", "",
        *_table(("id", "what is wrong", "fix"), [(f"`{f.id}`", cell(f.words), cell(f.fix)) for f in FAULTS]), "",
        f"{len(OBSERVED)} more are not predicted but observed: in a checked build, in further calls, in the bytes of "
        "the activation quantizer, or as a pattern in the outputs.", "",
        *_table(("id", "what is wrong", "fix"), [(f"`{f.id}`", f.words, f.fix) for f in OBSERVED.values()]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


# ---- messages --------------------------------------------------------------------------------------------------------


def messages() -> str:
    """docs/messages.md."""
    known = explanations().values()
    lines = [
        "# Messages", "", NOTE, "",
        "The ids in messages and reports, explained. `gguf-verify explain ID` prints the same text. A [rung]"
        "(glossary.md#rung) is a step of a run. The ids of [audit findings](findings.md) and of [known faults]"
        "(faults.md) have their own pages. Ids are stable, so scripts may rely on them.", "",
    ]  # fmt: skip
    for kind in dict.fromkeys(e.kind for e in known if e.kind not in ("findings", "faults")):
        lines += [f"## {kind.capitalize()}", ""]
        for e in known:
            if e.kind == kind:
                lines += [f"### {e.id}", e.what, "", f"**Why:** {e.why}", "", f"**Fix:** {e.fix}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


# ---- formats ---------------------------------------------------------------------------------------------------------


def _code(name: str) -> str:
    return f"`{name}`" if name else "–"


def _of_types() -> Iterator[str]:
    rows = []
    for f in FORMATS.values():
        minimum = "stored" if f.has_min else f"-{f.offset}·d" if f.offset else "none"
        rows.append((
            f"[{f.name}](#{f.name.lower()})", str(f.type_id), f"{f.bits_per_weight:g}", str(f.block_size),
            str(f.block_bytes), str(f.group), f"{f.low} to {f.low + 2**f.bits - 1}", minimum,
            *map(_code, (f.llama.cpu, f.llama.mmvq, f.llama.mmq)),
        ))  # fmt: skip
    head = ("type", "id", "bits a weight", "block", "bytes", "group", "codes", "minimum", "CPU", "MMVQ", "MMQ")
    yield from _table(head, rows)


def _of_kernels() -> Iterator[str]:
    everything = [f"`{name}`" for name, spec in KERNELS.items() if spec.formats is None]
    yield f"All four rungs and the kernels {', '.join(everything)} support every type in the table."
    some = {name: tuple(f for f in FORMATS if f in spec.formats) for name, spec in KERNELS.items() if spec.formats}
    for types in dict.fromkeys(some.values()):
        names = [f"`{name}`" for name, covered in some.items() if covered == types]
        yield f"The kernels {', '.join(names)} support {', '.join(types)}."


def _of_fields(fmt: BlockFormat, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {fmt.name}", "")
    yield from (f"`{fmt.rule}` · {fmt.block_size} values in {fmt.block_bytes} bytes · {fmt.source}", "")
    rows = []
    for field in fmt.fields:
        at = fmt.field_offset(field.name)
        span = f"{at}" if field.nbytes == 1 else f"{at} to {at + field.nbytes - 1}"
        items = field.c_type if field.count == 1 else f"{field.c_type} × {field.count}"
        rows.append((field.name, span, items, field.doc))
    yield from (*_table(("field", "bytes", "items", "meaning"), rows), "")
    drawn = (line.rstrip() for _, drawing in bit_diagram(fmt.fields) for line in drawing)
    yield from ("```", *drawn, "```", "")


def formats() -> str:
    """docs/formats.md."""
    lines = [
        "# Formats", "", NOTE, "",
        "Every quantized tensor type that llama.cpp v0.5.0 writes into a file, from its record in "
        "`harness/gguf_verify/formats`. A row of K values is K/block blocks. Value i of a block is d[g]·q[i] + m[g] "
        "with g = i // group. In superblocks, d[g] is the product of the two scales. Zero points, signs, grids and "
        "tables are part of the integers q.", "",
        *_of_types(), "",
        "The last three columns give the [definition](concepts.md#definitions) that llama.cpp implements: on the CPU, "
        "and on CUDA for few tokens (MMVQ) and for many (MMQ). A dash means that no definition here describes it.", "",
        *_of_kernels(), "",
        *_table(("definition", "block term", "who"), [(f"`{s.name}`", s.title, s.source) for s in SEMANTICS.values()]),
        "",
    ]  # fmt: skip
    for fmt in FORMATS.values():
        lines += _of_fields(fmt, 2)
    lines += ["## Activations", ""]
    for fmt in ACTIVATION_FORMATS.values():
        if fmt.name not in FORMATS:
            lines += _of_fields(fmt, 3)
    rows = [
        (f.name, str(f.type_id), str(8 * f.block_bytes), _code(f.llama.cpu), _code(ELEMENT_KERNELS[f.name].name))
        for f in ELEMENTS.values()
    ]
    lines += [
        "## Elements", "",
        f"{', '.join(ELEMENT_TYPES)}: single values, little-endian, without blocks.", "",
        f"Matrices of {', '.join(ELEMENTS)} also go through all four rungs. Their activations are rounded to the type "
        f"of the weights, to nearest even. In the blocks rung and in failures, {SLICE} values of a row count as a "
        "block; the last block of a row may be shorter.", "",
        *_table(("type", "id", "bits a weight", "CPU", "kernel"), rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


# ---- evidence --------------------------------------------------------------------------------------------------------


def evidence() -> str:
    """docs/evidence.md, with the coverage of the shipped kernels from docs/coverage.json."""
    return markdown.filled(markdown.EVIDENCE.read_text(), coverage.tables(coverage.load()), "coverage")


# ---- the registry ----------------------------------------------------------------------------------------------------

CERTIFICATES = HERE / "certificates"


def certificates() -> str:
    """docs/certificates.md, with the table of the certificates that are kept in docs/certificates."""
    entries = "\n".join(registry.table(registry.entries(CERTIFICATES), CERTIFICATES.name))
    return markdown.filled((HERE / "certificates.md").read_text(), {"verified": entries}, "registry")


def verified_feed() -> str:
    """docs/verified.json."""
    return registry.feed(registry.entries(CERTIFICATES))


# ---- engines ---------------------------------------------------------------------------------------------------------


def engines() -> str:
    """docs/engines.md."""
    return engines_page.render(engines_page.load(), engines_catalogue())


# ---- benchmarks ------------------------------------------------------------------------------------------------------


def benchmarks() -> str:
    """docs/benchmarks.md, with the tables of verifications from docs/benchmarks.json."""
    runs, planted = records.load(records.Run, records.RUNS), records.load(records.Planted, records.PLANTED)
    made = growth.tables(runs, planted)
    return markdown.filled(markdown.BENCHMARKS.read_text(), made, "bench")


def backends() -> str:
    """docs/backend-measurements.md, with tables from docs/backends.json and findings from docs/backends.toml."""
    made = backends_page.render(backends_records.load(BACKENDS_RESULTS), backends_page.findings())
    return markdown.filled(backends_page.PAGE.read_text(), made, "backends")


PAGES: dict[str, Callable[[], str]] = {
    "certificates.md": certificates, "verified.json": verified_feed,
    "command-line.md": command_line, "findings.md": findings, "faults.md": faults,
    "messages.md": messages,
    "formats.md": formats, "museum.md": museum, "evidence.md": evidence, "engines.md": engines,
    "benchmarks.md": benchmarks, "backend-measurements.md": backends, **pictures.PICTURES,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    options = parser.parse_args()
    old = []
    for name, make in PAGES.items():
        page, text = HERE / name, make()
        if not page.exists() or page.read_text() != text:
            old.append(name)
            if not options.check:
                page.write_text(text)
    if options.check and old:
        print(f"out of date: {', '.join(old)}; run: python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
