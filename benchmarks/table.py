"""A plain table for benchmark results, readable in a terminal and as Markdown."""

from __future__ import annotations


class Table:
    """Rows of text under a title."""

    def __init__(self, title: str, columns: tuple[str, ...]) -> None:
        self._title = title
        self._rows: list[tuple[str, ...]] = [("", *columns)]

    def add(self, name: str, *values: str) -> None:
        """A row."""
        self._rows.append((name, *values))

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        lines = [self._line(row, widths) for row in self._rows]
        rule = "| " + " | ".join("-" * width for width in widths) + " |"
        return "\n".join([f"\n**{self._title}**\n", lines[0], rule, *lines[1:]])

    @staticmethod
    def _line(row: tuple[str, ...], widths: list[int]) -> str:
        first = row[0].ljust(widths[0])
        rest = (value.rjust(width) for value, width in zip(row[1:], widths[1:], strict=True))
        return "| " + " | ".join([first, *rest]) + " |"
