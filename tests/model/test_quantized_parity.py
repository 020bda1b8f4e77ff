"""INT4 checkpoints: the engine's logits against transformers with the dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from helpers.models import llama, oracle_logits, qwen35, random_ids
from helpers.packers import write_awq_checkpoint, write_gguf_llama
from helpers.uploads import UPLOADS, small_qwen, write_upload
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from labkit import LLM

Q = gguf.GGMLQuantizationType
BIG = {"hidden_size": 128, "intermediate_size": 256}


def relative(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm()).item()


def report_agreement(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """Share of equal best tokens and mean KL divergence (nats), printed."""
    same = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    kl = kl_div(log_softmax(ours, -1), log_softmax(theirs, -1), log_target=True, reduction="batchmean").item()
    print(f"argmax agreement {same:.1%}, KL {kl:.2e} nats")
    return same, kl


def compare(
    path: Path,
    model: Any,
    state: dict[str, Tensor],
    exact: tuple[int, ...] = (4096, 40, 1),
    auto: tuple[int, ...] = (4096, 20),
) -> None:
    """fp32: equal to the dequantized weights. auto: near them, for few rows (the INT4 kernel) and many.

    exact, auto: the sizes of the chunks in which the prompt is run.
    """
    model.load_state_dict(state)
    ids = random_ids(160, 150)
    expected = oracle_logits(model, ids)
    for chunk in exact:
        with LLM(path, dtype="float32", prefill_tokens=chunk) as llm:
            assert relative(llm.logits(ids), expected) <= 1e-4
    for chunk in auto:
        with LLM(path, prefill_tokens=chunk) as llm:
            same, kl = report_agreement(llm.logits(ids), expected)
            assert same > 0.8 and kl < 0.1


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("skip", [(), ("q_proj", "layers.0.", "up_proj")], ids=["all", "mixed"])
def test_awq_llama(group_size: int, skip: tuple[str, ...], seed: int, tmp_path: Path) -> None:
    model = llama(**BIG)
    compare(tmp_path, model, write_awq_checkpoint(tmp_path, model, group_size=group_size, skip=skip))


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_awq_qwen35(prefix: str, seed: int, tmp_path: Path) -> None:
    """Gates with few rows (in_proj_a, in_proj_b) stay dense, as in real checkpoints; everything else is INT4."""
    model = qwen35(**BIG, linear_num_value_heads=6, linear_value_head_dim=32)
    state = write_awq_checkpoint(tmp_path, model, group_size=32, skip=("in_proj_a", "in_proj_b"), prefix=prefix)
    compare(tmp_path, model, state)


@pytest.mark.parametrize("name", UPLOADS)
def test_uploads(name: str, seed: int, tmp_path: Path) -> None:
    """Formats and lists of names of real uploads, mixed by module as those are."""
    model = small_qwen()
    compare(tmp_path, model, write_upload(tmp_path, model, UPLOADS[name]), exact=(4096,), auto=(20,))


@pytest.mark.parametrize("name", [name for name, upload in UPLOADS.items() if upload.group == 32])
def test_uploads_with_ragged_matrices(name: str, seed: int, tmp_path: Path) -> None:
    """Six value heads: 96 inputs of out_proj, three groups."""
    model = small_qwen(linear_num_value_heads=6)
    compare(tmp_path, model, write_upload(tmp_path, model, UPLOADS[name]), exact=(4096,), auto=(20,))


@pytest.mark.parametrize("qtype", [Q.F32, Q.F16, Q.Q8_0, Q.Q4_0, Q.Q4_1], ids=lambda q: q.name)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_gguf_llama(qtype: gguf.GGMLQuantizationType, tied: bool, seed: int, tmp_path: Path) -> None:
    model = llama(**BIG, tie_word_embeddings=tied)
    path = tmp_path / "model.gguf"
    compare(path, model, write_gguf_llama(path, model, qtype, embedding_type=Q.Q8_0 if tied else Q.F32))
