"""The doctor's judgements about GPUs, the compiler, and where kernels run."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.device.toolkit import ELSEWHERE, HEADERS_WHEEL, NVRTC_WHEEL
from labkit.lab.doctor_check import Check, Status, install
from labkit.lab.doctor_facts import Facts
from labkit.lab.doctor_gpus import Gpu

GIB = 2**30
V100_CURE = "Use the environment of environment.yml: torch 2.10.0 is the last PyPI wheel with sm_70."
V100_DRIVERS = "570 to 580: the last that know the V100"
PTX_DRIVER = 570  # first branch that reads the PTX of NVRTC 12.8
CUBIN_DRIVER = 525  # first branch that loads machine code of any CUDA 12
GET_NVRTC = f"python -m pip install {NVRTC_WHEEL}"
GET_HEADERS = f"python -m pip install {HEADERS_WHEEL}"
GET_FOLDER = "Unset LABKIT_KERNEL_DIR, or point it to a folder made by labkit build --out."
GET_BOTH = f"python -m pip install {NVRTC_WHEEL} {HEADERS_WHEEL}"


def check_gpu(facts: Facts) -> Check:
    """The GPUs that the driver names, whether kernels for the V100 run on them, and whether there is a driver."""
    if not facts.gpus and facts.pci_gpus:
        detail = f"{facts.pci_gpus} NVIDIA GPU(s) in this machine, but no driver answers"
        cure = f"Install NVIDIA's driver (for a V100, {V100_DRIVERS}) and see that nvidia-smi runs."
        return Check("gpu", Status.WARN, detail, cure)
    if not facts.gpus:
        return Check("gpu", Status.INFO, "no NVIDIA GPU found: everything here runs on the CPU")
    named = ", ".join(f"{g.name} (sm_{g.capability[0]}{g.capability[1]}, {g.memory / GIB:.0f} GiB)" for g in facts.gpus)
    detail = f"{named}; driver {facts.gpus[0].driver}"
    if any(gpu.capability < (7, 0) for gpu in facts.gpus):
        return Check("gpu", Status.WARN, detail, "labkit wants compute capability 7.0 or later; it will use the CPU.")
    only_v100 = all(gpu.is_v100 for gpu in facts.gpus)
    oldest = CUBIN_DRIVER if only_v100 else PTX_DRIVER
    if _branch(facts.gpus[0].driver) < oldest:
        cure = f"Update NVIDIA's driver to {oldest} or later{f' ({V100_DRIVERS})' if only_v100 else ''}."
        return Check("gpu", Status.WARN, f"{detail}: too old for kernels of CUDA 12.8", cure)
    if not only_v100:
        detail += "; not a V100: right results, but its speed says nothing about one"
    return Check("gpu", Status.OK, detail)


def _branch(driver: str) -> int:
    """570 of "570.86.10". A version of another form counts as new."""
    first = driver.partition(".")[0]
    return int(first) if first.isdigit() else PTX_DRIVER


def strangers(facts: Facts) -> list[Gpu]:
    """The GPUs that a CUDA build of torch cannot run on."""
    return [gpu for gpu in facts.gpus if facts.torch_archs and not _runs_on(gpu, facts.torch_archs)]


def _runs_on(gpu: Gpu, archs: tuple[str, ...]) -> bool:
    """Machine code runs within its major version from its minor on; PTX (compute_xx) on anything newer."""
    for arch in archs:
        kind, _, digits = arch.rstrip("af").partition("_")
        version = divmod(int(digits), 10)
        if version <= gpu.capability and (kind == "compute" or version[0] == gpu.capability[0]):
            return True
    return False


def check_cupy(facts: Facts) -> Check:
    """CuPy launches the CUDA kernels. Two wheels of it break each other, and that for CUDA 13 knows no V100."""
    wheels = sorted(name for name in facts.packages if name.startswith("cupy"))
    detail = ", ".join(f"{name} {facts.packages[name]}" for name in wheels) or "not installed"
    get_cupy = install("gpu", facts.checkout)
    if len(wheels) > 1:
        cure = f"python -m pip uninstall -y {' '.join(wheels)} && {get_cupy}"
        return Check("cupy", Status.FAIL, f"{detail}: they overwrite each other", cure)
    if wheels == ["cupy-cuda12x"]:
        return Check("cupy", Status.OK, detail)
    if not wheels:
        if not facts.gpus:
            return Check("cupy", Status.INFO, f"{detail}, and without a GPU not needed")
        return Check("cupy", Status.WARN, detail, get_cupy)
    cure = f"python -m pip uninstall -y {wheels[0]} && {get_cupy}"
    if any(gpu.is_v100 for gpu in facts.gpus):
        return Check("cupy", Status.FAIL, f"{detail}: a V100 needs the wheel for CUDA 12", cure)
    if facts.gpus and wheels == ["cupy-cuda13x"]:
        return Check("cupy", Status.OK, f"{detail}: good for this GPU, though not for a V100")
    return Check("cupy", Status.WARN, f"{detail}: labkit is made for cupy-cuda12x", cure)


def check_nvrtc(facts: Facts) -> Check:
    """The compiler of the CUDA kernels: only 12.x still knows sm_70."""
    if facts.nvrtc is not None:
        return Check("nvrtc", Status.OK, f"{facts.nvrtc}, compiles for sm_70")
    if facts.nvrtc_problem:
        return Check("nvrtc", Status.WARN, facts.nvrtc_problem, f"{GET_NVRTC} --force-reinstall")
    wheels = [f"{name} {version}" for name, version in facts.packages.items() if name.startswith("nvidia-cuda-nvrtc")]
    if wheels:
        return Check("nvrtc", Status.WARN, f"{', '.join(wheels)} only, which cannot compile for sm_70", GET_NVRTC)
    if facts.carried_kernels:
        detail = "not installed: only compiled kernels that are carried here can run, with their own sizes"
        return Check("nvrtc", Status.INFO, detail, f"Where there is a wheel (Linux, Windows): {GET_NVRTC}")
    return Check("nvrtc", Status.WARN, "not installed: no kernel can be compiled", _where_wheels_are(facts, GET_NVRTC))


def _where_wheels_are(facts: Facts, command: str) -> str:
    """The command, for machines that it can help."""
    system, _, processor = facts.system.partition(" ")
    return command if system in ("Linux", "Windows") and processor in ("x86_64", "AMD64") else f"{ELSEWHERE}."


def check_headers(facts: Facts) -> Check:
    """What kernels include: cuda_fp16.h and its kin, which are not part of NVRTC's wheel."""
    if facts.headers:
        return Check("cuda headers", Status.OK, "cuda_fp16.h found")
    if facts.foreign_headers:
        detail = f"those in {facts.foreign_headers} are of another CUDA than 12, and are not used"
        status = Status.INFO if facts.nvrtc is None else Status.WARN
        return Check("cuda headers", status, detail, GET_HEADERS)
    if facts.nvrtc is None:
        return Check("cuda headers", Status.INFO, "not installed, and without a compiler not needed", GET_HEADERS)
    return Check("cuda headers", Status.WARN, "cuda_fp16.h is missing: kernels do not compile", GET_HEADERS)


def check_executors(facts: Facts) -> Iterator[Check]:
    """The three places where an operation can run."""
    yield _check_torch_executor(facts)
    yield _check_sim(facts)
    yield _check_cuda(facts)


def _check_torch_executor(facts: Facts) -> Check:
    if facts.torch_version is None:
        return Check("executor torch", Status.FAIL, "needs torch", "python -m pip install 'torch>=2.10,<3'")
    for gpu in strangers(facts):
        detail = f"runs every operation on the CPU, none on {gpu.name}"
        return Check("executor torch", Status.WARN, detail, "Follow the line torch of this report.")
    return Check("executor torch", Status.OK, "runs every operation")


def _compiles(facts: Facts) -> bool:
    return facts.nvrtc is not None and facts.headers


def _check_sim(facts: Facts) -> Check:
    if facts.kernel_dir_problem:
        return Check("executor sim", Status.WARN, f"refuses to run: {facts.kernel_dir_problem}", GET_FOLDER)
    if _compiles(facts):
        return Check("executor sim", Status.OK, "runs every kernel, and CUDA files of your own")
    if facts.carried_kernels:
        return Check("executor sim", Status.OK, "runs the compiled kernels that are carried here")
    cure = GET_HEADERS if facts.nvrtc else _where_wheels_are(facts, GET_BOTH)
    return Check("executor sim", Status.WARN, "has nothing to run: kernels cannot be compiled here", cure)


def _check_cuda(facts: Facts) -> Check:
    if not facts.gpus:
        return Check("executor cuda", Status.INFO, "needs an NVIDIA GPU, compute capability 7.0 or later")
    lacking = []
    if check_gpu(facts).status is not Status.OK:
        lacking.append("gpu")
    if not facts.torch_archs or strangers(facts):
        lacking.append("torch")
    if check_cupy(facts).status is not Status.OK:
        lacking.append("cupy")
    if not _compiles(facts) and not _carries(facts):
        lacking.append("nvrtc")
    if facts.kernel_dir_problem:
        lacking.append("executor sim")
    if lacking:
        detail = f"not ready: {', '.join(lacking)}"
        return Check("executor cuda", Status.WARN, detail, f"Follow the lines of this report: {', '.join(lacking)}.")
    return Check("executor cuda", Status.OK, "runs models on the GPU; auto takes it")


def _carries(facts: Facts) -> bool:
    """Whether compiled kernels are here that this driver takes: old ones read no PTX of this compiler."""
    new_enough = all(_branch(gpu.driver) >= PTX_DRIVER for gpu in facts.gpus)
    only_v100 = all(gpu.is_v100 for gpu in facts.gpus)
    return facts.carried_kernels and (new_enough or (only_v100 and facts.carried_cubins))


def check_ops(facts: Facts) -> Check:
    """Operations without a kernel (labkit.ops.torch_ops) run in torch wherever the others run."""
    if not facts.torch_ops:
        return Check("kernels", Status.OK, "every operation has its kernels")
    *most, last = facts.torch_ops
    names = f"{', '.join(most)} and {last} have" if most else f"{last} has"
    return Check("kernels", Status.INFO, f"{names} no CUDA kernel yet and run{'' if most else 's'} in torch")
