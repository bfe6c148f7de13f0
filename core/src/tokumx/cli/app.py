"""Collects the verbs; each is a file of this folder."""

import importlib.metadata
from typing import Annotated

import typer

from tokumx.cli.doctor import doctor
from tokumx.cli.explain import explain
from tokumx.cli.support import support

app = typer.Typer(
    help="Curated, fast kernels for training and serving models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # it would read `f32[2,8]` as markup
)
app.command()(doctor)
app.command()(explain)
app.command()(support)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokumx {importlib.metadata.version('tokumx')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Curated, fast kernels for training and serving models."""


def main() -> None:
    app()
