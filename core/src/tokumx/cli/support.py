"""`tokumx support`: what runs where, and how far that was verified."""

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from tokumx.contract import DeviceSpec, Implementation, OpSpec
from tokumx.ops import OPS

BEGIN, END = "<!-- support-table -->", "<!-- support-table-end -->"
_DEVICES = {
    "CPU": DeviceSpec("cpu", "CPU"),
    "NVIDIA H200": DeviceSpec("gpu", "NVIDIA H200"),
    "NVIDIA B200": DeviceSpec("gpu", "NVIDIA B200"),
    "TPU v6e": DeviceSpec("tpu", "TPU v6 lite"),
    "TPU 7x": DeviceSpec("tpu", "TPU7x"),
}
_DTYPES = ("float32", "bfloat16", "float16")


def support(
    write: Annotated[
        Path | None,
        typer.Option(help=f"Put the table into this file, between {BEGIN} and {END}."),
    ] = None,
) -> None:
    """Print the support table: op, implementation, dtypes, gradient, verification.

    Example: tokumx support --write README.md
    """
    table = support_table()
    if write is None:
        typer.echo(table)
    else:
        write.write_text(with_table(write.read_text(), table))


def with_table(text: str, table: str) -> str:
    """The text with the table between its two markers.

    Raises:
      ValueError: a marker is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"support: the file must hold {BEGIN} and {END}, in order.")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def support_table() -> str:
    """Markdown, from `unsupported()` and the recorded verification runs."""
    rungs = json.loads(
        resources.files("tokumx").joinpath("verification.json").read_text()
    )
    header = ["op", "implementation", "dtypes", "gradient", *_DEVICES]
    rows = [header, ["---"] * len(header)]
    for op in OPS.values():
        for implementation in op.implementations:
            verified = rungs.get(op.name, {}).get(implementation.name, {})
            rows.append(_row(op, implementation, verified))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(
    op: OpSpec, implementation: Implementation, verified: dict[str, str]
) -> list[str]:
    dtypes = [
        dtype
        for dtype in _DTYPES
        if any(_runs(op, implementation, dtype, d) for d in _DEVICES.values())
    ]
    if implementation.forward_only:
        gradient = "none"
    else:
        gradient = "own" if implementation.backward else "by jax"
    cells = []
    for name, device in _DEVICES.items():
        can_run = any(_runs(op, implementation, t, device) for t in dtypes)
        cells.append(verified.get(name, "not verified") if can_run else "-")
    return [op.name, implementation.name, _short(dtypes), gradient, *cells]


def _runs(
    op: OpSpec, implementation: Implementation, dtype: str, device: DeviceSpec
) -> bool:
    return any(
        implementation.unsupported(call, device) is None for call in op.examples(dtype)
    )


def _short(dtypes: Iterable[str]) -> str:
    names = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    return " ".join(names[d] for d in dtypes)
