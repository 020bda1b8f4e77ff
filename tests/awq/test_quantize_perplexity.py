"""On real models AWQ loses less than round to nearest, on a text that is not the calibration text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit import LLM
from labkit.awq.calibration import read_text
from labkit.awq.quantize import quantize
from labkit.awq.settings import METHODS, QuantizeSettings
from labkit.bench.perplexity import perplexity
from labkit.bench.texts import DEFAULT_TEXT


def _measured(source: Path, folder: Path, group_size: int, record: Callable[[str, Any], None]) -> dict[str, float]:
    """Perplexities before and after each method, in fp32."""
    text = DEFAULT_TEXT.read_text()
    assert text[:200] not in read_text(None)
    models = {"before": source}
    for method in METHODS:
        models[method] = quantize(source, folder / method, QuantizeSettings(group_size, method=method)).out
    scores = {}
    for name, model in models.items():
        with LLM(model, dtype="float32") as llm:
            scores[name] = perplexity(llm, text, window=512, stride=256, max_tokens=4096).perplexity
        record(f"perplexity_{name}_group_{group_size}", round(scores[name], 4))
    print(scores)
    return scores


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_labkit_tiny(tiny_path: Path, tmp_path: Path, record_property: Callable[[str, Any], None]) -> None:
    scores = _measured(tiny_path, tmp_path, 128, record_property)
    assert scores["before"] < scores["awq"] < scores["rtn"]
    assert scores["awq"] - scores["before"] < 0.85 * (scores["rtn"] - scores["before"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_smollm2(smollm2_path: Path, tmp_path: Path, record_property: Callable[[str, Any], None]) -> None:
    scores = _measured(smollm2_path, tmp_path, 64, record_property)
    assert scores["before"] < scores["awq"] < scores["rtn"]
    assert scores["awq"] - scores["before"] < 0.6 * (scores["rtn"] - scores["before"])
