"""What it costs to load a model and answer once: seconds and peak memory, in a process of its own.

    python -m labkit.bench.load_cost '{"system": "labkit", "model": "smollm2", ...}'

A fresh process counts neither the other system's packages nor what a benchmark has piled up. Importing the system's
package is not part of the loading time; its memory is part of the peak.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.bench.memory import peak_memory_bytes
from labkit.errors import ExecutorError

PROMPT = list(range(1, 33))
NEW_TOKENS = 8


@dataclass(frozen=True)
class LoadCost:
    """dtype: what ran, never "auto". load_seconds: from the path to a model that can answer.

    peak_memory_bytes: after a short answer.
    """

    system: str
    dtype: str
    load_seconds: float
    peak_memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))


def measure_load(system: str, model: str | Path, dtype: str, threads: int, **settings: Any) -> LoadCost:
    """Load ``model`` in a fresh process.

    system: "labkit" (settings: those of LLM) or "transformers" (model: a plain directory). dtype: "auto", "bfloat16"
    or "float32". Raises ExecutorError with the process's last words if it fails.
    """
    job = {"system": system, "model": str(model), "dtype": dtype, "threads": threads, **settings}
    command = [sys.executable, "-m", "labkit.bench.load_cost", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ExecutorError(f"Loading {model} with {system} failed: {last}", cure="Load it by itself to see more.")
    return LoadCost(**json.loads(done.stdout.splitlines()[-1]))


def _main(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    system, model, dtype, threads = (job.pop(key) for key in ("system", "model", "dtype", "threads"))
    torch.set_num_threads(threads)
    load = _load_labkit if system == "labkit" else _load_transformers
    seconds, ran = load(model, dtype, job)
    return LoadCost(system, ran, seconds, peak_memory_bytes()).to_dict()


def _load_labkit(model: str, dtype: str, settings: dict[str, Any]) -> tuple[float, str]:
    from labkit.bench.results import dtype_name
    from labkit.engine.llm import LLM
    from labkit.engine.sampling_params import SamplingParams

    seconds, llm = _timed(lambda: LLM(model, dtype=dtype, **settings))
    llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True))
    return seconds, dtype_name(llm.engine.config.torch_dtype)


def _load_transformers(model: str, dtype: str, settings: dict[str, Any]) -> tuple[float, str]:
    import torch

    from labkit.bench.peer_model import load_peer, transformers
    from labkit.bench.peer_subject import TransformersSubject

    transformers().AutoModelForCausalLM  # noqa: B018  imported on first touch, which is not loading
    seconds, peer = _timed(lambda: load_peer(Path(model), getattr(torch, dtype)))
    TransformersSubject(peer, model, dtype).time([PROMPT], NEW_TOKENS)
    return seconds, dtype


def _timed(load: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    loaded = load()
    return time.perf_counter() - start, loaded


if __name__ == "__main__":
    print(json.dumps(_main(json.loads(sys.argv[1]))))
