"""The command line that every benchmark shares."""

import fnmatch
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tokumx.bench.case import SUBJECT, Benchmark
from tokumx.bench.environment import usable_cores
from tokumx.bench.markdown import to_markdown
from tokumx.bench.plot import save_plot
from tokumx.bench.records import WORKS, Report, Work
from tokumx.bench.runner import Plan, RunSettings, run
from tokumx.bench.terminal import ProgressBar, make_console, print_report

RESULTS = Path("benchmarks/results")
PARTIAL_RESULTS = Path("benchmarks/out")
_BUDGETS_S = {"quick": 1.0, "full": 3.0}


@dataclass(frozen=True)
class Choices:
    """Options of the command line that change who takes part."""

    torch_bf16: bool = False


Suite = Annotated[str, typer.Option(help="quick or full.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", help="Cases of any suite by name; * is a wild card."
    ),
]
Dtype = Annotated[str | None, typer.Option(help="float32 or bfloat16; both if absent.")]
Direction = Annotated[
    str | None, typer.Option(help="forward or forward_backward; both if absent.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds a measurement, at least.")]
BudgetS = Annotated[
    float | None,
    typer.Option(help="Seconds a measurement may go on while it is unsteady."),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Cores to use, for jax and torch; all if absent."),
]
Torch = Annotated[bool, typer.Option(help="Start torch, with the Python TORCH_PYTHON.")]
TorchBf16 = Annotated[bool, typer.Option(help="Run torch in bf16 too.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help=f"Folder of the results. Default: {RESULTS} for a whole run, "
        f"{PARTIAL_RESULTS} for a part of one."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the record to stdout, the rest to stderr.")
]
Strict = Annotated[bool, typer.Option(help="A missed target is a failure.")]


def make_app(make_benchmark: Callable[[Choices], Benchmark]) -> typer.Typer:
    """A command that runs a benchmark and writes its results."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    def bench(
        suite: Suite = "full",
        only: Only = None,
        dtype: Dtype = None,
        direction: Direction = None,
        rounds: Rounds = 5,
        budget_s: BudgetS = None,
        threads: Threads = None,
        torch: Torch = True,
        torch_bf16: TorchBf16 = False,
        out: Out = None,
        as_json: AsJson = False,
        strict: Strict = False,
    ) -> None:
        """Measure tokumx against its peers, after checking everyone's numbers.

        Exit status 1: tokumx gave wrong numbers, or none; with --strict also a
        missed target. 2: wrong arguments.
        """
        use_threads(threads)
        benchmark = make_benchmark(Choices(torch_bf16))
        plan = choose(benchmark, suite, only, dtype, direction)
        budget = _BUDGETS_S[suite] if budget_s is None else budget_s
        settings = RunSettings(rounds=rounds, budget_s=budget, with_torch=torch)
        console = make_console(as_json)
        with ProgressBar(console, sum(len(works) for _, works in plan)) as bar:
            report = run(benchmark, plan, settings, bar)
        is_whole = suite == "full" and not (only or dtype or direction)
        folder = out or (RESULTS if is_whole else PARTIAL_RESULTS)
        publish(report, folder, console, as_json)
        raise typer.Exit(exit_status(report, strict))

    return app


def main(make_benchmark: Callable[[Choices], Benchmark]) -> None:
    """The entry point of `python -m tokumx.bench.<name>`."""
    make_app(make_benchmark)()


def use_threads(threads: int | None) -> None:
    """Starts this command again on fewer cores, where that is asked for.

    jax sizes its thread pool by the cores that the process may use, and does
    so only once; torch's worker inherits them.
    """
    if threads is None or threads == usable_cores():
        return
    if threads > usable_cores() or not hasattr(os, "sched_setaffinity"):
        raise typer.BadParameter(
            f"--threads must be <= the {usable_cores()} cores at hand, on Linux; "
            f"got {threads}."
        )
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def choose(
    benchmark: Benchmark,
    suite: str,
    only: list[str] | None,
    dtype: str | None,
    direction: str | None,
) -> Plan:
    """The cases asked for, each with what is measured of it."""
    _check_choice("--suite", suite, tuple(_BUDGETS_S))
    _check_choice("--direction", direction, (None, *WORKS))
    wanted: list[Work] = [w for w in WORKS if direction in (None, w)]
    plan = [
        (case, _both(case.works, wanted))
        for case in benchmark.cases
        if (suite == "full" or case.name in benchmark.quick or only)
        and (not only or any(fnmatch.fnmatch(case.name, p) for p in only))
        and dtype in (None, case.dtype)
        and _both(case.works, wanted)
    ]
    if not plan:
        names = ", ".join(case.name for case in benchmark.cases)
        raise typer.BadParameter(f"no case is left. There are: {names}.")
    return plan


def _both(works: Sequence[Work], wanted: Sequence[Work]) -> tuple[Work, ...]:
    return tuple(w for w in works if w in wanted)


def _check_choice(
    option: str, value: str | None, known: tuple[str | None, ...]
) -> None:
    if value not in known:
        names = ", ".join(k for k in known if k is not None)
        raise typer.BadParameter(f"{option} must be among {names}; got {value!r}.")


def publish(report: Report, folder: Path, console: Console, as_json: bool) -> None:
    """Prints the report and writes its three files."""
    print_report(console, report)
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{report.benchmark}-{report.environment.device_slug}"
    record, text, picture = (folder / f"{stem}.{e}" for e in ("json", "md", "png"))
    report.save(record)
    written = [record, text]
    try:
        save_plot(report, picture)
        written.append(picture)
    except ImportError as error:
        console.print(
            f"no plot: {error}. Run: pip install 'tokumx[bench]'", markup=False
        )
    text.write_text(to_markdown(report, picture.name if picture in written else None))
    console.print(f"Wrote {', '.join(map(str, written))}", markup=False)
    if as_json:
        typer.echo(report.model_dump_json(indent=1))


def exit_status(report: Report, strict: bool) -> int:
    """0, or 1 if tokumx is wrong or, when strict, missed a target."""
    is_missed = any(o.reached is False for o in report.outcomes)
    return int(bool(report.failures_of(SUBJECT)) or (strict and is_missed))
