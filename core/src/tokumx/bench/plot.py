"""A report as a picture: one dot a case and peer."""

from pathlib import Path
from typing import Any

from tokumx.bench.records import WORKS, Measurement, Report, Work

_ROW_INCHES = 0.22
_TICKS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


def save_plot(report: Report, path: Path) -> None:
    """Writes a PNG.

    Raises:
      ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: list[tuple[Work, list[Measurement]]] = [
        (work, found)
        for work in WORKS
        if (found := [m for m in report.measurements if m.work == work])
    ]
    rows = max(len(found) for _, found in panels)
    size = (7 * len(panels), _ROW_INCHES * rows + 2)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for (work, found), axis in zip(panels, axes, strict=True):
        _draw(axis, report.peers, found)
        axis.set_title(work.replace("_", " + "))
    day, device = report.environment.date[:10], report.environment.device
    figure.suptitle(f"{report.title}: speed of tokumx over each\n{device}, {day}")
    peers = {label: h for a in axes for h, label in zip(*_legend(a), strict=True)}
    if peers:
        place = {"loc": "outside lower center", "ncols": len(peers)}
        figure.legend(peers.values(), peers, **place)
    figure.savefig(path)


def _legend(axis: Any) -> tuple[list[Any], list[str]]:
    return axis.get_legend_handles_labels()


def _draw(axis: Any, peers: tuple[str, ...], found: list[Measurement]) -> None:
    for number, peer in enumerate(peers):
        entries = [m.entry(peer) for m in found]
        points = [(e.ratio, y) for y, e in enumerate(entries) if e and e.ratio]
        if points:
            x, y = zip(*points, strict=True)
            marker, color = "os^Dv*"[number % 6], f"C{number}"
            axis.plot(x, y, marker, color=color, label=peer, markersize=5)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [t for t in _TICKS if low <= t <= high] or [1]
    axis.set_xticks(ticks, [f"{t:g}x" for t in ticks])
    axis.minorticks_off()
    axis.set_yticks(range(len(found)), [m.case for m in found], fontsize=7)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.grid(alpha=0.3)
