"""Run chapters from top to bottom and store their outputs again: after a change of what they show.

    python tools/refresh_notebooks.py notebooks/03_rmsnorm.ipynb

A cell keeps an output if it had one before or is tagged nbval-check-output. Widgets and the HTML beside them are left
out: what is stored has to show anywhere, and to stay small.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

CHECKED = "nbval-check-output"


def refresh(path: Path) -> None:
    """Run one chapter in place. Raises nbclient's CellExecutionError if a cell fails; the file then stays as it was."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [bool(cell.outputs) or CHECKED in cell.metadata.get("tags", []) for cell in cells]
    metadata = dict(notebook.metadata)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", coalesce_streams=True, resources=resources).execute()
    for cell, keep in zip(cells, shown, strict=True):
        cell.metadata.pop("execution", None)
        cell.outputs = [_portable(output) for output in cell.outputs] if keep else []
    notebook.metadata = nbformat.from_dict(metadata)
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _portable(output: Any) -> Any:
    for mime in [mime for mime in output.get("data", {}) if "widget" in mime or mime == "text/html"]:
        del output["data"][mime]
    return output


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name))
        print(name)
