"""Write APPROXIMATIONS.md: how far the simulator's approximate functions are from the hardware's.

python tests/sim/hardware/table.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from sim.hardware import store
from sim.hardware.case import Case, kernel_text
from sim.hardware.compare import distances, join_regions, split_regions
from sim.hardware.corpus import CASES
from sim.hardware.operands import draw_inputs
from sim.hardware.simulate import simulate_case

TABLE = Path(__file__).parent / "APPROXIMATIONS.md"
INTRODUCTION = """# Approximate instructions: simulator against hardware

Made by `python tests/sim/hardware/table.py` from the recorded results of {device} ({date}), over edge values and random
operands. A case passes within *either* of the allowed distances. Everything that is not listed agrees bit for bit.
The measured distances depend a little on the machine that runs NumPy.

| case | operands | equal bits | largest distance, ulp | allowed, ulp | largest difference | allowed |
| --- | --- | --- | --- | --- | --- | --- |
"""


def main() -> None:
    recording = store.load(store.RECORDED / "opcodes.npz")
    rows = [row(case, recording) for case in CASES if case.ulp or case.absolute]
    TABLE.write_text(INTRODUCTION.format(**recording.origin) + "".join(rows))
    print(TABLE.read_text())


def row(case: Case, recording: store.Recording) -> str:
    """One line of the table."""
    inputs = draw_inputs(case)
    raw = join_regions(case, case.input_types, inputs)
    hardware = recording.result(case.name, store.checksum(kernel_text(case).encode(), raw.tobytes()))
    pairs = zip(split_regions(case, hardware), split_regions(case, simulate_case(case, inputs)), strict=True)
    ulps, differences, equal, count = [0.0], [0.0], 0, 0
    for type_name, (theirs, ours) in zip(case.outputs, pairs, strict=True):
        if type_name == "f16x2":
            type_name, theirs, ours = "f16", theirs.view(np.uint16), ours.view(np.uint16)
        ulp, difference = distances(type_name, theirs, ours)
        equal, count = equal + int((ulp == 0).sum()), count + ulp.size
        outside_absolute = ulp[difference > case.absolute]
        ulps.append(outside_absolute.max(initial=0.0))
        differences.append(difference[np.isfinite(difference)].max(initial=0.0))
    cells = (case.name, count, f"{equal / count:.0%}", _power(max(ulps)), _power(case.ulp))
    absolute = (f"{max(differences):.1e}", f"{case.absolute:.1e}") if case.absolute else ("", "")
    return "| " + " | ".join(map(str, (*cells, *absolute))) + " |\n"


def _power(value: float) -> str:
    return f"{value:.0f}" if value < 1e6 else f"2^{np.log2(value):.1f}"


if __name__ == "__main__":
    main()
