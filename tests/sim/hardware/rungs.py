"""Launches of every rung of every kernel ladder, kept with their PTX and inputs so that a GPU can repeat them.

`capture` runs the small cases of tests/helpers/ops.py on the simulator and keeps what each launch was given; the
recorder repeats the launches on a GPU and keeps what the tensors held afterwards.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from sim.hardware import store

INPUTS = store.RECORDED / "rung_inputs.npz"
SCALARS = {"u8": "u1", "s8": "i1", "b8": "u1", "u16": "u2", "s16": "i2", "b16": "u2", "u32": "u4", "s32": "i4",
           "b32": "u4", "u64": "u8", "s64": "i8", "b64": "u8", "f32": "f4", "f64": "f8"}  # fmt: skip
LARGEST = 450_000  # bytes of a launch's tensors: cases with larger ones are left out, the repository stays small
ALIGNMENT = 256  # bytes: a tensor keeps its place relative to this


@dataclass(frozen=True)
class RungLaunch:
    """One launch. An argument is a number (NumPy scalar) or a tensor: its bytes and its address modulo ALIGNMENT."""

    name: str
    ptx: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[np.generic | tuple[np.ndarray, int, str], ...]

    @property
    def checksum(self) -> int:
        parts = [a.tobytes() if isinstance(a, np.generic) else a[0].tobytes() for a in self.arguments]
        return store.checksum(self.ptx.encode(), *parts)


def capture() -> None:
    """Run the cases and write INPUTS, without those that are too large to keep; needs torch and NVRTC 12."""
    import torch
    from helpers.ops import SMALL, case_id, cases, check

    from labkit.device import Kernel, use_executor

    captured: list[dict[str, Any]] = []
    content: store.Results = {}
    texts: dict[str, str] = {}
    case_name = ""
    original = Kernel.launch

    def keep(self: Kernel, grid: Any, block: Any, arguments: Any, shared_bytes: int = 0) -> None:
        launch = self.prepare(grid, block, arguments, shared_bytes)
        name = f"{case_name} {sum(c['name'].startswith(case_name) for c in captured)}"
        key = str(zlib.crc32(self.image.ptx.encode()))
        texts[key] = self.image.ptx
        kept = _keep_arguments(name, launch, content)
        captured.append({"name": name, "ptx": key, "entry": self.entry, "grid": launch.grid, "block": launch.block,
                         "shared_bytes": launch.shared_bytes, "arguments": kept})  # fmt: skip
        original(self, grid, block, arguments, shared_bytes)

    with mock.patch.object(Kernel, "launch", keep), use_executor("sim"):
        for op, rung, shape in cases(SMALL):
            case_name = f"{op}/{rung} {case_id(shape)}"
            torch.manual_seed(zlib.crc32(f"{op} {case_id(shape)}".encode()))  # the rungs of a ladder share their inputs
            before = len(captured)
            check(op, rung, shape, "cpu")
            if any(_tensor_bytes(item["name"], content) > LARGEST for item in captured[before:]):
                _forget(captured, before, content)
    used = {item["ptx"] for item in captured}
    store.save(INPUTS, {"launches": captured, "ptx": {key: texts[key] for key in texts if key in used}}, content)


def _tensor_bytes(launch: str, content: store.Results) -> int:
    return sum(raw.size for name, (_, raw) in content.items() if name.startswith(f"{launch}/"))


def _forget(captured: list[dict[str, Any]], first: int, content: store.Results) -> None:
    """The launches from ``first`` on, and what they were given."""
    for item in captured[first:]:
        for name in [name for name in content if name.startswith(f"{item['name']}/")]:
            del content[name]
    del captured[first:]


def _keep_arguments(name: str, launch: Any, content: store.Results) -> list[dict[str, Any]]:
    from labkit.device import Out
    from labkit.sim.load import load_ptx

    parameters = load_ptx(launch.kernel.image.ptx).kernels[launch.kernel.entry].parameters
    kept: list[dict[str, Any]] = []
    for number, (given, value) in enumerate(zip(launch.arguments, launch.values, strict=True)):
        tensor = given.tensor if isinstance(given, Out) else given
        if not hasattr(tensor, "data_ptr"):
            kept.append({"dtype": SCALARS[parameters[number].type], "value": value})
            continue
        raw = tensor.detach().contiguous().view(-1).numpy().view(np.uint8)
        raw = np.zeros_like(raw) if isinstance(given, Out) else raw.copy()
        content[f"{name}/{number}"] = (0, raw)
        dtype = str(tensor.numpy().dtype)
        kept.append({"tensor": number, "offset": tensor.data_ptr() % ALIGNMENT, "dtype": dtype})
    return kept


def load_launches() -> list[RungLaunch]:
    """The captured launches."""
    inputs = store.load(INPUTS)
    launches = []
    for item in inputs.origin["launches"]:
        arguments: list[np.generic | tuple[np.ndarray, int, str]] = []
        for argument in item["arguments"]:
            if "tensor" in argument:
                raw = inputs.result(f"{item['name']}/{argument['tensor']}", 0)
                arguments.append((raw, argument["offset"], argument["dtype"]))
            else:
                arguments.append(np.dtype(argument["dtype"]).type(argument["value"]))
        shape = tuple(item["grid"]), tuple(item["block"]), item["shared_bytes"]
        launches.append(
            RungLaunch(item["name"], inputs.origin["ptx"][item["ptx"]], item["entry"], *shape, tuple(arguments))
        )
    return launches


def placed(raw: np.ndarray, offset: int) -> np.ndarray:
    """A copy of the bytes at an address that leaves ``offset`` modulo ALIGNMENT."""
    room = np.zeros(raw.size + 2 * ALIGNMENT, np.uint8)
    start = (offset - room.ctypes.data) % ALIGNMENT
    room[start : start + raw.size] = raw
    return room[start : start + raw.size]
