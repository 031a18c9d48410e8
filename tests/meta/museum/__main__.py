"""Verify every exhibit and its twin, and write the results to docs/museum.json.

python -m tests.meta.museum [ID …]     # with ids: update only these
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from gguf_verify.llama.library import Llama
from tests.meta.museum.collection import EXHIBITS, RESULTS, Finding, findings
from tests.meta.museum.gates import passed, weights
from tests.meta.museum.verdicts import model_for, said_of
from tests.support.tools import FIXTURES


def main(wanted: list[str]) -> int:
    found = findings() if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder, Llama() as llama:
        for name in wanted or EXHIBITS:
            exhibit = EXHIBITS[name]
            said = said_of(exhibit.path, model_for(exhibit, Path(folder), llama), "brief", "full", exhibit=exhibit)
            twins = Path(folder) / name
            twins.mkdir()
            of_type = FIXTURES / f"tiny-{exhibit.format}.gguf" if exhibit.model != exhibit.format else None
            twin = said_of(exhibit.twin(twins), of_type or model_for(exhibit, Path(folder), llama), "full")
            found[name] = Finding(
                verdict=said.verdict, plan=said.plan, rungs=list(said.rungs), naming=said.naming(exhibit),
                names=list(said.names), failure=(said.failures or ("",))[0], twin=twin.verdict,
                gates=passed(exhibit.path, exhibit.format, weights(exhibit.format, llama)),
            )  # fmt: skip
            print(name, found[name].verdict, found[name].naming, twin.verdict, found[name].gates, file=sys.stderr)
            ordered = {id: found[id].as_json() for id in EXHIBITS if id in found}
            RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
