"""Verify every exhibit and its twin, and write the results to docs/museum.json.

python -m tests.meta.museum [ID …]                 # with ids: update only these
python -m tests.meta.museum --given-away [ID …]    # update only what gave them away
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from gguf_verify.llama.library import Llama
from tests.meta.museum.collection import EXHIBITS, RESULTS, Exhibit, Finding, findings
from tests.meta.museum.gates import passed, weights
from tests.meta.museum.given_away import given_away
from tests.meta.museum.verdicts import model_for, options_of, said_of
from tests.support.tools import FIXTURES


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.meta.museum", description="Verify the museum's exhibits.")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--given-away", action="store_true", help="update only what gave them away")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="default: docs/museum.json")
    options = parser.parse_args(argv)
    found = findings(options.results) if options.results.exists() else {}
    with tempfile.TemporaryDirectory() as folder, Llama() as llama:
        for name in options.ids or EXHIBITS:
            exhibit = EXHIBITS[name]
            if not options.given_away:
                found[name] = found_of(exhibit, Path(folder), llama)
            away = given_away(exhibit.path, model_for(exhibit, Path(folder), llama), options_of("full"))
            found[name] = replace(found[name], given_away=away)
            print(name, found[name].verdict, found[name].naming, found[name].twin, away, file=sys.stderr)
            ordered = {id: found[id].as_json() for id in EXHIBITS if id in found}
            options.results.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    return 0


def found_of(exhibit: Exhibit, folder: Path, llama: Llama) -> Finding:
    """Verify an exhibit and its twin, and try other checks."""
    said = said_of(exhibit.path, model_for(exhibit, folder, llama), "brief", "full", exhibit=exhibit)
    twins = folder / exhibit.id
    twins.mkdir()
    of_type = FIXTURES / f"tiny-{exhibit.format}.gguf" if exhibit.model != exhibit.format else None
    twin = said_of(exhibit.twin(twins), of_type or model_for(exhibit, folder, llama), "full")
    return Finding(
        verdict=said.verdict, plan=said.plan, rungs=list(said.rungs), naming=said.naming(exhibit),
        names=list(said.names), failure=(said.failures or ("",))[0], twin=twin.verdict,
        gates=passed(exhibit.path, exhibit.format, weights(exhibit.format, llama)),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
