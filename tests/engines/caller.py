"""The caller of an engine that calls functions: ``python caller.py ROW RANKS SCENARIO FOLDER ENDING``."""

from __future__ import annotations

import json
import sys

from tests.engines.part import play
from tests.engines.rows import ROWS, FunctionRow


def main(name: str, ranks: str, *args: str) -> None:
    """Calls `play` on every rank, and writes the results, or which rank the engine blames."""
    row = ROWS[name]
    assert isinstance(row, FunctionRow)
    try:
        results = row.call(play, args, int(ranks))
    except Exception as error:
        rank, host = row.blamed(error)
        print(f"caller: rank {rank} on {host}", flush=True)
        raise
    print(f"caller: results {json.dumps(results)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
