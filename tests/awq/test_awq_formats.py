"""The written tensors are those that the formats' own readers expect."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from helpers.packers import awq_triplet

from labkit.awq.formats import can_hold, file_tensors, quantization_config
from labkit.quant.formats import awq_to_int4
from labkit.quant.int4 import Int4Weight


@pytest.fixture
def weight(seed: int) -> Int4Weight:
    q = torch.randint(0, 16, (24, 128), dtype=torch.uint8)
    groups = torch.stack((torch.rand(24, 4), torch.randint(0, 16, (24, 4)).float()), dim=-1).half()
    return Int4Weight.from_nibbles(q, groups, "scale_zero")


def test_autoawq_as_the_tests_own_packer_and_back(weight: Int4Weight) -> None:
    scale, zero = weight.groups.unbind(-1)
    expected = awq_triplet(weight.unpack().numpy().astype("int64"), zero.numpy().astype("int64"), scale.numpy())
    tensors = file_tensors("a.b", weight, "awq")
    assert {name: tensors[f"a.b.{name}"].tolist() for name in expected} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }
    back = awq_to_int4(*(tensors[f"a.b.{field}"] for field in ("qweight", "qzeros", "scales")))
    assert torch.equal(back.packed, weight.packed) and torch.equal(back.groups, weight.groups)


def test_compressed_tensors_as_the_librarys_packer(weight: Int4Weight) -> None:
    scale, zero = weight.groups.unbind(-1)
    tensors = file_tensors("m", weight, "compressed-tensors")
    assert torch.equal(tensors["m.weight_packed"], pack_to_int32(weight.unpack().to(torch.int8) - 8, 4))
    assert torch.equal(tensors["m.weight_zero_point"], pack_to_int32(zero.to(torch.int8) - 8, 4, packed_dim=0))
    assert torch.equal(tensors["m.weight_scale"], scale)
    assert tensors["m.weight_shape"].tolist() == [24, 128] and len(tensors) == 4


@pytest.mark.parametrize(
    ("outputs", "inputs", "group", "holds"),
    [(8, 128, 128, True), (24, 96, 32, True), (12, 128, 128, False), (16, 192, 128, False), (576, 576, 64, True)],
)
def test_what_can_be_packed(outputs: int, inputs: int, group: int, holds: bool) -> None:
    assert can_hold(outputs, inputs, group) is holds


def test_the_config_names_what_stays_as_it_is() -> None:
    names = ["lm_head", "model.layers.0.self_attn.q_proj"]
    assert quantization_config("awq", 64, names)["modules_to_not_convert"] == names
    compressed = quantization_config("compressed-tensors", 32, names)
    assert compressed["ignore"] == names
    assert compressed["config_groups"]["group_0"]["weights"]["group_size"] == 32
