"""Whose weights is the output head? (Case ckpt-03 in all its variants, and the kind.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.packers import awq_config, awq_triplet, quantize_rows, write_safetensors

from labkit.errors import CheckpointError
from labkit.model.checkpoint import Checkpoint, head_is_tied, open_checkpoint
from labkit.quant.int4 import Int4Weight

EMBEDDING = torch.eye(4)
REVERSED = torch.eye(4).flip(0)


def open_case(directory: Path, config: dict[str, Any], head: dict[str, torch.Tensor]) -> Checkpoint:
    state = {"model.language_model.embed_tokens.weight": EMBEDDING} | head
    write_safetensors(directory, state, {"architectures": ["Qwen3_5ForConditionalGeneration"]} | config)
    return open_checkpoint(directory)


def config(outer: bool | None, inner: bool | None) -> dict[str, Any]:
    def tie(value: bool | None) -> dict[str, Any]:
        return {} if value is None else {"tie_word_embeddings": value}

    return tie(outer) | {"text_config": tie(inner)}


def argmax_of_first(checkpoint: Checkpoint) -> int:
    """The probe of the case: the head's logits for the hidden state [1, 0, 0, 0]."""
    name = "model.embed_tokens" if head_is_tied(checkpoint) else "lm_head"
    weight = checkpoint.linear(name)
    dense = weight.dequantize() if isinstance(weight, Int4Weight) else weight
    return int((dense @ torch.eye(dense.shape[1])[0]).argmax())


@pytest.mark.parametrize(
    ("outer", "inner", "head", "argmax", "noted"),
    [
        pytest.param(True, False, REVERSED, 3, False, id="a"),
        pytest.param(True, True, None, 0, False, id="b"),
        pytest.param(True, True, REVERSED, 3, True, id="d"),
        pytest.param(True, None, None, 0, False, id="e"),
        pytest.param(False, True, None, 0, False, id="inner true wins over outer false"),
        pytest.param(True, None, REVERSED, 3, True, id="only outer, head differs"),
        pytest.param(None, True, None, 0, False, id="only inner"),
        pytest.param(None, None, REVERSED, 3, False, id="config silent, head present"),
        pytest.param(False, False, REVERSED, 3, False, id="untied"),
        pytest.param(True, True, EMBEDDING, 0, False, id="tied and stored twice"),
    ],
)
def test_which_head(
    tmp_path: Path, outer: bool | None, inner: bool | None, head: torch.Tensor | None, argmax: int, noted: bool
) -> None:
    checkpoint = open_case(tmp_path, config(outer, inner), {} if head is None else {"lm_head.weight": head.clone()})
    assert argmax_of_first(checkpoint) == argmax
    assert ("has a head of its own" in str(checkpoint.report)) == noted


@pytest.mark.parametrize(
    ("outer", "inner"),
    [pytest.param(True, False, id="c"), (False, None), (None, False), pytest.param(None, None, id="silent")],
)
def test_a_head_that_should_be_there(tmp_path: Path, outer: bool | None, inner: bool | None) -> None:
    checkpoint = open_case(tmp_path, config(outer, inner), {})
    with pytest.raises(CheckpointError, match=r"no lm_head\.weight") as caught:
        head_is_tied(checkpoint)
    assert "tie_word_embeddings" in caught.value.cure


def test_a_stored_copy_of_the_embedding_is_tied(tmp_path: Path) -> None:
    assert head_is_tied(open_case(tmp_path, config(None, True), {"lm_head.weight": EMBEDDING.clone()}))


@pytest.mark.parametrize("tied", [True, False])
def test_a_quantized_head_is_used(tmp_path: Path, tied: bool) -> None:
    parts = quantize_rows(torch.eye(8, 64).flip(0), 64)
    head = {f"lm_head.{field}": tensor for field, tensor in awq_triplet(*parts).items()}
    quantized = config(None, tied) | {"quantization_config": awq_config(64)}
    checkpoint = open_case(tmp_path, quantized, head)
    assert argmax_of_first(checkpoint) == 7
    assert ("has a head of its own" in str(checkpoint.report)) == tied


def test_config_without_a_text_config(tmp_path: Path) -> None:
    assert head_is_tied(open_case(tmp_path / "1", {"tie_word_embeddings": True}, {}))
    assert not head_is_tied(open_case(tmp_path / "2", {"tie_word_embeddings": False}, {"lm_head.weight": REVERSED}))
