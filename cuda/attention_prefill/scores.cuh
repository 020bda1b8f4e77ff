// From sums of products on the tensor cores to exponents of two: what the codes of keys are worth, for a lane's scores.
#pragma once

#include "attention_prefill/key_scales.cuh"
#include "attention_prefill/tensor.cuh"

// Sums of the elements of a warp's 16 rows of queries over each part, by which the biases of keys in 4 bits count.
struct RowSums {
  static constexpr int COUNT = (PARTS + 1) / 2;
  float sums[COUNT];  // of row lane % 16: of parts lane / 16 and lane / 16 + 2, or of the only part

  __device__ __forceinline__ explicit RowSums(const uint4* queries) {
    if constexpr (K_BITS == 4) {
      __syncthreads();  // others have fetched a part of the queries
#pragma unroll
      for (int i = 0; i < COUNT; i++) {
        sums[i] = sum_of(queries + part(i) * TILE_SIZE + threadIdx.x / WARP * WARP_ROWS * TILE_PIECES);
      }
    }
  }

  // To the notes, for each page anew. The four rows of a lane's products are neighbours there: those from first() on.
  __device__ __forceinline__ void store(float* notes) const {
    if constexpr (K_BITS == 4) {
      const int place = 4 * (row() & 1) + 2 * (row() & 4) + row() / 8 * 2 + (row() >> 1 & 1);
#pragma unroll
      for (int i = 0; i < COUNT; i++) notes[ROW_SUMS_AT + part(i) * WARP_ROWS + place] = sums[i];
    }
  }
  static __device__ __forceinline__ int first() { return 4 * (threadIdx.x & 1) + threadIdx.x % WARP / 16 * 8; }

 private:
  static __device__ __forceinline__ int row() { return threadIdx.x % WARP_ROWS; }
  static __device__ __forceinline__ int part(int i) { return PARTS == 1 ? 0 : threadIdx.x / WARP_ROWS % 2 + 2 * i; }

  static __device__ __forceinline__ float sum_of(const uint4* rows) {
    float sum = 0.0f;
    for (int p = 0; p < TILE_PIECES; p++) {
      const uint4 piece = rows[row_piece(row(), p ^ (row() & 4))];  // another one in each of eight rows: no bank twice
      const half2* pairs = reinterpret_cast<const half2*>(&piece);
#pragma unroll
      for (int i = 0; i < 4; i++) sum += __low2float(pairs[i]) + __high2float(pairs[i]);
    }
    return sum;
  }
};

struct Four {
  float at[4];
};

__device__ __forceinline__ Four four(const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  return {{x.x, x.y, x.z, x.w}};
}

// Before the products with a part of keys in 4 bits: what there is becomes multiples of its scales, its biases come in.
__device__ __forceinline__ void begin_part(Product& s, const float* notes, int part, const Lane& lane) {
  if constexpr (K_BITS != 4) return;
  const Four sums = four(notes + ROW_SUMS_AT + part * WARP_ROWS + RowSums::first());
#pragma unroll
  for (int n = 0; n < N_TILES; n++) {
    const float* tokens = notes + lane.token + 8 * n;
    const Four ratio = four(tokens + RATIOS_AT), bias = four(tokens + BIASES_AT);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float more = bias.at[neighbour(i)] * sums.at[2 * m + upper(i)];
        s[m][n][i] = part == 0 ? more : fmaf(s[m][n][i], ratio.at[neighbour(i)], more);
      }
    }
  }
}

// Of sums of products to exponents of two. Those of tokens that are not there yet may become NaN: the mask comes later.
__device__ __forceinline__ void scale_scores(Product& s, const float* notes, float factor, const Lane& lane) {
#pragma unroll
  for (int n = 0; n < N_TILES; n++) {
    const Four scale = K_BITS == 16 ? Four{{factor, factor, factor, factor}} : four(notes + lane.token + 8 * n);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
      for (int i = 0; i < 8; i++) s[m][n][i] *= scale.at[neighbour(i)];
    }
  }
  __syncwarp();  // the warp has read its notes: weights take their place
}
