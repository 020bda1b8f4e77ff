"""The doctor's judgements: pure functions from facts to checks, one for each line of the report.

Those about GPUs and kernels are in `doctor_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from labkit.lab.doctor_check import Check, Status, install
from labkit.lab.doctor_facts import EXTRAS, LABEXTENSIONS, Facts
from labkit.lab.doctor_kernels import (
    V100_CURE,
    check_cupy,
    check_executors,
    check_gpu,
    check_headers,
    check_nvrtc,
    check_ops,
    strangers,
)
from labkit.lab.doctor_tuning import check_tuning
from labkit.lab.drawing import counted

GIB = 2**30


def check_python(facts: Facts) -> Check:
    version = ".".join(map(str, facts.python))
    if facts.python < (3, 11, 0):
        return Check("python", Status.FAIL, version, "Install Python 3.11 or later and make the environment again.")
    return Check("python", Status.OK, f"{version} on {facts.system}")


def check_torch(facts: Facts) -> Check:
    """Whether torch is there, and whether its CUDA build knows the GPUs that are there."""
    if facts.torch_version is None:
        return Check("torch", Status.FAIL, "not installed", "python -m pip install 'torch>=2.10,<3'")
    if facts.torch_cuda is None:
        return _check_cpu_build(facts)
    detail = f"{facts.torch_version} for CUDA {facts.torch_cuda}"
    if facts.torch_archs:
        detail += ", with sm_70" if "sm_70" in facts.torch_archs else ", without sm_70 (V100)"
        for gpu in strangers(facts):
            cure = V100_CURE if gpu.is_v100 else "Install a torch build that knows this GPU."
            return Check("torch", Status.FAIL, f"{detail}: it cannot run on {gpu.name}", cure)
    elif facts.gpus:
        cure = "Update the NVIDIA driver, or install a torch build for an older CUDA."
        return Check("torch", Status.FAIL, f"{detail}, but it sees no GPU", cure)
    return Check("torch", Status.OK, detail)


def _check_cpu_build(facts: Facts) -> Check:
    detail = f"{facts.torch_version}, CPU build"
    if not facts.gpus:
        return Check("torch", Status.OK, detail)
    cure = V100_CURE if any(gpu.is_v100 for gpu in facts.gpus) else "Install a CUDA build of torch."
    return Check("torch", Status.WARN, f"{detail}: the GPU is not used", cure)


def check_cpu(facts: Facts) -> Check:
    detail = f"{counted(facts.cores, 'core')}, torch uses {counted(facts.torch_threads, 'thread')}"
    detail += f", {facts.cpu_capability}"
    if facts.cpu_capability == "DEFAULT" and facts.system.endswith(("x86_64", "AMD64")):
        return Check("cpu", Status.WARN, f"{detail} (no AVX2)", "Expect a slow CPU path; any later x86-64 has AVX2.")
    return Check("cpu", Status.OK, detail)


def check_memory(facts: Facts) -> Check:
    detail = f"{facts.memory_available / GIB:.1f} of {facts.memory_total / GIB:.1f} GiB available"
    if facts.memory_available < 2 * GIB:
        return Check("memory", Status.WARN, detail, "Close other programs: the demo model wants about 1 GiB.")
    return Check("memory", Status.OK, detail)


def check_models(facts: Facts) -> Iterator[Check]:
    if facts.tiny_present:
        yield Check("model labkit-tiny", Status.OK, "part of this installation")
    else:
        yield Check("model labkit-tiny", Status.FAIL, "missing from this installation", "Install labkit again.")
    if facts.smollm2_cached:
        yield Check("model smollm2", Status.OK, "in the cache")
    else:
        yield Check("model smollm2", Status.INFO, "not fetched yet (93 MB)", "labkit demo fetches it.")


def check_extras(facts: Facts) -> Iterator[Check]:
    for extra, names in EXTRAS.items():
        missing = [name for name in names if name not in facts.packages]
        if missing:
            detail = f"not installed: {', '.join(missing)}"
            yield Check(f"extra {extra}", Status.INFO, detail, install(extra, facts.checkout))
        else:
            yield Check(f"extra {extra}", Status.OK, "installed")


def check_widgets(facts: Facts) -> Check:
    """Widgets have two halves, and the browser's half must lie in the environment of the Jupyter *server*."""
    cure = "Start JupyterLab from the environment of this Python: make lab, or python -m jupyter lab."
    if facts.server_prefix is not None and facts.server_prefix != facts.python_prefix:
        detail = f"the server runs from {facts.server_prefix}, this kernel from {facts.python_prefix}"
        return Check("widgets", Status.WARN, f"{detail}: widgets may stay blank", cure)
    missing = [name for name in LABEXTENSIONS if name not in facts.labextensions]
    if missing:
        detail = f"no JupyterLab front end for {', '.join(missing)}"
        return Check("widgets", Status.INFO, detail, install("notebooks", facts.checkout))
    where = "this kernel's server has them" if facts.server_prefix else "installed for JupyterLab"
    return Check("widgets", Status.OK, where)


SINGLE: tuple[Callable[[Facts], Check], ...] = (
    check_python,
    check_torch,
    check_cpu,
    check_memory,
    check_gpu,
    check_cupy,
    check_nvrtc,
    check_headers,
)


def all_checks(facts: Facts) -> tuple[Check, ...]:
    """Every check, in the order of the report."""
    kernels = (*check_executors(facts), check_ops(facts), check_tuning(facts.gpus, facts.tuning))
    several = (*kernels, *check_models(facts), *check_extras(facts))
    return (*(check(facts) for check in SINGLE), *several, check_widgets(facts))
