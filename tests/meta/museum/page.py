"""The page docs/museum.md, from the exhibits and docs/museum.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tools.measure.markdown import NOTE, cell, table

from .collection import EXHIBITS, Exhibit, Finding, findings

_GATES = {"allclose": "allclose(rtol=10⁻²)", "NMSE": "NMSE ≤ 5·10⁻⁴", "cosine": "cosine ≥ 0.98"}


def _source(exhibit: Exhibit) -> str:
    """Return the source, with a link if it is a thread."""
    text = exhibit.label.source
    repository, number = text.split(" ")[0].partition("#")[::2]
    return f"[{text}](https://github.com/{repository}/issues/{number})" if exhibit.historical else cell(text)


def _reported(found: Finding) -> str:
    """Return the verdict on an exhibit and whether the diagnosis was correct."""
    if not found.caught:
        return "**verified**" if found.plan == "full" else "**verified** (by the brief plan alone)"
    where = f"{found.verdict} ({', '.join(found.rungs)})"
    named = f": {', '.join(f'`{name}`' for name in found.names)}" if found.names else ""
    return f"{where}{named}; {'named' if found.naming == 'right' else 'not named'}"


#: Why no branch gave an exhibit away.
_NO_BRANCH = {
    "every line": "right calls take all branches that it takes",
    "named lines": "right calls run the lines that the checked build names",
    "first call": "its first call is wrong",
    "no call": "no call is wrong",
    "not counted": "not observed: a checked build does not count, nor does a process that ended",
}


def _gave_away(found: Finding) -> str:
    """Return the branch that only the first wrong call takes, or why there is none, and that call."""
    away = found.given_away
    if away is None or not found.caught:
        return "–"
    code = (" ".join(branch.split()).replace("|", "\\|") for branch in away.branches)
    branches = "<br>".join(f"`{branch}`" for branch in code) or _NO_BRANCH[away.why]
    return f"{branches}<br>{f'{away.rung}: ' * bool(away.rung)}{cell(away.check)}"


def _museum_row(name: str, found: Sequence[Finding]) -> tuple[str, ...]:
    of = len(found)
    caught = sum(f.caught for f in found)
    named = sum(f.caught and f.naming == "right" for f in found)
    missed = [str(sum(f.gates[gate] for f in found)) for gate in _GATES]
    return (name, str(of), str(caught), str(named), *missed)


def museum() -> str:
    """docs/museum.md."""
    found = findings()
    kinds = {kind: [e for e in EXHIBITS.values() if e.label.kind == kind] for kind in sorted(
        {e.label.kind for e in EXHIBITS.values()}
    )}  # fmt: skip
    twins = [f.twin for f in found.values() if f.twin]
    away = Counter(f.given_away.why for f in found.values() if f.given_away is not None and f.caught)
    rows = [
        _museum_row(f"[{kind}](#{kind.lower().replace(' ', '-').replace('^', '')})", [found[e.id] for e in of])
        for kind, of in kinds.items()
    ]
    lines = [
        "# Museum of bugs", "", NOTE, "",
        f"{sum(e.historical for e in EXHIBITS.values())} real bugs of quantized kernels and of programs around them, "
        f"each re-created in a few lines, and {sum(not e.historical for e in EXHIBITS.values())} constructed ones. "
        "Each has a correct twin that differs in a line or two. They are verified as a user would do it: "
        "`gguf-verify MODEL.gguf --kernel FILE:gemm` on the CPU host. The kernels are in "
        "`tests/meta/museum/exhibits/`.", "",
        f"`gguf-verify` rejects {sum(f.caught for f in found.values())} of the {len(found)} exhibits and verifies "
        f"{sum(t == 'verified' for t in twins)} of the {len(twins)} twins that were tried with the full [probe plan]"
        "(kernels-of-your-own.md). The diagnosis names "
        f"{sum(f.caught and f.naming == 'right' for f in found.values())} bugs correctly and "
        f"{sum(f.naming == 'wrong' for f in found.values())} incorrectly.", "",
        "*Given away by* is the first check that fails, and the branch of the exhibit's code that only its call takes: "
        "after each call, the lines that were executed and the ways that branches have taken are read, up to the first "
        "failure; a branch that is compiled without a jump is seen by the diagnosis, which traces comparisons. "
        f"A branch gave {away['branch']} exhibits away. {away['every line'] + away['named lines']} take none "
        "that right calls do not take: data, sizes or threads show them. "
        f"{away['first call']} are wrong from the first call on, {away['no call']} make no wrong call, and that of "
        f"{away['not counted']} cannot be observed: a checked build does not count.", "",
        "The last three columns count the exhibits that other checks **let pass**. Those checks use Gaussian weights "
        "and activations, 16 and 48 tokens, 256 rows and 256 columns, and compare with the exact product of the "
        "kernel's own definition. A launch that CUDA rejects, or a crash, counts as detected by them.", "",
        table(("class", "exhibits", "rejected", "named correctly", *_GATES.values()),
              [*rows, _museum_row("all", list(found.values()))]),
    ]  # fmt: skip
    for kind, of in kinds.items():
        lines += ["", f"## {kind}", ""]
        head = ("exhibit", "bug", "shows when", "given away by", "gguf-verify reports", "let pass by")
        lines.append(table(head, [(
            f"`{e.id}`<br>{_source(e)}", cell(e.label.essence), cell(e.label.shows_when),
            _gave_away(found[e.id]), _reported(found[e.id]),
            ", ".join(gate for gate in _GATES if found[e.id].gates[gate]) or "–",
        ) for e in of]))  # fmt: skip
    return "\n".join(lines) + "\n"
