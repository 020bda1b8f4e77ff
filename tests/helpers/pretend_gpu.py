"""A GPU that is not there: tensors that say they lie on cuda:0, so that code for a GPU runs, and is watched, anywhere.

Their numbers lie in CPU memory, and everything is really computed; kernels run on the simulator. What torch would not
do with tensors of a GPU and of the CPU together raises MixedDevices, and what passes between the two is counted.
(torch's FakeTensorMode can neither index nor copy such tensors in a build of torch without CUDA, and knows no values.)

    with pretend_gpu(monkeypatch) as gpu:
        llm = LLM(path, executor="cuda")
        gpu.reads.clear()
        llm.generate(...)
    gpu.reads        # the functions that had to wait for the GPU
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import labkit.device
from labkit.device import Out, kernel, sim_executor
from labkit.device.kernel import Launch
from labkit.ops import capability, multiprocessors, split_k, tuning

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
NAME = "Pretended GPU"
CONVERTED = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__", "is_nonzero")
WAITING = frozenset((*CONVERTED, "nonzero", "masked_select", "equal", "allclose", "unique"))
SHOWN = {"device": GPU, "is_cuda": True, "is_cpu": False}  # properties


class MixedDevices(AssertionError):
    """Tensors of the GPU and of the CPU met in one operation."""


class GpuTensor(Tensor):
    """A tensor that counts as lying on the GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl


@dataclass
class PretendedGpu:
    """What was seen. reads: functions that waited for the GPU; uploads: that copied to it; launches: kernels."""

    free: int
    reads: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all of it."""
        for seen in (self.reads, self.uploads, self.launches):
            seen.clear()


@contextmanager
def pretend_gpu(monkeypatch: pytest.MonkeyPatch, free: int = 1 << 30) -> Iterator[PretendedGpu]:
    """Inside, torch has a GPU with ``free`` bytes of memory, and CuPy is there."""
    gpu = PretendedGpu(free)
    stand_in = ModuleType("labkit.device.cuda")
    stand_in.launch = lambda launch: _launch(gpu, launch)  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, stand_in.__name__, stand_in)
        patch.setattr(labkit.device, "cuda", stand_in, raising=False)
        for name, answer in _answers(gpu).items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(split_k, "_buffers", {})
        _forget()
        try:
            with _Watch(gpu):
                yield gpu
        finally:
            _forget()


def _answers(gpu: PretendedGpu) -> dict[str, Callable[..., Any]]:
    return {
        "is_available": lambda: True,
        "current_device": lambda: GPU.index,
        "get_device_capability": lambda device: (7, 0),
        "get_device_name": lambda device: NAME,
        "mem_get_info": lambda device: (gpu.free, 2 * gpu.free),
        "memory_reserved": lambda device: 0,
        "memory_allocated": lambda device: 0,
        "get_device_properties": lambda device: SimpleNamespace(multi_processor_count=4),
        "current_stream": lambda device: SimpleNamespace(cuda_stream=0),
        "device": lambda device: nullcontext(),
        "is_current_stream_capturing": lambda: False,
    }


def _forget() -> None:
    """What is remembered of the device cuda:0."""
    for remembered in (kernel._executor, tuning.place_of, multiprocessors._processors, capability._capability):
        remembered.cache_clear()


def _launch(gpu: PretendedGpu, launch: Launch) -> None:
    gpu.launches.append(str(launch.kernel))
    with torch._C.DisableTorchFunction():
        sim_executor.launch(launch._replace(arguments=[_plain(x) for x in launch.arguments], device=CPU))


def _plain(argument: Any) -> Any:
    if isinstance(argument, Out):
        return Out(_plain(argument.tensor))
    return argument.as_subclass(Tensor) if isinstance(argument, Tensor) else argument


def _on_gpu(value: Any) -> Any:
    """Every tensor of a result as one of the GPU."""
    if isinstance(value, Tensor):
        return value if isinstance(value, GpuTensor) else value.as_subclass(GpuTensor)
    if isinstance(value, list):
        return [_on_gpu(part) for part in value]
    if isinstance(value, tuple) and any(isinstance(part, Tensor) for part in value):
        return type(value)(_on_gpu(part) for part in value)
    return value


class _Watch(TorchFunctionMode):
    """Sees every call of torch's functions and methods."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = any(isinstance(x, GpuTensor) for x in tensors)
        if name == "__get__":
            return _property(func, args[0], ours)
        if name == "pin_memory":
            return args[0]
        if name in ("to", "cpu", "cuda", "copy_"):
            return self._copy(func, name, args, kwargs)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"], ours = CPU, True
            self._gpu.uploads += [name] * (name in ("tensor", "as_tensor"))
        if ours:
            self._check(name, tensors, args)
        result = func(*args, **kwargs)
        return _on_gpu(result) if ours else result

    def _check(self, name: str, tensors: list[Tensor], args: Any) -> None:
        if any(x.dim() and not isinstance(x, GpuTensor) for x in tensors):
            raise MixedDevices(f"{name} of {[(type(x).__name__, list(x.shape)) for x in tensors]}")
        if name == "numpy":
            raise MixedDevices("numpy() of a tensor on the GPU")
        masks = name in ("__getitem__", "__setitem__") and any(
            isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_leaves(args[1])
        )
        if name in WAITING or masks:
            self._gpu.reads.append(name)
        if name in ("__getitem__", "__setitem__") and any(
            isinstance(x, list) for x in (args[1] if isinstance(args[1], tuple) else (args[1],))
        ):
            self._gpu.uploads.append(name)

    def _copy(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        source = args[1] if name == "copy_" else args[0]
        before = isinstance(source, GpuTensor)
        after = _target(name, args, kwargs, before)
        host = [CPU if _is_device(x) else x for x in args]
        host_kwargs = {key: CPU if key == "device" else x for key, x in kwargs.items()}
        if before == after:
            result = args[0] if name in ("cpu", "cuda") else func(*host, **host_kwargs)
            return _on_gpu(result) if after else result
        (self._gpu.uploads if after else self._gpu.reads).append(name)
        result = source.clone() if name in ("cpu", "cuda") else func(*host, **host_kwargs)
        if name == "to":
            result = result.clone()  # never the same memory
        return _on_gpu(result) if after else result.as_subclass(Tensor)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device | str)


def _target(name: str, args: Any, kwargs: Any, before: bool) -> bool:
    """Whether the result lies on the GPU."""
    if name in ("cpu", "cuda"):
        return name == "cuda"
    if name == "copy_":
        return isinstance(args[0], GpuTensor)
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, Tensor):
            return isinstance(value, GpuTensor)
        if _is_device(value):
            return torch.device(value).type == "cuda"
    return before


def _property(func: Any, tensor: Any, ours: bool) -> Any:
    name = func.__self__.__name__
    if ours and name in SHOWN:
        return SHOWN[name]
    value = func(tensor)
    return _on_gpu(value) if ours else value
