"""The doctor's judgements: pure functions from facts to checks, one for each line of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

from labkit.lab.doctor_facts import EXTRAS, LABEXTENSIONS, Facts, Gpu

GIB = 2**30
V100_CURE = "Use the environment of environment.yml: torch 2.10.0 is the last PyPI wheel with sm_70."
INSTALL = "python -m pip install 'labkit-v100[{extra}]'"


class Status(StrEnum):
    """OK; INFO: good to know, nothing is missing for what labkit does here; WARN: a gap; FAIL: will not work."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it stands, what was found, and what to do about it ("" if nothing)."""

    name: str
    status: Status
    detail: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.status.value:4}  {self.name}: {self.detail}" + (f"  -> {self.cure}" if self.cure else "")

    def to_dict(self) -> dict[str, str]:
        return {**asdict(self), "status": self.status.value}


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
        for gpu in facts.gpus:
            if not _runs_on(gpu, facts.torch_archs):
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


def _runs_on(gpu: Gpu, archs: tuple[str, ...]) -> bool:
    """Machine code runs within its major version from its minor on; PTX (compute_xx) on anything newer."""
    for arch in archs:
        kind, _, digits = arch.rstrip("af").partition("_")
        version = divmod(int(digits), 10)
        if version <= gpu.capability and (kind == "compute" or version[0] == gpu.capability[0]):
            return True
    return False


def check_cpu(facts: Facts) -> Check:
    detail = f"{facts.cores} cores, {facts.torch_threads} torch threads, {facts.cpu_capability}"
    if facts.cpu_capability == "DEFAULT" and facts.system.endswith(("x86_64", "AMD64")):
        return Check("cpu", Status.WARN, f"{detail} (no AVX2)", "Expect a slow CPU path; any later x86-64 has AVX2.")
    return Check("cpu", Status.OK, detail)


def check_memory(facts: Facts) -> Check:
    detail = f"{facts.memory_available / GIB:.1f} of {facts.memory_total / GIB:.1f} GiB available"
    if facts.memory_available < 2 * GIB:
        return Check("memory", Status.WARN, detail, "Close other programs: the demo model wants about 1 GiB.")
    return Check("memory", Status.OK, detail)


def check_gpu(facts: Facts) -> Check:
    if not facts.gpus:
        return Check("gpu", Status.INFO, "no NVIDIA GPU found: everything here runs on the CPU")
    named = ", ".join(f"{g.name} (sm_{g.capability[0]}{g.capability[1]}, {g.memory / GIB:.0f} GiB)" for g in facts.gpus)
    detail = f"{named}; driver {facts.gpus[0].driver}"
    if any(gpu.capability < (7, 0) for gpu in facts.gpus):
        return Check("gpu", Status.WARN, detail, "labkit wants compute capability 7.0 or later; it will use the CPU.")
    if not all(gpu.is_v100 for gpu in facts.gpus):
        detail += "; not a V100: right results, but its speed says nothing about one"
    return Check("gpu", Status.OK, detail)


def check_cupy(facts: Facts) -> Check:
    """CuPy launches the CUDA kernels of later versions. Two wheels of it break each other."""
    wheels = sorted(name for name in facts.packages if name.startswith("cupy"))
    detail = ", ".join(f"{name} {facts.packages[name]}" for name in wheels) or "not installed"
    if len(wheels) > 1:
        cure = f"python -m pip uninstall -y {' '.join(wheels)}; then {INSTALL.format(extra='gpu')}"
        return Check("cupy", Status.FAIL, f"{detail}: they overwrite each other", cure)
    if wheels == ["cupy-cuda12x"]:
        return Check("cupy", Status.OK, detail)
    install = INSTALL.format(extra="gpu")
    if not wheels:
        return Check("cupy", Status.WARN if facts.gpus else Status.INFO, detail, install)
    cure = f"python -m pip uninstall -y {wheels[0]}; then {install}"
    if any(gpu.is_v100 for gpu in facts.gpus):
        return Check("cupy", Status.FAIL, f"{detail}: a V100 needs the wheel for CUDA 12", cure)
    return Check("cupy", Status.WARN, f"{detail}: labkit is made for cupy-cuda12x", cure)


def check_nvrtc(facts: Facts) -> Check:
    """The compiler of the CUDA kernels: only 12.x still knows sm_70."""
    wheels = {name: version for name, version in facts.packages.items() if name.startswith("nvidia-cuda-nvrtc")}
    good = [version for version in wheels.values() if version.startswith("12.")]
    if good:
        return Check("nvrtc", Status.OK, f"{good[0]}, compiles for sm_70")
    cure = "python -m pip install 'nvidia-cuda-nvrtc-cu12>=12.4,<13'"
    if wheels:
        return Check("nvrtc", Status.WARN, f"{', '.join(wheels.values())} only, which cannot compile for sm_70", cure)
    status = Status.WARN if facts.gpus else Status.INFO
    return Check("nvrtc", status, "not installed; this version of labkit builds no kernels yet", cure)


def check_executors(facts: Facts) -> Iterator[Check]:
    """torch runs everything. The kernels of the other two are not part of this version."""
    ready = facts.torch_version is not None
    yield Check(
        "executor torch",
        Status.OK if ready else Status.FAIL,
        "runs every operation" if ready else "needs torch",
        "" if ready else "python -m pip install 'torch>=2.10,<3'",
    )
    for name in ("cuda", "sim"):
        detail = "its kernels come with a later version: until then every operation runs in torch"
        yield Check(f"executor {name}", Status.INFO, detail)


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
            yield Check(f"extra {extra}", Status.INFO, detail, INSTALL.format(extra=extra))
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
        return Check("widgets", Status.INFO, detail, INSTALL.format(extra="notebooks"))
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
)


def all_checks(facts: Facts) -> tuple[Check, ...]:
    """Every check, in the order of the report."""
    several = (*check_executors(facts), *check_models(facts), *check_extras(facts))
    return (*(check(facts) for check in SINGLE), *several, check_widgets(facts))
