"""What was measured of backends, in docs/backends.json."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from gguf_verify.support.errors import UsageError


class OperationRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Drawn nodes of one operation and variant.

    Args:
        operation: with its variant.
        nodes, outputs: how many were judged.
        definitions: definition → its worst utilisation.
        exact: bits or a predicate decide.
        ambiguous: outputs for which the definition leaves a choice.
        wrong: nodes that fail; `first`: the first of them, or of those that no finding explains, in words.
        explained: id of a finding → nodes that it explains; None in records that are older than this field.
        unsupported: nodes that the device does not offer.
        ended: nodes at which llama.cpp ended itself; `said`: its last words at the first.
        not_judged: why → nodes.
    """

    operation: str
    nodes: int = 0
    outputs: int = 0
    definitions: dict[str, float] = {}
    exact: bool = True
    ambiguous: int = 0
    wrong: int = 0
    first: str = ""
    explained: dict[str, int] | None = None
    unsupported: int = 0
    ended: int = 0
    said: str = ""
    not_judged: dict[str, int] = {}


class GraphRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's graph.

    Args:
        model: the file's name; `architecture`: its own word.
        flash: of `gguf-verify backend`.
        nodes, outputs: how many were judged.
        verdict: of the report.
        operations: name → worst utilisation on the device.
        wrong: the first wrong node of each operation, in words.
        fell_back: operations that another device computed.
        not_judged: operation: why.
    """

    model: str
    architecture: str
    flash: str
    nodes: int
    outputs: int
    verdict: str
    operations: dict[str, float] = {}
    wrong: tuple[str, ...] = ()
    fell_back: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()


class FunctionRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function of one number.

    Args:
        function, domain: in words.
        inputs: how many were computed.
        ulps: the worst error; `at`: its input.
        utilisation: the worst share of the error that is declared.
        wrong: outputs that are off by more.
    """

    function: str
    domain: str
    inputs: int
    ulps: float
    at: float
    utilisation: float
    wrong: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on one device with one build."""

    device: str
    build: str
    date: str
    seeds: int
    operations: tuple[OperationRow, ...] = ()
    graphs: tuple[GraphRow, ...] = ()
    functions: tuple[FunctionRow, ...] = ()

    @property
    def key(self) -> str:
        """Of results with the same, what was measured last counts."""
        return f"{self.device}, {self.build}"


Results = dict[str, Measured]


def load(path: Path) -> Results:
    """By `Measured.key`; {} where there is no such file. Raises UsageError where it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else {}
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} holds no results: {error}") from None


def merged(results: Results, others: Results) -> Results:
    """Both; of rows of one device and build about the same, those of `others`."""
    made = dict(results)
    for key, new in others.items():
        old = made.get(key)
        if old is None:
            made[key] = new
            continue
        rows = {row.operation: row for row in (*old.operations, *new.operations)}
        graphs = {(row.model, row.flash): row for row in (*old.graphs, *new.graphs)}
        functions = {(row.function, row.domain): row for row in (*old.functions, *new.functions)}
        made[key] = msgspec.structs.replace(
            new, seeds=new.seeds or old.seeds, operations=tuple(rows[name] for name in sorted(rows)),
            graphs=tuple(graphs[each] for each in sorted(graphs)),
            functions=tuple(functions[each] for each in sorted(functions)),
        )  # fmt: skip
    return dict(sorted(made.items()))


def save(results: Results, path: Path) -> None:
    """Write the file, a row a line."""
    parts = []
    for key, measured in results.items():
        fields = msgspec.to_builtins(measured)
        lines = []
        for name, value in fields.items():
            if isinstance(value, list | tuple):
                rows = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in value)
                lines.append(f'  "{name}": [' + (f"\n    {rows}\n  ]" if rows else "]"))
            else:
                lines.append(f'  "{name}": {json.dumps(value, ensure_ascii=False)}')
        parts.append(f"{json.dumps(key, ensure_ascii=False)}: {{\n" + ",\n".join(lines) + "\n}")
    path.write_text("{" + ",\n".join(parts) + "}\n")
