"""The pretended GPU itself notices what a GPU would: mixed devices, reads that wait, copies that go up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from helpers.pretend_gpu import GPU, MixedDevices, PretendedGpu, pretend_gpu
from torch import Tensor


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    with pretend_gpu(monkeypatch) as pretended:
        yield pretended


MIXTURES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum": lambda there, here: there + here,
    "sum in place": lambda there, here: here.add_(there),
    "product": lambda there, here: F.linear(there, here),
    "joined": lambda there, here: torch.cat((there, here)),
    "a CPU index": lambda there, here: there[here[0].long()],
    "CPU values": lambda there, here: there.__setitem__(there[0].long(), here),
    "a GPU index": lambda there, here: F.embedding(there[0].long(), here),
    "numpy": lambda there, here: there.numpy(),
}


@pytest.mark.parametrize("mix", MIXTURES.values(), ids=MIXTURES.keys())
def test_mixed_devices(mix: Callable[[Tensor, Tensor], object], gpu: PretendedGpu) -> None:
    here = torch.zeros(4, 4)
    with pytest.raises(MixedDevices):
        mix(here.to(GPU), here)
    mix(here.clone(), here.clone())


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "__bool__": lambda x: bool(x[0]),
    "__float__": lambda x: float(x[0]),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", torch.float64),
    "__getitem__": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
}


@pytest.mark.parametrize(("name", "read"), READS.items())
def test_what_waits_is_noted(name: str, read: Callable[[Tensor], object], gpu: PretendedGpu) -> None:
    x = torch.ones(3, device="cuda")
    assert not gpu.reads
    read(x)
    assert gpu.reads == [name]


UPLOADS: dict[str, Callable[[Tensor], object]] = {
    "to": lambda x: torch.zeros(3).to(x.device),
    "tensor": lambda x: torch.tensor([1, 2], device=x.device),
    "copy_": lambda x: x.copy_(torch.zeros(3)),
    "__getitem__": lambda x: x[[0, 1]],
}


@pytest.mark.parametrize(("name", "upload"), UPLOADS.items())
def test_what_goes_up_is_noted(name: str, upload: Callable[[Tensor], object], gpu: PretendedGpu) -> None:
    x = torch.ones(3, device="cuda")
    upload(x)
    assert gpu.uploads == [name] and not gpu.reads


def test_results_stay_on_the_gpu_and_copies_are_copies(gpu: PretendedGpu) -> None:
    here = torch.arange(6.0).view(2, 3)
    there = here.to("cuda")
    for result in (there * 2, there.T, there.split(1)[1], torch.aminmax(there).max, there.half(), there.new_zeros(2)):
        assert result.device == GPU and result.is_cuda
    there.zero_()
    assert here.sum() == 15 and there.cpu().device.type == "cpu"
    there.cpu().fill_(1)
    assert not there.any().item()
