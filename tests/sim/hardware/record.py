"""Record what an NVIDIA GPU answers, for tests that compare the simulator with it where there is no GPU.

    python tests/sim/hardware/record.py --compile                # where torch and NVRTC 12 are: all PTX
    python tests/sim/hardware/record.py --out DIR [--commit SHA]  # on a GPU, with numpy and cupy
    python tests/sim/hardware/record.py --access-counters DIR     # on a GPU where ncu may read its counters

Opcode cases run one family a process, so that a failing kernel costs its family only.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from sim.hardware import store
from sim.hardware.access_patterns import ACCESS, METRICS, PATTERNS
from sim.hardware.case import kernel_text, module_text
from sim.hardware.compare import join_regions
from sim.hardware.corpus import FAMILIES
from sim.hardware.operands import draw_inputs
from sim.hardware.program_list import PROGRAMS
from sim.hardware.programs import Launch, Program, record_checksum
from sim.hardware.rungs import ALIGNMENT, RungLaunch, capture, load_launches

FAMILY_SECONDS = 120
DEFAULT_SHARED_BYTES = 48 * 1024  # of a block, without asking for more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compile the programs, capture the rungs' launches")
    parser.add_argument("--out", type=Path, help="record into this folder")
    parser.add_argument("--commit", default="unknown", help="commit of the checkout, for the header")
    parser.add_argument("--access-counters", type=Path, help="record the profiler's counters into this folder")
    parser.add_argument("--family", help="(internal) one family, or 'programs'")
    parser.add_argument("--launch-access", action="store_true", help="(internal) only launch the counted kernels")
    options = parser.parse_args()
    if options.compile:
        compile_programs()
        capture()
    if options.launch_access:
        run_on_gpu(ACCESS)
    if options.family:
        record_family(options.family, options.out)
        return 0
    failed = record_all(options.out, options.commit) if options.out else []
    if options.access_counters:
        record_counters(options.access_counters, options.commit)
    return 1 if failed else 0


def compile_programs() -> None:
    from labkit.device import compile_source

    for program in (*PROGRAMS, ACCESS):
        build = compile_source(program.source.read_text(), program.source.name, target="compute_70")
        program.ptx.parent.mkdir(exist_ok=True)
        program.ptx.write_text(build.ptx.replace(f"{Path.cwd()}/", ""))  # line tables name the working directory


def record_all(out: Path, commit: str) -> list[str]:
    """Every family in a process of its own, gathered into opcodes.npz, programs.npz and rungs.npz."""
    failed: list[str] = []
    gathered: dict[str, store.Results] = {"opcodes": {}, "programs": {}, "rungs": {}}
    with tempfile.TemporaryDirectory() as folder:
        for family in (*FAMILIES, "programs", "rungs"):
            part = Path(folder) / f"{family}.npz"
            command = [sys.executable, __file__, "--family", family, "--out", str(part)]
            try:
                status = subprocess.run(command, timeout=FAMILY_SECONDS, check=False).returncode
            except subprocess.TimeoutExpired:
                status = -1
            if status or not part.exists():
                failed.append(family)
                print(f"FAILED: {family}", flush=True)
                continue
            recording = store.load(part)
            for name, entry in recording.entries.items():
                result = recording.result(name, entry["checksum"])
                gathered.get(family, gathered["opcodes"])[name] = (entry["checksum"], result)
    for name, results in gathered.items():
        store.save(out / f"{name}.npz", origin(commit), results)
    return failed


def record_family(family: str, path: Path) -> None:
    special = {"programs": record_programs, "rungs": record_rungs}
    results = special[family]() if family in special else record_cases(family)
    store.save(path, {}, results)
    print(f"{family}: {len(results)} results", flush=True)


def record_cases(family: str) -> store.Results:
    import cupy

    cases = FAMILIES[family]
    module = load_module(module_text(cases))
    results: store.Results = {}
    for case in cases:
        inputs = draw_inputs(case)
        raw = join_regions(case, case.input_types, inputs)
        given = cupy.asarray(raw)
        out = cupy.zeros(max(case.offsets(list(case.outputs))[-1], 16), cupy.uint8)
        size = case.threads // case.blocks
        module.get_function(case.entry)((case.blocks,), (size,), (given, out))
        results[case.name] = (store.checksum(kernel_text(case).encode(), raw.tobytes()), out.get())
    return results


def record_programs() -> store.Results:
    results: store.Results = {}
    for program in PROGRAMS:
        check = record_checksum(program)
        try:
            after = run_on_gpu(program)
        except Exception as error:  # whatever it is, the other programs are still worth recording
            print(f"FAILED: program {program.name}: {error!r}", flush=True)
            continue
        for name in program.results:
            results[f"{program.name}/{name}"] = (check, np.ascontiguousarray(after[name]).reshape(-1).view(np.uint8))
    return results


def record_rungs() -> store.Results:
    """What the tensors that a captured launch changed hold afterwards."""
    results: store.Results = {}
    modules: dict[str, Any] = {}
    for launch in load_launches():
        module = modules.get(launch.ptx) or modules.setdefault(launch.ptx, load_module(launch.ptx))
        for number, raw in run_rung(module, launch).items():
            if not np.array_equal(raw, launch.arguments[number][0]):
                results[f"{launch.name}/{number}"] = (launch.checksum, raw)
    return results


def run_rung(module: Any, launch: RungLaunch) -> dict[int, np.ndarray]:
    """Repeat one launch; the bytes of each tensor argument afterwards, by position."""
    import cupy

    arguments: list[Any] = []
    for argument in launch.arguments:
        if isinstance(argument, np.generic):
            arguments.append(argument)
            continue
        raw, offset, _ = argument  # CuPy's allocations start at multiples of 512 bytes
        room = cupy.zeros(raw.size + ALIGNMENT, cupy.uint8)
        room[offset : offset + raw.size] = cupy.asarray(raw)
        arguments.append(room[offset : offset + raw.size])
    function = module.get_function(launch.entry)
    if launch.shared_bytes > DEFAULT_SHARED_BYTES:
        function.max_dynamic_shared_size_bytes = launch.shared_bytes
    function(launch.grid, launch.block, tuple(arguments), shared_mem=launch.shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    return {number: a.get() for number, a in enumerate(arguments) if not isinstance(a, np.generic)}


def run_on_gpu(program: Program) -> dict[str, np.ndarray]:
    """All launches of a program on fresh buffers; the buffers' contents afterwards."""
    import cupy

    module = load_module(program.ptx.read_text())
    device = {name: cupy.asarray(array) for name, array in program.buffers().items()}
    for launch in program.launches:
        start(module, launch, device)
    cupy.cuda.runtime.deviceSynchronize()
    return {name: array.get() for name, array in device.items()}


def start(module: Any, launch: Launch, device: dict[str, Any]) -> None:
    arguments = tuple(device[a] if isinstance(a, str) else _by_value(a) for a in launch.arguments)
    module.get_function(launch.entry)(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)


def _by_value(value: np.generic) -> Any:
    """CuPy takes NumPy's scalars, but a structure only as an array of no dimension."""
    return np.array(value) if isinstance(value, np.void) else value


def load_module(ptx: str) -> Any:
    """PTX text as a CuPy module; the driver compiles it for the device at hand."""
    import cupy

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        module = cupy.RawModule(path=file.name)
        module.compile()
    return module


def record_counters(folder: Path, commit: str) -> None:
    """Run the counted kernels under ncu and keep its numbers by pattern."""
    kernels = "regex:^(copy|gather|transpose|shared|reduce|histogram)"
    command = ["ncu", "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS), "-k", kernels]
    command += [sys.executable, __file__, "--launch-access"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
    lines = [line for line in output.splitlines() if line.startswith('"')]
    counters: list[dict[str, float]] = [{} for _ in PATTERNS]
    for row in csv.DictReader(lines):
        counters[int(row["ID"])][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    named = dict(zip(PATTERNS, counters, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"origin": origin(commit), "patterns": named}, indent=1)
    (folder / "access.json").write_text(text + "\n")
    if not lines:
        print(output[-3000:])


def origin(commit: str) -> dict[str, Any]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "device": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "ptx": "opcode cases written by hand for sm_70; programs by NVRTC 12.8 for compute_70",
        "date": datetime.date.today().isoformat(),
        "commit": commit,
    }


if __name__ == "__main__":
    sys.exit(main())
