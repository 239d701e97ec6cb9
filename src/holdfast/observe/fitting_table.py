"""A table where there is room for one; on a phone or in a narrow window, a few lines per row."""

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

LEAST_WIDTH = 80


class FittingTable:
    """(Rich renderable)"""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        numbers: Sequence[str] = (),
        wide: Sequence[str] = (),
    ) -> None:
        """`numbers`: columns that are aligned at the right and never wrapped; `wide`: those that
        share the room that is left.
        """
        self._columns, self._rows = columns, list(rows)
        self._title, self._numbers, self._wide = title, numbers, wide

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= LEAST_WIDTH:
            yield self._table()
            return
        if self._title:
            yield Text(self._title, style="italic")
        for row in self._rows:
            for number, (column, value) in enumerate(zip(self._columns, row, strict=True)):
                line = Text("- " if number == 0 else "  ")
                line.append(f"{column}: ", style="dim")
                line.append(value)
                yield line

    def _table(self) -> Table:
        table = Table(title=self._title or None, title_justify="left")
        for column in self._columns:
            is_number = column in self._numbers
            table.add_column(
                column,
                justify="right" if is_number else "left",
                no_wrap=is_number,
                ratio=3 if column in self._wide else None,
            )
        for row in self._rows:
            table.add_row(*row)
        return table
