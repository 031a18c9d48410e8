"""Records of measurements of backends, in docs/backends.json."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from gguf_verify.support.errors import UsageError


class OperationRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Random nodes of one operation and variant.

    Args:
        operation: with its variant.
        nodes, outputs: the numbers that were judged.
        definitions: definition → its largest utilisation.
        exact: whether bits or a predicate decide.
        ambiguous: the number of outputs for which the definition allows several values.
        wrong: the number of nodes that fail.
        first: a description of the first of them, preferably one that no finding explains.
        explained: id of a finding → number of nodes that it explains; None in records older than this field.
        unsupported: the number of nodes that the device does not support.
        ended: the number of nodes at which llama.cpp aborted.
        said: its last line of output at the first of these.
        not_judged: reason → number of nodes.
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
        model: the file's name.
        architecture: from the file.
        flash: the option of `gguf-verify backend`.
        nodes, outputs: the numbers that were judged.
        verdict: of the report.
        operations: name → largest utilisation on the device.
        wrong: a description of the first wrong node of each operation.
        fell_back: operations that another device computed.
        not_judged: "operation: reason".
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
        function, domain: descriptions.
        inputs: the number that were computed.
        ulps: the largest error.
        at: its input.
        utilisation: the largest error as a share of the declared one.
        wrong: the number of outputs that exceed the declared error.
    """

    function: str
    domain: str
    inputs: int
    ulps: float
    at: float
    utilisation: float
    wrong: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results for one device and build."""

    device: str
    build: str
    date: str
    seeds: int
    operations: tuple[OperationRow, ...] = ()
    graphs: tuple[GraphRow, ...] = ()
    functions: tuple[FunctionRow, ...] = ()

    @property
    def key(self) -> str:
        """The identity of the device and build; newer results with the same key replace older ones."""
        return f"{self.device}, {self.build}"


Results = dict[str, Measured]


def load(path: Path) -> Results:
    """Read the results by `Measured.key`; {} if the file does not exist. Raises UsageError if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else {}
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} contains no valid results: {error}") from None


def merged(results: Results, others: Results) -> Results:
    """Merge results. If both have a row for the same device, build and subject, the row of `others` is used."""
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
    """Write the file, with one row per line."""
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
