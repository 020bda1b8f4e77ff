"""A GGUF file becomes a whole directory: fp16 weights, tokenizer, template, end tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from helpers.models import llama
from helpers.packers import write_gguf_llama
from helpers.quantizing import SMALL
from helpers.vocabulary import byte_level_core, gguf_metadata
from transformers import AutoTokenizer

from labkit import LLM
from labkit.awq.quantize import quantize
from labkit.awq.settings import QuantizeSettings
from labkit.model.checkpoint import open_checkpoint
from labkit.quant.int4 import Int4Weight

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _add(writer: gguf.GGUFWriter, metadata: dict[str, object]) -> None:
    for name, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, str(value))


@pytest.fixture
def gguf_file(seed: int, tmp_path: Path) -> Path:
    core = byte_level_core()
    end = core.token_to_id("<|end|>")
    metadata = gguf_metadata(core, eos_token_id=end) | {"tokenizer.chat_template": TEMPLATE}
    model = llama(vocab_size=core.get_vocab_size(with_added_tokens=True), tie_word_embeddings=True)
    path = tmp_path / "small.gguf"
    write_gguf_llama(path, model, gguf.GGMLQuantizationType.Q4_1, extra=lambda writer: _add(writer, metadata))
    return path


@pytest.mark.parametrize("method", ["awq", "rtn"])
def test_the_directory_is_complete(gguf_file: Path, tmp_path: Path, method: str) -> None:
    report = quantize(gguf_file, tmp_path / "out", QuantizeSettings(**{**SMALL.to_dict(), "method": method}))
    assert report.notes == ("small.gguf: weights of 4 or 8 bits were dequantized to fp16 first.",)
    text = "the cat sat on the mat 12 héllo"
    with LLM(gguf_file, dtype="float32") as before, LLM(report.out, dtype="float32") as after:
        ids = before.tokenizer.encode(text)
        assert after.tokenizer.encode(text) == ids
        assert after.tokenizer.eos_ids == before.tokenizer.eos_ids
        assert after.tokenizer.chat_template == TEMPLATE
        table = "model.embed_tokens.weight"
        assert torch.equal(open_checkpoint(report.out).tensor(table), open_checkpoint(gguf_file).tensor(table).half())
    assert AutoTokenizer.from_pretrained(report.out)(text)["input_ids"] == ids
    config = json.loads((report.out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "float16"


def test_skipped_modules_are_the_files_weights_in_half(gguf_file: Path, tmp_path: Path) -> None:
    settings = QuantizeSettings(group_size=32, method="rtn", skip=("mlp",))
    report = quantize(gguf_file, tmp_path / "out", settings)
    before, after = open_checkpoint(gguf_file), open_checkpoint(report.out)
    for name in report.kept:
        if name != "lm_head":
            stored, ours = before.linear(name), after.linear(name)
            assert isinstance(stored, Int4Weight) and isinstance(ours, torch.Tensor)
            assert torch.equal(ours, stored.dequantize().half())
