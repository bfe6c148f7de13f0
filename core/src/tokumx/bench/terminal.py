"""A run on the terminal: the time left, then tables."""

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from tokumx.bench import tables
from tokumx.bench.records import Environment, Measurement, Report
from tokumx.bench.runner import Watcher

_WIDTH = 160
_STYLES: dict[tables.Mood, str] = {"": "", "good": "green", "bad": "bold red"}


def make_console(on_stderr: bool) -> Console:
    """As wide as the terminal; wide enough for the tables where there is none."""
    console = Console(stderr=on_stderr)
    return console if console.is_terminal else Console(stderr=on_stderr, width=_WIDTH)


class ProgressBar(Watcher):
    """Prints the environment, then a bar with the time left.

    Expected seconds drive the bar, since cases differ a hundredfold; the count
    is part of its text.
    """

    def __init__(self, console: Console, total: int):
        self._console = console
        self._count, self._total = 0, total
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, environment: Environment, expected_s: float) -> None:
        _print_lines(self._console, tables.environment_lines(environment))
        self._progress.update(self._task, total=expected_s)
        self._advance("ceilings", 0)

    def measured(self, measurement: Measurement, expected_s: float) -> None:
        self._count += 1
        self._advance(f"{measurement.case} {measurement.work}", expected_s)

    def _advance(self, text: str, seconds: float) -> None:
        self._progress.start()
        self._progress.update(
            self._task,
            advance=seconds,
            description=f"{self._count}/{self._total} {text}",
        )


def print_report(console: Console, report: Report) -> None:
    """Speed, reasons for missing numbers, targets; the files hold the rest."""
    _print_table(console, tables.speed_table(report))
    _print_lines(console, tables.notes(report))
    if report.outcomes:
        _print_table(console, tables.missed_table(report))
        _print_table(console, tables.target_summary(report))
    _print_lines(console, tables.run_lines(report))


def _print_table(console: Console, table: tables.Table) -> None:
    shown = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(table.columns):
        justify = "left" if number < 2 else "right"
        shown.add_column(Text(name), overflow="fold", justify=justify)
    for row in table.rows:
        shown.add_row(*(Text(c.text, _STYLES[c.mood]) for c in row))
    console.print(shown)


def _print_lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(Text(line))
