// One step of one value head of one sequence, as every rung takes it: its operands, its gates, and the way out.
// blockIdx.x is the value head, blockIdx.y the sequence, which has one row.
#pragma once

#include <cuda_fp16.h>

#include "common/gates.cuh"
#include "common/reduce.cuh"

struct Step {
  const half *q, *k, *v, *z;  // of this head: KEY_DIM, KEY_DIM, VALUE_DIM, VALUE_DIM
  half* out;
  float* state;  // [KEY_DIM, VALUE_DIM]
  bool fresh;    // the sequence has seen nothing: its state is 0, whatever an earlier owner left in the slot

  __device__ __forceinline__ Step(const half* qkv, const half* all_z, long long z_stride, half* all_out,
                                  float* all_states, const long long* slots, const int* starts, int key_heads,
                                  int group) {
    const long long heads = gridDim.x, head = blockIdx.x, row = blockIdx.y, keys = key_heads * KEY_DIM;
    const int key_head = static_cast<int>(blockIdx.x) / group;
    const half* channels = qkv + row * (2 * keys + heads * VALUE_DIM);
    q = channels + key_head * KEY_DIM;
    k = q + keys;
    v = channels + 2 * keys + head * VALUE_DIM;
    z = all_z + row * z_stride + head * VALUE_DIM;
    out = all_out + (row * heads + head) * VALUE_DIM;
    state = all_states + (slots[row] * heads + head) * (KEY_DIM * VALUE_DIM);
    fresh = starts[row] == 0;
  }

  // An element of the state before the step.
  __device__ __forceinline__ float old(int row, int column) const {
    return fresh ? 0.0f : state[row * VALUE_DIM + column];
  }
};

// What is kept of the state, e^g, and how much of the error is written, beta.
struct Gates {
  float decay, beta;

  __device__ __forceinline__ Gates(const half* b, long long b_stride, const half* a, long long a_stride,
                                   const float* a_log, const float* dt_bias) {
    const long long head = blockIdx.x, row = blockIdx.y;
    decay = expf(-expf(a_log[head]) * softplus(__half2float(a[row * a_stride + head]) + dt_bias[head]));
    beta = sigmoid(__half2float(b[row * b_stride + head]));
  }
};

// The gated norm of one element o: weight (o / sqrt(mean(o^2) + eps)) silu(z). squares: the head's sum of o^2.
__device__ __forceinline__ half gated_norm(float o, float squares, float weight, float z, float eps) {
  return __float2half_rn(o * rsqrtf(squares / VALUE_DIM + eps) * weight * (z * sigmoid(z)));
}
