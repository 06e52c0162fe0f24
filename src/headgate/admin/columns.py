"""The columns of lists: declared once, beside the record of each list, for the command line and the dashboard.

The API returns the records themselves, so a field is declared by the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "names", "count", "duration", "age", "time", "until", "state", "id", "rate", "share"]
"""How a value is written: `names` is several texts, `duration` and `age` are seconds, `time` and `until` instants.

`rate` is per second, `share` a part of 1.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list: it shows the field `name` of each record under `label`.

    A list shows a column that `is_rare` only if one of its records has a value. A column with `only` is shown there
    alone. The dashboard translates the label; the command line writes it in lower case.
    """

    name: str
    label: str
    kind: Kind = "text"
    is_rare: bool = False
    only: Literal["cli", "dashboard"] | None = None
