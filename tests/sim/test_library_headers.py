"""CUDA's own header libraries compile and run: cooperative groups and CUB, as users' files include them."""

from __future__ import annotations

import torch

import labkit.sim

SOURCE = """
#include <cooperative_groups.h>
#include <cub/block/block_scan.cuh>
namespace cg = cooperative_groups;

extern "C" __global__ void sums(const int* in, int* of_tile, int* up_to, int n) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  const int i = block.group_index().x * block.size() + block.thread_rank();
  const int value = i < n ? in[i] : 0;
  int sum = value;
  for (int distance = tile.size() / 2; distance; distance /= 2) sum += tile.shfl_xor(sum, distance);
  using Scan = cub::BlockScan<int, 128>;
  __shared__ typename Scan::TempStorage storage;
  int scanned;
  Scan(storage).InclusiveSum(value, scanned);
  if (i < n) of_tile[i] = sum;
  if (i < n) up_to[i] = scanned;
}
"""


def test_cooperative_groups_and_cub(seed: int) -> None:
    values = torch.randint(-1000, 1000, (256,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    of_tile, up_to = torch.zeros_like(values), torch.zeros_like(values)
    result = labkit.sim.run(SOURCE, name="sums", grid=(2,), block=(128,), args=[values, of_tile, up_to, 256])
    assert not result.findings
    assert torch.equal(of_tile, values.view(-1, 16).sum(1, dtype=torch.int32).repeat_interleave(16))
    assert torch.equal(up_to.view(2, 128), values.view(2, 128).cumsum(1, dtype=torch.int32))
