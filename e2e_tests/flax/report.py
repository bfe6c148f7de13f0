"""What the demo shows: progress, a table, and a plot."""

import statistics
from pathlib import Path

import matplotlib
import numpy as np
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from training import Run

MIB = 2**20


def progress_bar() -> Progress:
    """Steps done, time left, and the last losses."""
    return Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )


def last_losses(runs: tuple[Run, Run]) -> str:
    return "loss: " + ", ".join(f"{run.name} {run.losses[-1]:.4f}" for run in runs)


def largest_difference(plain: Run, tokumx: Run) -> float:
    """Between the two losses at the same step, over the whole trace."""
    return float(np.abs(np.subtract(plain.losses, tokumx.losses)).max())


def table(plain: Run, tokumx: Run, tokens_per_step: int) -> Table:
    result = Table("", plain.name, tokumx.name, "plain / tokumx")
    for column in result.columns[1:]:
        column.justify = "right"
    times = [statistics.median(run.seconds) for run in (plain, tokumx)]
    memory = [run.temp_bytes / MIB for run in (plain, tokumx)]
    rate = [tokens_per_step / t for t in times]
    compile_times = [run.compile_seconds for run in (plain, tokumx)]
    difference = largest_difference(plain, tokumx)
    first, last = ([r.losses[i] for r in (plain, tokumx)] for i in (0, -1))
    result.add_row("first loss", *(f"{x:.4f}" for x in first))
    result.add_row("final loss", *(f"{x:.4f}" for x in last))
    result.add_row("largest loss difference", "", f"{difference:.1e}")
    result.add_row("median step", *(f"{x:.3f} s" for x in times), _ratio(times))
    result.add_row("tokens / s", *(f"{x:.0f}" for x in rate), "")
    result.add_row(
        "temporary memory", *(f"{x:.0f} MiB" for x in memory), _ratio(memory)
    )
    result.add_row("trace and compile", *(f"{x:.1f} s" for x in compile_times))
    return result


def _ratio(pair: list[float]) -> str:
    return f"{pair[0] / pair[1]:.2f}x"


def plot(plain: Run, tokumx: Run, title: str, path: Path) -> None:
    """Both loss curves, and how the steps' times are spread."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, times) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    figure.suptitle(title)
    steps = range(1, len(plain.losses) + 1)
    losses.plot(steps, plain.losses, "-", lw=5, alpha=0.35, label=plain.name)
    losses.plot(steps, tokumx.losses, "k--", lw=1.2, label=tokumx.name)
    difference = f"the curves differ by {largest_difference(plain, tokumx):.0e} at most"
    losses.set(xlabel="step", ylabel="loss, nats a token", title=difference)
    losses.legend()
    times.boxplot([plain.seconds, tokumx.seconds], whis=(0, 100))
    times.set_xticks([1, 2], [plain.name, tokumx.name])
    times.set(ylabel="seconds a step", title="median, quartiles and extremes")
    times.set_ylim(bottom=0)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
