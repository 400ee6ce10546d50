"""Writes what follows from the definitions: `nnhal/operations.json` for drivers, `docs/operations.md` for people.

    python -m opset.export [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nnhal.operations import to_json
from opset import OPSET

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "nnhal" / "operations.json"


def table_text() -> str:
    """The content of `operations.json`: one line for each operation, so that changes are easy to read."""
    content = to_json([OPSET[code].info for code in sorted(OPSET)])
    lines = [json.dumps(row, separators=(",", ":")) for row in content["operations"]]
    body = ",\n".join(lines)
    return f'{{"format":{content["format"]},"operations":[\n{body}\n]}}\n'


if __name__ == "__main__":
    TABLE.write_text(table_text())
