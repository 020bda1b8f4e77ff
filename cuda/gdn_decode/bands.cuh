// A state that a block's threads hold in bands of rows, each thread some columns of a band: how the bands' sums meet.
//
// With S the decayed state, before anything is written, and d = beta (v - S^T k), the new state is S + k d^T, so
//   o = (S + k d^T)^T q = S^T q + (k . q) d
// Both sums, S^T k and S^T q, are of one state: the bands add them up in one pass and meet once.
#pragma once

#include "common/vector.cuh"
#include "gdn_decode/step.cuh"

template <int BAND_COUNT>
struct Meeting {
  float4 of_k[BAND_COUNT][VALUE_DIM / 4], of_q[BAND_COUNT][VALUE_DIM / 4];  // each band's part of S^T k, S^T q
  float4 delta[VALUE_DIM / 4], o[VALUE_DIM / 4];                            // d, o
};

// One float of an array of float4.
__device__ __forceinline__ float& element(float4* array, int i) { return reinterpret_cast<float*>(array)[i]; }

// The first VALUE_DIM threads, whole warps, have a column each beside their part of a band.
__device__ __forceinline__ bool has_column() { return threadIdx.x < VALUE_DIM; }

struct Column {
  float v, z, weight;
  float score;  // k . q
  float o;

  // Everything that does not wait for the state.
  __device__ __forceinline__ void load(const Step& step, const float* norm_weight) {
    const int column = threadIdx.x, lane = threadIdx.x % WARP;
    v = __half2float(step.v[column]);
    z = __half2float(step.z[column]);
    weight = norm_weight[column];
    score = 0.0f;
#pragma unroll
    for (int i = 0; i < KEY_DIM; i += WARP) {
      score = fmaf(__half2float(step.k[i + lane]), __half2float(step.q[i + lane]), score);
    }
    score = warp_sum(score);
  }

  // From the bands' sums to d and o.
  template <int BAND_COUNT>
  __device__ __forceinline__ void add_up(Meeting<BAND_COUNT>& met, float beta) {
    const int column = threadIdx.x;
    float of_k = 0.0f, of_q = 0.0f;
#pragma unroll
    for (int band = 0; band < BAND_COUNT; band++) {
      of_k += element(met.of_k[band], column);
      of_q += element(met.of_q[band], column);
    }
    const float delta = beta * (v - of_k);
    o = fmaf(score, delta, of_q);
    element(met.delta, column) = delta;
    element(met.o, column) = o;
  }

  template <int BAND_COUNT>
  __device__ __forceinline__ void store(Meeting<BAND_COUNT>& met, const Step& step, float eps) const {
    const int lane = threadIdx.x % WARP;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VALUE_DIM; i += WARP) {
      squares = fmaf(element(met.o, i + lane), element(met.o, i + lane), squares);
    }
    step.out[threadIdx.x] = gated_norm(o, warp_sum(squares), weight, z, eps);
  }
};
