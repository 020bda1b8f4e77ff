"""How many bytes each module of a model takes: by a recipe, or as a checkpoint's headers say.

Only ``config.json`` and the headers of the safetensors or GGUF files are read, never a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from labkit.bench.fit_modules import ROWS, Geometry, Module, list_modules, read_geometry
from labkit.errors import CheckpointError, ConfigError, ModelNotFoundError
from labkit.model.checkpoint.gguf_file import INT4_TYPES
from labkit.model.checkpoint.gguf_header import GgufTensor, read_gguf_header
from labkit.model.checkpoint.gguf_llama import check_supported, hf_config, hf_name
from labkit.model.checkpoint.quant_config import quant_section
from labkit.model.checkpoint.report import LoadReport
from labkit.model.checkpoint.safetensors_dir import check_format
from labkit.model.checkpoint.shards import Entry, find_tensors, read_json
from labkit.model.named import NAMED_CONFIGS, RECIPES, UNQUANTIZED, WEIGHTS
from labkit.model.resolve import TINY, local_checkpoint
from labkit.model.smollm2 import cached_file

_FLOATS = ("F16", "BF16", "F32", "F64")
_PACKED = ("qweight", "weight_packed")  # eight 4-bit weights in an int32
_SCALES = ("scales", "weight_scale")
_FIELDS = ("weight", "qzeros", "g_idx", "weight_zero_point", "weight_shape", "weight_g_idx", "bias", *_PACKED, *_SCALES)


@dataclass(frozen=True)
class Weight:
    """A module's bytes over all ranks, as stored, and its number of 4-bit groups (0 if it is not quantized)."""

    module: Module
    nbytes: float
    groups: float = 0

    @property
    def labkit_bytes(self) -> float:
        """Bytes in labkit's own INT4 format: half a byte a weight and a half2 a group."""
        return self.module.parameters / 2 + 4 * self.groups if self.groups else self.nbytes

    @property
    def group_size(self) -> int:
        return round(self.module.parameters / self.groups) if self.groups else 1


@dataclass(frozen=True)
class WeighedModel:
    """A geometry with the bytes of all its modules. ``about`` says where they come from."""

    name: str
    geometry: Geometry
    weights: tuple[Weight, ...]
    about: str


def weigh(model: str | Path | Mapping[str, Any], weights: str | None = None) -> WeighedModel:
    """Find the model and the bytes of its modules.

    model: a name of ``NAMED_CONFIGS``, a checkpoint directory, a ``.gguf`` file, ``smollm2`` (if it was fetched),
    ``labkit-tiny``, or a config dictionary.
    weights: a name of ``WEIGHTS``; None means as in the checkpoint, or fp16 where there is no checkpoint.
    Raises ModelNotFoundError, UnsupportedModelError, CheckpointError, ConfigError.
    """
    if isinstance(model, Mapping):
        return _by_recipe("config", model, weights or "fp16")
    name = str(model).removeprefix("random:")
    if name in NAMED_CONFIGS:
        return _by_recipe(name, NAMED_CONFIGS[name], weights or "fp16")
    path = _locate(str(model))
    if path.suffix == ".gguf":
        return _by_gguf(path, weights)
    config = read_json(path / "config.json")
    return _by_recipe(path.name, config, weights) if weights else _by_headers(path, config)


def _locate(name: str) -> Path:
    """The checkpoint of that name; never fetches one."""
    if name == "labkit-tiny":
        return TINY
    path = cached_file() if name == "smollm2" else local_checkpoint(name)
    if path is None and name == "smollm2":
        raise ModelNotFoundError("smollm2 has not been fetched yet.", cure="`labkit demo` fetches it.")
    if path is None:
        raise ModelNotFoundError(
            f"{name} is no checkpoint and no known name.",
            cure=f"Give a directory, a .gguf file, smollm2, labkit-tiny or one of: {', '.join(NAMED_CONFIGS)}.",
        )
    return path


def _by_recipe(name: str, config: Mapping[str, Any], recipe: str) -> WeighedModel:
    if recipe not in WEIGHTS:
        raise ConfigError(f"Unknown weights {recipe!r}.", cure=f"Use one of: {', '.join(WEIGHTS)}.")
    geometry = read_geometry(config)
    weights = tuple(_recipe_weight(module, recipe, geometry) for module in list_modules(geometry))
    return WeighedModel(name, geometry, weights, f"{recipe}, computed from the config")


def _recipe_weight(module: Module, name: str, geometry: Geometry) -> Weight:
    if name not in UNQUANTIZED:
        recipe = RECIPES[name]
        if recipe.quantizes(module.name, moe=geometry.experts is not None):
            nbytes = module.parameters * recipe.bits_per_weight / 8
            return Weight(module, nbytes, groups=module.parameters / recipe.group_size)
    return Weight(module, module.parameters * (4 if module.fp32 else 2))


def _by_headers(directory: Path, config: Mapping[str, Any]) -> WeighedModel:
    geometry = read_geometry(config)
    found: dict[str, dict[str, list[Entry]]] = {}
    for name, entry in find_tensors(directory, LoadReport()).items():
        module, field = _module_and_field(name)
        found.setdefault(module, {}).setdefault(field, []).append(entry)
    modules = _expected(geometry, found)
    quant = quant_section(config)
    weights = tuple(_header_weight(module, found[module.name], quant) for module in modules)
    return WeighedModel(directory.name, geometry, weights, "as stored, from the safetensors headers")


def _module_and_field(tensor: str) -> tuple[str, str]:
    """``...q_proj.qweight`` -> (``...q_proj``, ``qweight``); the number of a single expert is left out."""
    module, _, field = tensor.rpartition(".")
    if field not in _FIELDS:  # A_log, dt_bias and fused experts are named without a field
        module, field = tensor, "weight"
    parts = module.split(".")
    if "experts" in parts:
        parts = [part for i, part in enumerate(parts) if not (part.isdigit() and parts[i - 1] == "experts")]
    return ".".join(parts), field


def _expected(geometry: Geometry, found: Mapping[str, Any]) -> list[Module]:
    """The modules that the config asks for, as the file divides them. Raises CheckpointError for a missing one."""
    modules = _fuse_experts(list_modules(geometry), found)
    names = {module.name for module in modules}
    if "lm_head" in found and "lm_head" not in names:  # tied by the config, yet stored: it will be loaded
        shape = (geometry.config.vocab_size, geometry.config.hidden_size)
        modules.append(Module("lm_head", shape, ROWS))
    missing = [module.name for module in modules if module.name not in found and not module.is_mtp]
    if missing:
        raise CheckpointError(
            f"The checkpoint lacks {missing[0]}" + (f" and {len(missing) - 1} more." if missing[1:] else "."),
            cure="Check that all shards were fetched and that config.json belongs to them.",
        )
    return [module for module in modules if module.name in found]


def _fuse_experts(modules: list[Module], found: Mapping[str, Any]) -> list[Module]:
    """16-bit files store the experts' gate and up projections as one tensor, ``experts.gate_up_proj``."""
    fused: list[Module] = []
    for module in modules:
        stem = module.name.removesuffix("gate_proj").removesuffix("up_proj")
        if stem.endswith(".experts.") and f"{stem}gate_up_proj" in found:
            if module.name.endswith("gate_proj"):
                experts, rows, cols = module.shape
                fused.append(replace(module, name=f"{stem}gate_up_proj", shape=(experts, 2 * rows, cols)))
        else:
            fused.append(module)
    return fused


def _header_weight(module: Module, fields: Mapping[str, list[Entry]], quant: Mapping[str, Any]) -> Weight:
    packed = [entry for field in _PACKED for entry in fields.get(field, [])]
    stored = 8 * _elements(packed) if packed else _elements(fields.get("weight", []))
    if packed and stored != module.parameters:  # 8 bits, say: the loader names the format that it does not read
        check_format(quant, module.name, {packed[0].name.rpartition(".")[2]: packed[0]})
    _check_count(module, stored)
    groups = _elements([entry for field in _SCALES for entry in fields.get(field, [])]) if packed else 0
    nbytes = sum(_loaded_bytes(entry, module) for entries in fields.values() for entry in entries)
    return Weight(module, nbytes, groups)


def _check_count(module: Module, stored: int) -> None:
    if stored != module.parameters:
        raise CheckpointError(
            f"{module.name} has {stored:,} weights in the file where its config asks for {module.parameters:,}.",
            cure="Check that all shards were fetched and that config.json belongs to them.",
        )


def _loaded_bytes(entry: Entry, module: Module) -> int:
    """Bytes once loaded: floats become half precision unless they must stay fp32."""
    return prod(entry.shape) * (4 if module.fp32 else 2) if entry.dtype in _FLOATS else entry.nbytes


def _by_gguf(path: Path, recipe: str | None) -> WeighedModel:
    header = read_gguf_header(path)
    check_supported(header.metadata, frozenset(header.tensors))
    found = {name.removesuffix(".weight"): tensor for key, tensor in header.tensors.items() if (name := hf_name(key))}
    rows = found["model.embed_tokens"].shape[0] if "model.embed_tokens" in found else 0
    config = hf_config(header.metadata, frozenset(header.tensors), rows)
    if recipe:
        return _by_recipe(path.stem, config, recipe)
    geometry = read_geometry(config)
    weights = tuple(_gguf_weight(module, found[module.name]) for module in _expected(geometry, found))
    return WeighedModel(path.stem, geometry, weights, "as stored, from the GGUF header")


def _gguf_weight(module: Module, tensor: GgufTensor) -> Weight:
    """Q4_0 and Q4_1 matrices stay as they are; everything else, and a 4-bit embedding, becomes half precision."""
    stays = tensor.type in INT4_TYPES and module.name != "model.embed_tokens"
    _check_count(module, prod(tensor.shape))
    return Weight(module, tensor.nbytes, module.parameters / 32) if stays else Weight(module, 2 * module.parameters)


def _elements(entries: list[Entry]) -> int:
    return sum(prod(entry.shape) for entry in entries)
