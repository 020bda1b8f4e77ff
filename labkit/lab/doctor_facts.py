"""What the doctor looks at. Everything is gathered here, once, and judged elsewhere.

Each field can be set by hand, so that any machine can be described to the checks without being there.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from labkit.lab.doctor_gpus import Gpu, count_pci_gpus, find_gpus
from labkit.lab.doctor_tuning import Tuning, find_tuning
from labkit.ops.torch_ops import WITHOUT_KERNELS

WATCHED = ("cupy", "nvidia-cuda-nvrtc")
EXTRAS = {
    "serve": ("fastapi", "uvicorn", "pydantic"),
    "notebooks": ("jupyterlab", "ipywidgets", "anywidget", "plotly", "pandas"),
}
# Front-end halves of the widgets, by the folder that JupyterLab looks for.
LABEXTENSIONS = {"ipywidgets": "@jupyter-widgets/jupyterlab-manager", "anywidget": "anywidget"}


@dataclass(frozen=True)
class Facts:
    """One machine and one Python environment.

    torch_version is None where torch is not installed, torch_cuda where it is a CPU build; torch_archs lists what a
    CUDA build was compiled for (empty if torch sees no GPU, since it does not tell then). gpus: those that the driver
    names; pci_gpus: how many NVIDIA display controllers are plugged in, driver or not. nvrtc: the compiler that knows
    sm_70, such as "NVRTC 12.8", after it has compiled something; nvrtc_problem: why one that is here does not. headers:
    whether cuda_fp16.h of CUDA 12 is found; foreign_headers: a folder with another CUDA's. carried_kernels,
    carried_cubins: whether this installation, or LABKIT_KERNEL_DIR, holds compiled ones, and a V100's machine code;
    kernel_dir_problem: why LABKIT_KERNEL_DIR cannot be read. These three texts are "" where all is well.
    torch_ops: operations that have no kernel yet. tuning: by the names of the GPUs.
    checkout: whether this is a clone of the repository, which pip installs from its folder. packages maps the names of
    installed distributions, lower case, to versions. labextensions: of the environment of this Python.
    server_prefix: environment of the Jupyter server that started this kernel, None outside a kernel.
    """

    python: tuple[int, int, int]
    python_prefix: str
    system: str
    torch_version: str | None
    torch_cuda: str | None
    torch_archs: tuple[str, ...]
    torch_threads: int
    cpu_capability: str
    cores: int
    memory_total: int
    memory_available: int
    gpus: tuple[Gpu, ...]
    pci_gpus: int
    nvrtc: str | None
    nvrtc_problem: str
    headers: bool
    foreign_headers: str
    carried_kernels: bool
    carried_cubins: bool
    kernel_dir_problem: str
    torch_ops: tuple[str, ...]
    tuning: Mapping[str, Tuning]
    checkout: bool
    packages: dict[str, str]
    tiny_present: bool
    smollm2_cached: bool
    labextensions: frozenset[str]
    server_prefix: str | None


def gather() -> Facts:
    """Look at this machine. Imports torch, never cupy; asks ``nvidia-smi`` where there is one."""
    version, cuda, archs, threads, capability = _torch()
    nvrtc, nvrtc_problem = _nvrtc()
    carried, cubins, kernel_dir_problem = _carried_kernels()
    memory, gpus = psutil.virtual_memory(), find_gpus()
    return Facts(
        python=sys.version_info[:3],
        python_prefix=sys.prefix,
        system=f"{platform.system()} {platform.machine()}",
        torch_version=version,
        torch_cuda=cuda,
        torch_archs=archs,
        torch_threads=threads,
        cpu_capability=capability,
        cores=os.cpu_count() or 1,
        memory_total=memory.total,
        memory_available=memory.available,
        gpus=gpus,
        pci_gpus=count_pci_gpus(),
        nvrtc=nvrtc,
        nvrtc_problem=nvrtc_problem,
        headers=_headers(),
        foreign_headers=_foreign_headers(),
        carried_kernels=carried,
        carried_cubins=cubins,
        kernel_dir_problem=kernel_dir_problem,
        torch_ops=tuple(WITHOUT_KERNELS),
        tuning={gpu.name: find_tuning(gpu.name) for gpu in gpus} if version else {},
        checkout=(Path(__file__).parents[2] / "constraints.txt").is_file(),
        packages=_packages(),
        tiny_present=_tiny_present(),
        smollm2_cached=_smollm2_cached(),
        labextensions=_labextensions(),
        server_prefix=_server_prefix(),
    )


def _torch() -> tuple[str | None, str | None, tuple[str, ...], int, str]:
    try:
        import torch
    except ImportError:
        return None, None, (), 0, "unknown"
    archs = tuple(torch.cuda.get_arch_list()) if torch.version.cuda else ()
    capability = torch.backends.cpu.get_cpu_capability()
    return torch.__version__, torch.version.cuda, archs, torch.get_num_threads(), capability


def _nvrtc() -> tuple[str | None, str]:
    """The compiler, if it compiles; else why the one that is here does not, "" where there is none."""
    from labkit.device.nvrtc import find_nvrtc, incomplete_nvrtc

    found = find_nvrtc()
    if found is None:
        broken = incomplete_nvrtc()
        return None, f"{broken} lacks {broken.builtins}" if broken else ""
    probe = found.compile('extern "C" __global__ void probe() {}', "probe.cu", {}, ["-arch=sm_70"])
    if probe.succeeded:
        return str(found), ""
    return None, f"{found} does not compile ({next(iter(probe.log.splitlines()), 'it says nothing')})"


def _headers() -> bool:
    from labkit.device.toolkit import header_folders

    return bool(header_folders())


def _foreign_headers() -> str:
    from labkit.device.toolkit import foreign_headers

    found = foreign_headers()
    return str(found) if found else ""


def _carried_kernels() -> tuple[bool, bool, str]:
    """Whether compiled kernels are here, whether a V100's machine code is among them, and what is wrong with them."""
    from labkit.device.image import WHEEL_FOLDER
    from labkit.device.manifest import PTX, read_manifest
    from labkit.errors import KernelBuildError

    chosen = os.environ.get("LABKIT_KERNEL_DIR")
    folders = [Path(chosen)] if chosen else []
    targets: set[str] = set()
    try:
        for folder in (*folders, *([WHEEL_FOLDER] if WHEEL_FOLDER.is_dir() else [])):
            targets.update(*(record.files for record in read_manifest(folder).records))
    except KernelBuildError as error:
        return False, False, error.message
    return PTX in targets, "sm_70" in targets, ""


def _packages() -> dict[str, str]:
    wanted = {name for names in EXTRAS.values() for name in names}
    found = {}
    for distribution in metadata.distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in wanted or name.startswith(WATCHED):
            found[name] = distribution.version
    return found


def _tiny_present() -> bool:
    from labkit.model.resolve import TINY

    return (TINY / "config.json").is_file() and any(TINY.glob("*.safetensors"))


def _smollm2_cached() -> bool:
    from labkit.model.resolve import smollm2_is_cached

    return smollm2_is_cached()


def _labextensions() -> frozenset[str]:
    folder = Path(sys.prefix) / "share" / "jupyter" / "labextensions"
    return frozenset(name for name, path in LABEXTENSIONS.items() if (folder / path / "package.json").is_file())


def _server_prefix() -> str | None:
    """The environment that the parent process was started from, if this is a kernel with a Jupyter server above it."""
    if "ipykernel" not in sys.modules:
        return None
    try:
        command = psutil.Process().parent().cmdline()
    except (AttributeError, psutil.Error):
        return None
    if not any("jupyter" in word for word in command[1:]):
        return None
    return str(Path(command[0]).absolute().parent.parent)
