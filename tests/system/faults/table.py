"""The table of `docs/reliability.md` from what the suite has noted: `python tests/system/faults/table.py FILE...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def table(lines: list[str]) -> str:
    """Markdown; what was noted of the same fault is added up where the outcome is the same."""
    counts: dict[tuple[str, str], int] = {}
    for line in lines:
        row = json.loads(line)
        key = row["fault"], row["outcome"]
        counts[key] = counts.get(key, 0) + row["injected"]
    cells = [f"| {fault} | {count:,} | {outcome.replace('|', '/')} |" for (fault, outcome), count in counts.items()]
    return "\n".join(["| fault | times | what came of it |", "|---|---:|---|", *cells])


if __name__ == "__main__":
    print(table([line for path in sys.argv[1:] for line in Path(path).read_text(encoding="utf-8").splitlines()]))
