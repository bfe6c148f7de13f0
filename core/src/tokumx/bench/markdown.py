"""A report as a Markdown file."""

from tokumx.bench import tables
from tokumx.bench.records import Report


def to_markdown(report: Report, plot: str | None) -> str:
    """The whole report; `plot` is the picture's file name, if there is one."""
    parts = [
        f"# {report.title}",
        _bullets(tables.environment_lines(report.environment)),
    ]
    parts += [_bullets(tables.run_lines(report)), "\n".join(report.remarks)]
    if plot is not None:
        parts.append(f"![speed of tokumx over each peer]({plot})")
    parts += [_table(tables.speed_table(report)), _notes(report)]
    if report.outcomes:
        parts += [_table(tables.target_summary(report))]
        parts += [_table(tables.target_table(report))]
    parts += [_table(tables.time_table(report)), _table(tables.memory_table(report))]
    parts += [_table(tables.decisions(report))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {_escaped(line)}" for line in lines)


def _notes(report: Report) -> str:
    lines = tables.notes(report)
    return f"Numbers that are missing:\n\n{_bullets(lines)}" if lines else ""


def _table(table: tables.Table) -> str:
    rule = "|".join(["---"] * 2 + ["---:"] * (len(table.columns) - 2))
    rows = (" | ".join(map(_cell, row)) for row in table.rows)
    lines = [f"| {' | '.join(table.columns)} |", f"|{rule}|"]
    lines += [f"| {row} |" for row in rows]
    return f"## {table.title}\n\n" + "\n".join(lines)


def _cell(cell: tables.Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**" if cell.mood == "bad" and text else text


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
