"""What a simulated launch checks, counts and how it computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.errors import ConfigError

MAX_STEPS = 2_000_000


@dataclass(frozen=True)
class Options:
    """Switches of one launch.

    Bounds are tested always, since global memory is the process's own; the other checks can be switched off.
    """

    checks: bool = True  # initialisation of shared, local and output memory
    races: bool = True  # shared-memory and global-memory races, missing fences
    counters: bool = True  # instructions, sectors, bank conflicts, divergence
    trace: bool = False  # the counters also keep the addresses that each warp asked for, see labkit.sim.trace
    exact_fma: bool = True  # f32 fma with one rounding; False computes a * b + c in f32, two to three times as fast
    truncating_mma: bool = False  # the V100 tensor core's own accumulation, see labkit.sim.mma_volta
    max_steps: int = MAX_STEPS  # basic blocks run in one launch before it counts as endless
    shuffle_seed: int | None = None  # None: a fixed order of diverged threads; an int: a random one, repeatable
    clock_rate: float = 1.53  # GHz; what globaltimer makes of the clock

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if type(self.max_steps) is not int or self.max_steps < 1:
            raise ConfigError(f"max_steps is {self.max_steps!r}.", cure="Give an int above 0.")
        if self.shuffle_seed is not None and type(self.shuffle_seed) is not int:
            raise ConfigError(f"shuffle_seed is {self.shuffle_seed!r}.", cure="Give an int, or None for a fixed order.")


@dataclass(eq=False)
class Observers:
    """Who watches a launch; None where nobody does. The classes are Findings, Races and Counters of this package."""

    findings: Any = None
    races: Any = None
    counters: Any = None


NOBODY = Observers()


@dataclass
class LaunchResult:
    """What a launch left behind, beside the memory that it changed."""

    output: str = ""  # what the kernel printed
    steps: int = 0  # basic blocks run, each for many threads at once
    instructions: int = 0  # PTX instructions run, each for many threads at once
    finished: bool = True  # False: stopped by a deadlock, a trap, an endless loop
    observers: Observers = field(default_factory=Observers)
