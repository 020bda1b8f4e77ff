"""Do the simulator's checks and the operations' tests notice a broken kernel? Break each one and see.

    python tests/mutants.py [--op rmsnorm] [--seed N]

A mutant is a shipped kernel with one barrier, guard, bound, mask or fence deleted or weakened. It runs on the simulator
over the shapes of the operation's tests, and dies of a finding of the simulator or of a wrong result. One that compiles
to the same PTX is none; those that do the same in another way are listed in EQUIVALENT, with the reason.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))

from helpers.ops import CHECKS, FOLDERS, SMALL, Shape, check

from labkit.device import Kernel, sources, use_executor
from labkit.device.sim_executor import simulated_with
from labkit.errors import KernelBuildError, LabkitError
from labkit.sim.options import Options

CONDITION = r"\((?:[^();{}]|\([^()]*\))*\)"
RULES = (
    ("barrier", r"__syncthreads\(\);", ";"),
    ("barrier", r"__syncthreads_count\(", "static_cast<int>("),
    ("barrier", r"__syncwarp\([^)]*\);", ";"),
    ("fence", r"__threadfence(?:_block|_system)?\(\);", ";"),
    ("guard", rf"(?<!#)\bif {CONDITION} (?:return|break);", ";"),
    ("guard", rf"(?<!#)\bif {CONDITION} (?!return|break)", ""),
    ("guard", r"[\w.\[\] +]+ < \w+ && ", ""),
    ("bound", r"(?<=; )(i|\w+) < (?=[A-Za-z_* ]+; i \+= THREADS)", r"\1 <= "),
    ("mask", r"lane < WARPS \? ([^:]+) : [^)]+\)", r"\1)"),
    ("mask", r"(?<=_sync\()ALL_LANES", "0x0000ffffu"),
)
"""Kind, what is found in the source, and what it becomes."""

OPERATIONS: dict[str, list[str]] = {}
for _op in CHECKS:
    OPERATIONS.setdefault(FOLDERS.get(_op, _op), []).append(_op)
"""Folder of cuda/ -> the operations that it holds."""

NUMBERS = itertools.count(1)
SOON_ENDLESS = Options(counters=False, max_steps=100_000)  # four times what the slowest rung takes for its shapes
LINE_TABLE = re.compile(r"^\s*(?:\.loc|\.file|//).*$|\.section[^}]*\}", re.MULTILINE)

ALL_THE_SAME = "all lanes hold the same after the butterfly, and store the same to one word"
FROM_L2 = "the memory model wants it, but what follows is read with __ldcg, from L2, where no old copy can be"
GEMV_STORE = "if (lane == 0) y[at] = __float2half_rn(total + (residual ? __half2float(residual[at]) : 0.0f));"
WORD_STORE = "if (lane % WORD_LANES == 0) reinterpret_cast<unsigned*>(row.values)[lane / WORD_LANES] = word;"
PAIR_STORE = "if (lane % LANES == 0) reinterpret_cast<half2*>(row.params)[lane / LANES] = __halves2half2(scale, bias);"
NO_SUM = "without a bias sum_x stays 0, and so does what it adds"
GEMV_UP = (
    "if (SILU_MUL) dot(x, weight + static_cast<long long>(tile + tiles) * groups, rows, groups, shared[warp], up);"
)
GEMV_BIAS_3 = "if (SCALE_BIAS) sums[m] = fmaf(__high2float(pair), sum_x[m], sums[m]);"
GEMV_BIAS_4 = "if (SCALE_BIAS) sums[t][m] = fmaf(__high2float(now.pairs[t]), sum_x[m], sums[t][m]);"
GEMV_SUM_5 = "if (lane % (GROUP_CHUNKS * 8) == 0) shared.sums[lane / (GROUP_CHUNKS * 8)][m] = sum * (1.0f / OF_GROUP);"
WIDE_MERGE = "if (threadIdx.x % WARP == j) part[j] = make_float2(largest[j], total);"
PACKED_MERGE = "if (lane == j) totals.parts[warp][j] = make_float2(largest[j], sum[j]);"
INT8_SCALE = "if (K_BITS == 8 && part == 0) params[i] = __half2half2(keys.scale(token));"
LOADED_TWICE = "the same values are then loaded twice"
PADDED = "the factor there is a zero of the padding"
ONLY_SLOWER = "a full page then goes through the steps of a partly filled one, which change nothing in it"
EQUIVALENT: dict[tuple[str, str], str] = {
    ("common/reduce.cuh", "if (lane == 0) sums[threadIdx.x / WARP] = value;"): ALL_THE_SAME,
    ("softmax_online/3_vector.cu", "if (lane == 0) of_warp[threadIdx.x / WARP] = own;"): ALL_THE_SAME,
    ("gemv_half/2_coalesced.cu", GEMV_STORE): ALL_THE_SAME,
    ("gemv_int8/1_coalesced.cu", GEMV_STORE): ALL_THE_SAME,
    ("gemv_int8/2_magic.cu", GEMV_STORE): ALL_THE_SAME,
    ("common/split_k.cuh", "if (last) __threadfence();"): FROM_L2,
    ("common/kv_quant.cuh", "if (lane_index() == 0) row.params[0] = scale;"): ALL_THE_SAME,
    ("common/kv_quant.cuh", WORD_STORE): "the lanes of a word hold the same, and store it to one place",
    ("common/kv_quant.cuh", PAIR_STORE): "the lanes of a group hold the same, and store it to one place",
    ("awq_gemv/3_magic_halves.cu", GEMV_BIAS_3): NO_SUM,
    ("awq_gemv/3_magic_halves.cu", GEMV_UP): "nobody reads up then: the compiler drops what would load for it",
    ("awq_gemv/4_split_k.cu", GEMV_BIAS_4): NO_SUM,
    (
        "awq_gemv/ahead.cuh",
        "if (i % RUN == 0) load_pair(at, i / RUN, there, ahead);",
    ): "the same pair of the same group is then loaded again",
    ("awq_gemv/bytes_of_x.cuh", GEMV_SUM_5): ALL_THE_SAME,
    ("awq_gemv/bytes_of_x.cuh", "if (lane == 0) {"): ALL_THE_SAME,
    (
        "attention_decode/2_packed_group.cu",
        "if (slice.idle()) return;",
    ): "only slices without rows are idle there, and they have nothing to store",
    ("attention_decode/4_wide.cu", "if (CARRIED) load_values(values_ahead, value_part);"): LOADED_TWICE,
    ("attention_decode/4_wide.cu", "if (!CARRIED) load_values(values_ahead, value_part);"): LOADED_TWICE,
    ("attention_decode/wide_values.cuh", WIDE_MERGE): ALL_THE_SAME,
    (
        "attention_decode/wide_values.cuh",
        "if (i < PIECES) totals.pieces[i] = mine[n];",
    ): "behind the pieces is room for sums that nobody needs any more",
    ("attention_decode/packed.cuh", PACKED_MERGE): ALL_THE_SAME,
    ("common/kv_tile.cuh", "if (held >= PAGE_TOKENS) return;"): ONLY_SLOWER,
    ("attention_prefill/tensor.cuh", "if (position >= PAGE_TOKENS - 1) return;"): ONLY_SLOWER,
    ("attention_prefill/key_scales.cuh", INT8_SCALE): "a token's one scale is then loaded with each part again",
    ("gdn_prefill/2_chunked.cu", "if (run.begin >= run.end) return;"): "the state is then written as it was read",
    ("gdn_prefill/within.cuh", "if (j + 1 < i) x[i] -= factors.y * x[j + 1];"): PADDED,
    ("gdn_prefill/within.cuh", "if (j + 2 < i) x[i] -= factors.z * x[j + 2];"): PADDED,
    ("gdn_prefill/within.cuh", "if (j + 3 < i) x[i] -= factors.w * x[j + 3];"): PADDED,
    (
        "gdn_prefill/3_tensor_cores.cu",
        "if (threadIdx.x % WARP == 0) squares[warp] = sum;  // of NaN, lanes may have different ones",
    ): ALL_THE_SAME,
    ("gdn_prefill/3_tensor_cores.cu", "if (threadIdx.x == 0) {"): ALL_THE_SAME,
    (
        "awq_gemm/5_large_tile.cu",
        "if (step % GROUP_CHUNKS == 0) pairs[t] = __ldg(&group.pairs[lane]);",
    ): "every step of a group then loads its scales, which are the same",
}
"""(file, the line as it was) -> why a mutant of it behaves as the original."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file of a rung: ``before`` is the line as it was, ``text`` the whole file as it is now."""

    folder: str  # of cuda/
    rung: str
    file: str  # below cuda/
    kind: str
    line: int
    before: str
    after: str
    text: str

    @property
    def equivalent(self) -> str:
        """Why it behaves as the original; "" where it should not."""
        return EQUIVALENT.get((self.file, self.before), "")

    def __str__(self) -> str:
        return f"{self.folder}/{self.rung} {self.file}:{self.line} {self.kind}: {self.before}  ->  {self.after}"


def mutants(folder: str) -> Iterator[Mutant]:
    """All mutants of a folder's rungs, and of every header on the last rung that includes it."""
    texts: dict[str, tuple[str, str]] = {}  # file -> rung, text
    for rung in CHECKS[OPERATIONS[folder][0]][0]:
        source = sources.read_rung(folder, rung)
        texts[f"{folder}/{rung}.cu"] = rung, source.text
        texts |= {file: (rung, text) for file, text in source.headers.items()}
    for file, (rung, text) in texts.items():
        for kind, pattern, replacement in RULES:
            for match in re.finditer(pattern, text):
                if "//" not in text[text.rfind("\n", 0, match.start()) : match.start()]:
                    yield _mutant(folder, rung, file, kind, text, match, match.expand(replacement))


def _mutant(folder: str, rung: str, file: str, kind: str, text: str, match: re.Match[str], new: str) -> Mutant:
    changed = text[: match.start()] + new + text[match.end() :]
    line = text.count("\n", 0, match.start()) + 1
    before, after = (whole.splitlines()[line - 1].strip() for whole in (text, changed))
    return Mutant(folder, rung, file, kind, line, before, after, changed)


def verdict(mutant: Mutant) -> str:
    """What killed the mutant: "finding: ..." or "wrong: ..."; or "does not compile", "same code", "survives"."""
    original, number = sources.source_root(), next(NUMBERS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(original, folder, dirs_exist_ok=True)
        (folder / mutant.file).write_text(mutant.text, encoding="utf-8")
        changed = False
        for op, shape in [(name, shape) for name in OPERATIONS[mutant.folder] for shape in SMALL[name]]:
            at = number, op, mutant.rung, shape
            code, what = compiled(folder, *at)
            if code == compiled(original, 0, *at[1:])[0]:
                continue  # the mutant is not in what this shape runs
            changed, what = True, what or outcome(folder, *at)
            if what:
                return what
    return "survives" if changed else "same code"


def compiled(root: Path, number: int, op: str, rung: str, shape: Shape) -> tuple[list[str], str]:
    """The PTX that a check of the sources below ``root`` would launch, and "does not compile" or "".

    number: tells one set of sources from another wherever kernels are remembered; 0 for the originals.
    """
    code: list[str] = []
    what = _complaint(root, op, rung, shape, lambda kernel, *_: code.append(_numbered(kernel, number).image.ptx))
    return [LINE_TABLE.sub("", ptx) for ptx in code], what if what == "does not compile" else ""


def outcome(root: Path, number: int, op: str, rung: str, shape: Shape) -> str:
    """What was wrong with the sources below ``root`` ("": nothing)."""
    launch = Kernel.launch
    return _complaint(root, op, rung, shape, lambda kernel, *arguments: launch(_numbered(kernel, number), *arguments))


def _numbered(kernel: Kernel, number: int) -> Kernel:
    return Kernel(kernel.op, kernel.rung, kernel.entry, {**kernel.macros, "MUTANT": number})


def _complaint(root: Path, op: str, rung: str, shape: Shape, launch: Callable[..., None]) -> str:
    try:
        with (
            mock.patch.object(sources, "source_root", lambda: root),
            mock.patch.object(Kernel, "launch", launch),
            use_executor("sim"),
            simulated_with(SOON_ENDLESS),
        ):
            check(op, rung, shape, "cpu")
    except KernelBuildError:
        return "does not compile"
    except LabkitError as error:
        return f"finding: {error.message.splitlines()[0]}"
    except AssertionError as error:
        return f"wrong: {(str(error).splitlines() or ['another result'])[0]}"
    return ""


def survey(folders: Iterable[str]) -> list[tuple[Mutant, str]]:
    """Every mutant that compiles to other code, with its verdict."""
    found = [(mutant, verdict(mutant)) for folder in folders for mutant in mutants(folder)]
    return [(mutant, what) for mutant, what in found if what not in ("does not compile", "same code")]


def main(arguments: Any = None) -> int:
    """Print every mutant and its fate; exit status 1 if fewer than 95 % of those that change behaviour died."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", choices=list(OPERATIONS), action="append", help="a folder of cuda/; all, unless given")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    torch.manual_seed(options.seed)
    found = survey(options.op or OPERATIONS)
    for mutant, what in found:
        reason = f" ({mutant.equivalent})" if mutant.equivalent else ""
        print(f"{mutant}\n    {what}{reason}")
    changing = [what for mutant, what in found if not mutant.equivalent]
    dead = sum(what != "survives" for what in changing)
    print(f"{dead} of {len(changing)} mutants that change behaviour were noticed; {len(found)} in all.")
    return int(dead < 0.95 * len(changing))


if __name__ == "__main__":
    sys.exit(main())
