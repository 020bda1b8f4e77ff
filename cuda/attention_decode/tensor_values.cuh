// The second half of the tensor-core rung: weights times values, four tokens at a time. The quad-pairs lie side by side
// along the columns, and a lane loads some columns of one token of four: what B in row order wants of it. What a lane
// loads together may be given to the tensor cores four columns after four: it is known where their sums then are.
#pragma once

#include "attention_decode/tensor_keys.cuh"
#include "common/dequant.cuh"
#include "common/mma.cuh"
#include "common/paged.cuh"

using Values = PagedStore<V_BITS, HEAD_DIM>;

constexpr int V_COLUMNS = 128 / V_BITS < HEAD_DIM / 8 ? 128 / V_BITS : HEAD_DIM / 8;  // of a lane, in one load
constexpr int V_SPAN = 8 * V_COLUMNS;             // columns that a warp loads
constexpr int V_LOADS = HEAD_DIM / V_SPAN;        // for four tokens
constexpr int V_WORDS = V_COLUMNS * V_BITS / 32;
constexpr int PRODUCTS = HEAD_DIM / 32;           // of 8 rows by 32 columns
constexpr int V_ROW = HEAD_DIM * V_BITS / 8;      // bytes of a token

// Where the lane's first columns of a tile's values are. Past the last token that one is taken once more: a weight of 0
// does not help against what is no number.
struct ValuePart {
  const char* values;
  const half2* pairs;  // of 4 bits
  int first, last;     // tokens of the tile

  __device__ __forceinline__ ValuePart(const Values& all, long long place, int last_token) : last(last_token) {
    const int lane = threadIdx.x % WARP, column = ((lane >> 2 & 3) * 2 + (lane >> 4)) * V_COLUMNS;
    first = lane & 3;
    values = all.at<char>(place, column);
    if (V_BITS == 4) pairs = reinterpret_cast<const half2*>(all.params) + place * PAIRS + column / PAIR_SPAN;
  }
};

// The lane's columns of one token of four.
struct Value {
  unsigned words[V_WORDS];
  half2 pair;  // (s, b) of 4 bits

  // Eight of them, number i: bytes without their scale, which is part of the weight.
  __device__ __forceinline__ void unpack(int i, half2 (&out)[4]) const {
    if constexpr (V_BITS == 4) {
      dequantize_word<true>(words[i], pair, out);
    } else {
      exact_halves<V_BITS>(words, i, out);
    }
  }
};

// Four tokens of the tile.
struct FourValues {
  Value loads[V_LOADS];

  __device__ __forceinline__ void load(const ValuePart& part, int step) {
    const unsigned token = min(part.first + 4 * step, part.last);
#pragma unroll
    for (int i = 0; i < V_LOADS; i++) {
      load_words(part.values + token * V_ROW + i * (V_SPAN * V_BITS / 8), loads[i].words);
      if constexpr (V_BITS == 4) loads[i].pair = __ldg(part.pairs + token * PAIRS + i * (V_SPAN / PAIR_SPAN));
    }
  }

  __device__ __forceinline__ void multiply(float (&acc)[PRODUCTS][8], unsigned a0, unsigned a1) const {
#pragma unroll
    for (int load = 0; load < V_LOADS; load++) {
#pragma unroll
      for (int i = 0; i < V_COLUMNS / 8; i++) {
        half2 v[4];
        loads[load].unpack(i, v);
        const int product = load * (V_COLUMNS / 4) + 2 * i;
        mma_m8n8k4_by_rows(acc[product], a0, a1, bits_of(v[0]), bits_of(v[1]));
        mma_m8n8k4_by_rows(acc[product + 1], a0, a1, bits_of(v[2]), bits_of(v[3]));
      }
    }
  }
};

// The column of accumulator i of a product, as ValuePart has it.
__device__ __forceinline__ int value_column(int lane, int product, int i) {
  const int load = product / (V_COLUMNS / 4), within = product % (V_COLUMNS / 4);
  return load * V_SPAN + ((lane >> 2 & 3) * 2 + (i >> 2)) * V_COLUMNS + 4 * within + (lane & 2) + (i & 1);
}
