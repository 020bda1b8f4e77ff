"""What the rungs of prefill attention are as machine code of a V100: registers, shared memory, tensor-core work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import torch

from labkit.device.image import build_image
from labkit.device.machine_code import decode
from labkit.device.main_loop import TENSOR, by_kind, main_loop_mix
from labkit.device.occupancy import Occupancy, v100_occupancy
from labkit.ops.attention_prefill import THREADS, macros, shared_bytes
from labkit.quant.kv import KVFormat

OP = "attention_prefill"
STEPS = ("LDG", "STS", "BAR", TENSOR)
HMMA_EACH = 4  # instructions of machine code for one mma.m8n8k4


@dataclass(frozen=True)
class PrefillBuild:
    """One rung. shared_bytes: of a block, with what a launch asks for. mma: as they stand in the PTX; hmma: in the
    machine code. mix: instructions in one pass of the innermost main loop, by kind. code: all instructions, in order.
    """

    rung: str
    registers: int
    spills: int  # bytes
    shared_bytes: int
    mma: int
    hmma: int
    mix: Mapping[str, int]
    code: tuple[str, ...]

    @property
    def resident(self) -> Occupancy:
        """How many blocks a multiprocessor takes at a time, and what runs out first."""
        return v100_occupancy(THREADS, self.registers, self.shared_bytes)

    @property
    def besides(self) -> float:
        """Other instructions for each mma in the innermost main loop. Raises ValueError for a rung without mma."""
        tensor = self.mix.get("tensor", 0)
        if not tensor:
            raise ValueError(f"{self.rung} has no tensor-core instructions")
        return (sum(self.mix.values()) - tensor) * HMMA_EACH / tensor

    @property
    def steps(self) -> str:
        """Loads from memory, stores to shared memory, barriers and HMMA as the code has them: ``LDG 4, BAR, ...``."""
        runs = [(name, len(list(group))) for name, group in groupby(name for name in self.code if name in STEPS)]
        return ", ".join(name if count == 1 else f"{name} {count}" for name, count in runs)


def prefill_build(rung: str, head_dim: int = 256, kv: str = "fp16") -> PrefillBuild:
    """Compile a rung for sm_70, or take it from the cache. Raises KernelBuildError; ConfigError for another format."""
    form = KVFormat.named(kv, torch.float16)
    image = build_image(OP, rung, macros(head_dim, form.k_bits, form.v_bits))
    needs, cubin = image.resources["sm_70"][OP], image.cubins["sm_70"]
    code = tuple(each.name for each in decode(cubin, OP))
    return PrefillBuild(
        rung=rung,
        registers=needs.registers,
        spills=needs.spill_stores + needs.spill_loads,
        shared_bytes=needs.shared_bytes + shared_bytes(rung, head_dim),
        mma=image.ptx.count("mma.sync.aligned.m8n8k4"),
        hmma=code.count(TENSOR),
        mix=by_kind(main_loop_mix(cubin, OP)),
        code=code,
    )
