"""The doctor, on machines that are only described: every gap has its cure, and a machine without a GPU is no gap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from labkit.device.carried import Image
from labkit.device.kernel_folder import write_folder
from labkit.device.resources import Resources
from labkit.device.sources import Source
from labkit.lab.doctor import ESSENTIAL, Report, diagnose
from labkit.lab.doctor_checks import Status, check_widgets
from labkit.lab.doctor_facts import EXTRAS, Facts, gather
from labkit.lab.doctor_gpus import Gpu, count_pci_gpus, parse_gpus
from labkit.ops.torch_ops import WITHOUT_KERNELS

V100 = Gpu("Tesla V100-SXM2-16GB", (7, 0), 16 * 2**30, "570.86.10")
H200 = Gpu("NVIDIA H200", (9, 0), 141 * 2**30, "580.65.06")
PASCAL = Gpu("Tesla P100", (6, 0), 16 * 2**30, "570.86.10")
EVERYTHING = {name: "1.0" for names in EXTRAS.values() for name in names}

LAPTOP = Facts(
    python=(3, 11, 7),
    python_prefix="/home/me/lab/.venv",
    system="Linux x86_64",
    torch_version="2.13.0+cpu",
    torch_cuda=None,
    torch_archs=(),
    torch_threads=2,
    cpu_capability="AVX2",
    cores=2,
    memory_total=16 * 2**30,
    memory_available=8 * 2**30,
    gpus=(),
    pci_gpus=0,
    nvrtc="NVRTC 12.8",
    nvrtc_problem="",
    headers=True,
    foreign_headers="",
    carried_kernels=False,
    carried_cubins=False,
    kernel_dir_problem="",
    torch_ops=("attention", "gdn"),
    tuning={},
    checkout=False,
    packages=EVERYTHING,
    tiny_present=True,
    smollm2_cached=True,
    labextensions=frozenset({"ipywidgets", "anywidget"}),
    server_prefix=None,
)
V100_BOX = replace(
    LAPTOP,
    torch_version="2.10.0+cu128",
    torch_cuda="12.8",
    torch_archs=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    gpus=(V100, V100),
    pci_gpus=2,
    packages={**EVERYTHING, "cupy-cuda12x": "14.2.0", "nvidia-cuda-nvrtc-cu12": "12.8.93"},
)


OLD_DRIVER = replace(H200, driver="535.183.01")
MAC = replace(LAPTOP, system="Darwin arm64", nvrtc=None, headers=False, carried_kernels=True)


def with_packages(facts: Facts, **packages: str | None) -> Facts:
    """The same machine with packages added, or (None) taken away."""
    changed = {**facts.packages, **{name.replace("_", "-"): version for name, version in packages.items()}}
    return replace(facts, packages={name: version for name, version in changed.items() if version is not None})


@pytest.mark.parametrize("facts", [LAPTOP, V100_BOX, MAC], ids=["laptop", "v100", "mac"])
def test_a_complete_machine_has_no_gap(facts: Facts) -> None:
    report = diagnose(facts)
    assert report.ok_to_learn
    assert report.gaps == ()
    assert report.verdict == "Ready."


GAPS: dict[str, tuple[Facts, str, Status, str]] = {
    "old python": (replace(LAPTOP, python=(3, 10, 12)), "python", Status.FAIL, "3.11"),
    "no torch": (replace(LAPTOP, torch_version=None), "torch", Status.FAIL, "torch>=2.10"),
    "torch without sm_70 on a V100": (
        replace(V100_BOX, torch_version="2.13.0", torch_cuda="13.0", torch_archs=("sm_75", "sm_80", "sm_90")),
        "torch",
        Status.FAIL,
        "torch 2.10.0",
    ),
    "CPU build on a V100": (replace(V100_BOX, torch_cuda=None, torch_archs=()), "torch", Status.WARN, "torch 2.10.0"),
    "CPU build on another GPU": (replace(LAPTOP, gpus=(H200,)), "torch", Status.WARN, "CUDA build"),
    "torch sees no GPU": (replace(V100_BOX, torch_archs=()), "torch", Status.FAIL, "driver"),
    "no AVX2": (replace(LAPTOP, cpu_capability="DEFAULT"), "cpu", Status.WARN, "AVX2"),
    "little memory": (replace(LAPTOP, memory_available=2**30), "memory", Status.WARN, "1 GiB"),
    "GPU too old": (replace(LAPTOP, gpus=(PASCAL,)), "gpu", Status.WARN, "7.0"),
    "no cupy beside a GPU": (with_packages(V100_BOX, cupy_cuda12x=None), "cupy", Status.WARN, "labkit-v100[gpu]"),
    "cupy for CUDA 13 on a V100": (
        with_packages(V100_BOX, cupy_cuda12x=None, cupy_cuda13x="14.2.0"),
        "cupy",
        Status.FAIL,
        "uninstall -y cupy-cuda13x",
    ),
    "cupy for CUDA 13 elsewhere": (with_packages(LAPTOP, cupy_cuda13x="14.2.0"), "cupy", Status.WARN, "cupy-cuda13x"),
    "cupy built from source on a V100": (
        with_packages(V100_BOX, cupy_cuda12x=None, cupy="13.0.0"),
        "cupy",
        Status.FAIL,
        "uninstall -y cupy",
    ),
    "two cupy wheels": (
        with_packages(V100_BOX, cupy_cuda13x="14.2.0"),
        "cupy",
        Status.FAIL,
        "uninstall -y cupy-cuda12x cupy-cuda13x",
    ),
    "no driver": (replace(LAPTOP, pci_gpus=1), "gpu", Status.WARN, "driver"),
    "driver too old for PTX": (replace(V100_BOX, gpus=(OLD_DRIVER,)), "gpu", Status.WARN, "570 or later"),
    "driver too old for a V100": (
        replace(V100_BOX, gpus=(replace(V100, driver="470.256"),)),
        "gpu",
        Status.WARN,
        "525 or later (570 to 580",
    ),
    "no NVRTC": (replace(LAPTOP, nvrtc=None), "nvrtc", Status.WARN, "nvidia-cuda-nvrtc-cu12>=12.4"),
    "NVRTC 13 only": (
        with_packages(replace(LAPTOP, nvrtc=None), nvidia_cuda_nvrtc="13.0.88"),
        "nvrtc",
        Status.WARN,
        "nvrtc-cu12>=12.4",
    ),
    "NVRTC 13 only, kernels carried": (
        with_packages(replace(LAPTOP, nvrtc=None, carried_kernels=True), nvidia_cuda_nvrtc="13.0.88"),
        "nvrtc",
        Status.WARN,
        "nvrtc-cu12>=12.4",
    ),
    "no headers": (replace(LAPTOP, headers=False), "cuda headers", Status.WARN, "nvidia-cuda-runtime-cu12"),
    "nothing for the simulator": (replace(LAPTOP, nvrtc=None), "executor sim", Status.WARN, "runtime-cu12"),
    "no headers for the simulator": (replace(LAPTOP, headers=False), "executor sim", Status.WARN, "runtime-cu12"),
    "cuda without cupy": (with_packages(V100_BOX, cupy_cuda12x=None), "executor cuda", Status.WARN, "cupy"),
    "cuda without torch for it": (
        replace(V100_BOX, torch_cuda=None, torch_archs=()),
        "executor cuda",
        Status.WARN,
        "torch",
    ),
    "cuda with nothing compiled": (replace(V100_BOX, headers=False), "executor cuda", Status.WARN, "nvrtc"),
    "cuda on an old GPU": (replace(LAPTOP, gpus=(PASCAL,)), "executor cuda", Status.WARN, "gpu"),
    "torch executor without torch": (replace(LAPTOP, torch_version=None), "executor torch", Status.FAIL, "torch"),
    "labkit-tiny missing": (replace(LAPTOP, tiny_present=False), "model labkit-tiny", Status.FAIL, "again"),
    "kernel of another environment": (
        replace(LAPTOP, server_prefix="/usr"),
        "widgets",
        Status.WARN,
        "make lab",
    ),
}


@pytest.mark.parametrize(("facts", "name", "status", "cure"), GAPS.values(), ids=GAPS.keys())
def test_each_gap_is_found_and_has_its_cure(facts: Facts, name: str, status: Status, cure: str) -> None:
    report = diagnose(facts)
    assert report[name].status is status
    assert cure in report[name].cure
    assert report[name] in report.gaps
    assert report.ok_to_learn == (status is not Status.FAIL or name not in ESSENTIAL)


INFORMATION: dict[str, tuple[Facts, str, str]] = {
    "no GPU": (LAPTOP, "gpu", ""),
    "no cupy, and no need": (LAPTOP, "cupy", ""),
    "no NVRTC, but carried kernels": (
        replace(LAPTOP, nvrtc=None, headers=False, carried_kernels=True),
        "nvrtc",
        "nvidia-cuda-nvrtc-cu12",
    ),
    "no headers, and no compiler": (replace(MAC, headers=False), "cuda headers", "nvidia-cuda-runtime-cu12"),
    "no GPU for cuda": (LAPTOP, "executor cuda", ""),
    "operations without kernels": (LAPTOP, "kernels", ""),
    "no table of tuned kernels": (V100_BOX, "linear layers", "labkit tune"),
    "no server": (with_packages(LAPTOP, fastapi=None), "extra serve", "labkit-v100[serve]"),
    "no server, in a checkout": (
        with_packages(replace(LAPTOP, checkout=True), fastapi=None),
        "extra serve",
        "python -m pip install -c constraints.txt -e '.[serve]'",
    ),
    "no notebooks": (with_packages(LAPTOP, plotly=None), "extra notebooks", "labkit-v100[notebooks]"),
    "no smollm2": (replace(LAPTOP, smollm2_cached=False), "model smollm2", "labkit demo"),
    "no widget front end": (replace(LAPTOP, labextensions=frozenset()), "widgets", "labkit-v100[notebooks]"),
}


@pytest.mark.parametrize(("facts", "name", "cure"), INFORMATION.values(), ids=INFORMATION.keys())
def test_what_is_merely_absent_is_information(facts: Facts, name: str, cure: str) -> None:
    report = diagnose(facts)
    assert report[name].status is Status.INFO
    assert cure in report[name].cure
    assert report.gaps == ()


@pytest.mark.parametrize("facts", [LAPTOP, V100_BOX, *(gap[0] for gap in GAPS.values())])
def test_no_gap_without_a_cure(facts: Facts) -> None:
    for check in diagnose(facts).checks:
        assert check.detail
        assert bool(check.cure) or check.status in (Status.OK, Status.INFO)


@pytest.mark.parametrize(
    ("archs", "gpu", "runs"),
    [
        (("sm_70",), V100, True),
        (("sm_75", "compute_75"), V100, False),
        (("sm_80", "compute_80"), H200, True),
        (("sm_80",), H200, False),
        (("sm_90a",), H200, True),
        (("sm_80",), Gpu("RTX 3090", (8, 6), 24 * 2**30, "570"), True),
        (("sm_100f", "sm_120"), H200, False),
    ],
)
def test_torch_runs_on(archs: tuple[str, ...], gpu: Gpu, runs: bool) -> None:
    report = diagnose(replace(V100_BOX, torch_archs=archs, gpus=(gpu,)))
    assert (report["torch"].status is Status.OK) == runs


def test_a_newer_gpu_is_said_not_to_be_a_v100() -> None:
    report = diagnose(replace(V100_BOX, gpus=(H200,)))
    assert report["gpu"].status is Status.OK
    assert "not a V100" in report["gpu"].detail


def test_executors_say_what_they_run() -> None:
    assert "CUDA files of your own" in diagnose(LAPTOP)["executor sim"].detail
    assert "carried" in diagnose(MAC)["executor sim"].detail
    assert diagnose(V100_BOX)["executor cuda"].status is Status.OK
    newer = with_packages(replace(V100_BOX, gpus=(H200,)), cupy_cuda12x=None, cupy_cuda13x="14.2.0")
    assert diagnose(newer)["executor cuda"].status is Status.OK


def test_operations_without_kernels_are_listed() -> None:
    assert diagnose(LAPTOP)["kernels"].detail == "attention and gdn have no CUDA kernel yet and run in torch"
    assert diagnose(replace(LAPTOP, torch_ops=()))["kernels"].status is Status.OK
    assert gather().torch_ops == tuple(WITHOUT_KERNELS)


def test_a_folder_of_compiled_kernels_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(tmp_path))
    resources = {"sm_70": {"k": Resources(16, 0, 0, 0, 0, 0)}}
    image = Image("// PTX", {"sm_70": b"code"}, resources, "NVRTC 12.8")
    write_folder(tmp_path, "NVRTC 12.8", {("copy", "1_plain"): [({}, Source("copy/1_plain.cu", "text"), image)]})
    facts = gather()
    assert facts.carried_kernels and facts.carried_cubins and not facts.kernel_dir_problem
    box = replace(V100_BOX, nvrtc=None, headers=False, carried_kernels=True)
    assert diagnose(box)["executor cuda"].status is Status.OK


@pytest.mark.parametrize("manifest", [None, "{}", '{"format": 1, "compiler": "", "kernels": [{}]}'])
def test_a_kernel_folder_that_cannot_be_read_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str | None
) -> None:
    monkeypatch.setenv("LABKIT_KERNEL_DIR", str(tmp_path))
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    problem = gather().kernel_dir_problem
    assert "manifest.json" in problem
    report = diagnose(replace(V100_BOX, kernel_dir_problem=problem))
    assert report["executor sim"].status is Status.WARN and problem in report["executor sim"].detail
    assert "Unset LABKIT_KERNEL_DIR" in report["executor sim"].cure
    assert report["executor cuda"].status is Status.WARN


OLD_V100 = replace(V100, driver="525.85.12")
NOT_READY: dict[str, tuple[Facts, str]] = {
    "torch without sm_70": (replace(V100_BOX, torch_cuda="13.0", torch_archs=("sm_75", "sm_90")), "torch"),
    "an old driver": (replace(V100_BOX, gpus=(replace(V100, driver="450.80.02"),)), "gpu"),
    "an old GPU beside a V100": (replace(V100_BOX, gpus=(V100, PASCAL)), "gpu"),
    "PTX that the driver does not read": (
        replace(V100_BOX, gpus=(OLD_V100,), nvrtc=None, headers=False, carried_kernels=True),
        "nvrtc",
    ),
}


@pytest.mark.parametrize(("facts", "line"), NOT_READY.values(), ids=NOT_READY.keys())
def test_the_executor_cuda_is_not_ready_where_nothing_runs(facts: Facts, line: str) -> None:
    check = diagnose(facts)["executor cuda"]
    assert check.status is Status.WARN and line in check.detail and line in check.cure


def test_machine_code_runs_under_an_older_driver() -> None:
    box = replace(V100_BOX, gpus=(OLD_V100,), nvrtc=None, headers=False, carried_kernels=True, carried_cubins=True)
    assert diagnose(box)["executor cuda"].status is Status.OK


def test_the_executor_torch_says_that_it_leaves_the_gpu_alone() -> None:
    check = diagnose(replace(V100_BOX, torch_archs=("sm_75", "sm_90")))["executor torch"]
    assert check.status is Status.WARN and "on the CPU, none on Tesla V100" in check.detail
    assert diagnose(V100_BOX)["executor torch"].status is Status.OK


def test_a_compiler_that_does_not_compile() -> None:
    problem = "NVRTC 12.8 lacks libnvrtc-builtins.so.12.8"
    report = diagnose(replace(LAPTOP, nvrtc=None, nvrtc_problem=problem))
    assert report["nvrtc"].status is Status.WARN and problem in report["nvrtc"].detail
    assert "--force-reinstall" in report["nvrtc"].cure and report["executor sim"].status is Status.WARN


def test_no_wheel_is_advised_where_there_is_none() -> None:
    report = diagnose(replace(MAC, carried_kernels=False))
    for name in ("nvrtc", "executor sim"):
        assert report[name].status is Status.WARN
        assert "pip install" not in report[name].cure and "LABKIT_KERNEL_DIR" in report[name].cure


def test_headers_of_another_cuda() -> None:
    check = diagnose(replace(LAPTOP, headers=False, foreign_headers="/usr/local/cuda/include"))["cuda headers"]
    assert check.status is Status.WARN and "/usr/local/cuda/include" in check.detail
    assert "nvidia-cuda-runtime-cu12" in check.cure


def test_gpus_without_a_driver_are_seen_on_the_bus(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    (tmp_path / "d").mkdir()
    assert count_pci_gpus(tmp_path) == 1
    assert count_pci_gpus(tmp_path / "nowhere") == 0


def test_widgets_of_a_kernel_whose_server_fits() -> None:
    check = check_widgets(replace(LAPTOP, server_prefix=LAPTOP.python_prefix))
    assert check.status is Status.OK
    assert "server" in check.detail


def test_parse_gpus() -> None:
    lines = "Tesla V100-SXM2-16GB, 7.0, 16384, 570.86.10\nNVIDIA H200, 9.0, 143771, 580.65.06\n"
    assert [(gpu.name, gpu.capability) for gpu in parse_gpus(lines)] == [(V100.name, (7, 0)), ("NVIDIA H200", (9, 0))]
    assert parse_gpus(lines)[0].memory == 16 * 2**30
    assert parse_gpus("") == ()
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't reach the driver, sorry, no, really\n") == ()
    assert parse_gpus("Some GPU, [N/A], 1024, 570\n") == ()


def test_nvidia_smi_is_asked_and_may_fail(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    for script, expected in (("echo 'Tesla V100, 7.0, 16384, 570'", 1), ("echo broken; exit 9", 0)):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert len(gather().gpus) == expected


def test_this_machine() -> None:
    report = diagnose()
    assert report.ok_to_learn, str(report)
    assert report["python"].detail.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert report["model labkit-tiny"].status is Status.OK


@pytest.mark.parametrize("missing", [("torch",), ("cupy", "fastapi", "ipywidgets", "plotly", "pandas", "jupyterlab")])
def test_works_with_packages_missing(missing: tuple[str, ...]) -> None:
    """In a fresh interpreter in which they cannot be imported, and cupy is never tried."""
    code = (
        "import sys\n"
        f"for name in {missing!r}: sys.modules[name] = None\n"
        "from labkit.lab.doctor import diagnose\n"
        "report = diagnose()\n"
        "assert sys.modules.get('cupy') is None\n"
        "print(report.ok_to_learn)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == [str("torch" not in missing)], done.stderr


def test_report_in_every_form() -> None:
    report = diagnose(with_packages(replace(V100_BOX, python_prefix="/<env>", server_prefix="/usr"), cupy_cuda13x="14"))
    names = [check.name for check in report.checks]
    assert len(set(names)) == len(names)
    document = json.loads(json.dumps(report.to_dict()))
    assert [check["name"] for check in document["checks"]] == names
    assert document["checks"][names.index("cupy")]["status"] == "fail"
    console = Console(width=200, record=True, quiet=False, file=sys.stderr)
    report.render(console)
    assert "labkit-v100[gpu]" in console.export_text()  # the brackets are no markup
    bundle = report._repr_mimebundle_()
    assert "/&lt;env&gt;" in bundle["text/html"]
    assert "<env>" not in bundle["text/html"]
    assert all(check.name in bundle["text/plain"] for check in report.checks)
    assert report.gaps[0].status is Status.FAIL
    assert "3 gap(s)" in report.verdict  # cupy, and with it the executor cuda; widgets


def test_verdict_of_a_machine_that_cannot() -> None:
    report = diagnose(replace(LAPTOP, torch_version=None))
    assert isinstance(report, Report)
    assert "cannot" in report.verdict
