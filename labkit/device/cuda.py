"""The executor ``cuda``: kernels on an NVIDIA GPU, through CuPy's driver calls, on torch's tensors and torch's stream.

Nothing is copied and nothing waits: a launch is one driver call on torch's current stream, so it may be captured into
a CUDA graph beside torch's own operations. A stream goes to the driver as the handle that torch has for it; torch's
default stream is handle 0, the null stream itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from labkit.device.carried import Image
from labkit.device.kernel import Launch
from labkit.device.occupancy import MAX_BLOCK_SHARED
from labkit.errors import ExecutorError, KernelLaunchError

try:
    from cupy.cuda import driver, runtime
except ImportError as error:
    raise ExecutorError(
        f"The executor cuda launches through CuPy, which cannot be imported ({error}).",
        cure="python -m pip install 'labkit-v100[gpu]'",
    ) from error

OLDEST = (7, 0)
SHARED_OPT_IN = 97  # cudaDevAttrMaxSharedMemoryPerBlockOptin
STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

_thread = threading.local()


def launch(launch: Launch) -> None:
    """Run once. Raises KernelLaunchError if the driver refuses; a fault in the kernel shows at the next wait."""
    BoundLaunch(launch)()


def bind(launch: Launch) -> Callable[[], None]:
    """A launch with everything prepared: calling it is one driver call."""
    return BoundLaunch(launch)


class BoundLaunch:
    """Holds the handle, the parameters, and the tensors, whose memory must not move."""

    __slots__ = ("_buffer", "_function", "_index", "_launch", "_parameters", "_shape")

    def __init__(self, launch: Launch) -> None:
        index: int = launch.device.index
        self._launch = launch
        self._index = index
        self._function = launch.facts.handles.get(index) or _on_device(index, lambda: _load(launch, index))
        self._shape = (*launch.grid, *launch.block, launch.shared_bytes)
        self._buffer, self._parameters = launch.facts.signature.with_pointers(launch.values)

    def __call__(self) -> None:
        try:
            if torch.cuda.current_device() == self._index and self._index in _devices_of_thread():
                self._start()
            else:
                _on_device(self._index, self._start)
        except driver.CUDADriverError as error:
            _fail(self._launch, error)

    def _start(self) -> None:
        stream = torch.cuda.current_stream(self._index).cuda_stream
        driver.launchKernel(self._function, *self._shape, stream, self._parameters, 0)


def _devices_of_thread() -> set[int]:
    """GPUs whose context this thread has made current at least once: the driver knows none in a new thread."""
    devices: set[int] | None = getattr(_thread, "devices", None)
    if devices is None:
        devices = _thread.devices = set()
    return devices


def _on_device(index: int, action: Callable[[], Any]) -> Any:
    with torch.cuda.device(index):
        if index not in _devices_of_thread():
            runtime.setDevice(index)
            _devices_of_thread().add(index)
        return action()


def _load(launch: Launch, index: int) -> int:
    """The kernel's handle on one GPU; its module stays loaded as long as the process lives."""
    kernel = launch.kernel
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST:
        name = torch.cuda.get_device_name(index)
        message = f"{name} has compute capability {capability[0]}.{capability[1]}; labkit's kernels need 7.0."
        raise ExecutorError(message, cure="Choose another GPU, or the executor torch or sim.")
    try:
        module = driver.moduleLoadData(_code(launch.facts.image, capability))
        function = int(driver.moduleGetFunction(module, kernel.entry))
        limit = min(runtime.deviceGetAttribute(SHARED_OPT_IN, index), MAX_BLOCK_SHARED)
        static = driver.funcGetAttribute(STATIC_SHARED, function)
        driver.funcSetAttribute(function, MAX_DYNAMIC_SHARED, max(limit - static, 0))
    except driver.CUDADriverError as error:
        told = " ".join(str(error).split())
        cure = "Update the NVIDIA driver; or carry a cubin for this GPU: labkit build --arch sm_XY, LABKIT_KERNEL_DIR."
        raise KernelLaunchError(f"{kernel} cannot be loaded on GPU {index}: {told}.", cure=cure) from error
    launch.facts.handles[index] = function
    return function


def _code(image: Image, capability: tuple[int, int]) -> bytes:
    """Machine code where there is some for exactly this GPU, else PTX, which the driver compiles and keeps."""
    cubin = image.cubins.get(f"sm_{capability[0]}{capability[1]}")
    return cubin if cubin is not None else image.ptx.encode() + b"\0"


def _fail(launch: Launch, error: Exception) -> NoReturn:
    told = " ".join(str(error).split())
    shape = f"grid {launch.grid}, block {launch.block}, {launch.shared_bytes} bytes of shared memory"
    cure = "After a fault in an earlier kernel the process must start anew; CUDA_LAUNCH_BLOCKING=1 finds the culprit."
    raise KernelLaunchError(f"{launch.kernel} was not launched ({shape}): {told}.", cure=cure) from error
