"""Figures of an engine on a GPU name the GPU, and its speed limit is that of the GPU's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.models import llama, saved
from helpers.pretend_gpu import GPU, NAME, pretend_gpu

from labkit import LLM
from labkit.bench.ceiling import read_bandwidth
from labkit.bench.machine import cpu_name
from labkit.bench.run import run_bench


def test_bench_rows_name_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    path = saved(llama(num_hidden_layers=1, head_dim=64), tmp_path)
    measured = []

    def noting(device: torch.device) -> float:
        measured.append(device)
        return read_bandwidth(1 << 12, repeats=1, device=device)

    monkeypatch.setattr("labkit.bench.run.read_bandwidth", noting)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with pretend_gpu(monkeypatch):
        for executor, name in (("cuda", NAME), ("torch", cpu_name())):
            with LLM(path, executor=executor) as llm:
                [row] = run_bench(llm, context_lengths=(3,), batch_sizes=(1,), decode_tokens=2, repeats=1)
            assert row.error is None and row.origin.device == name
    assert [device.type for device in measured] == [GPU.type, "cpu"]
