// The second half of the tensor-core rung: weights times values, four tokens at a time. The quad-pairs lie side by side
// along the columns, and a lane loads some columns of one token of four: what B in row order wants of it. What a lane
// loads together may be given to the tensor cores four columns after four: it is known where their sums then are.
#pragma once

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

// Eight elements of a load, number i, as halves. Bytes are left without their scale.
template <int BITS, int WORDS>
__device__ __forceinline__ void unpack_eight(const unsigned (&words)[WORDS], int i, half2 pair, half2 (&out)[4]) {
  if constexpr (BITS == 16) {
#pragma unroll
    for (int c = 0; c < 4; c++) out[c] = *reinterpret_cast<const half2*>(&words[4 * i + c]);
  } else if constexpr (BITS == 8) {
    bytes_to_halves(make_uint2(words[2 * i], words[2 * i + 1]), out);
  } else {
    dequantize_word<true>(words[i], pair, out);
  }
}

// The lane's columns of one token of four.
struct Value {
  unsigned words[V_WORDS];
  half2 scale;  // of 8 bits: twice the same; of 4 bits: (s, b)

  // from: of a token, the lane's columns of its first load. place: of the token.
  __device__ __forceinline__ void load(const char* from, const Values& values, long long place, int columns) {
    from += columns * V_SPAN * V_BITS / 8;
    if constexpr (V_WORDS == 4) *reinterpret_cast<uint4*>(words) = __ldg(reinterpret_cast<const uint4*>(from));
    if constexpr (V_WORDS == 2) *reinterpret_cast<uint2*>(words) = __ldg(reinterpret_cast<const uint2*>(from));
    if constexpr (V_WORDS == 1) words[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    if constexpr (V_BITS == 8) scale = __half2half2(values.scale(place));
    if constexpr (V_BITS == 4) scale = values.pair(place, columns * V_SPAN + first_column());
  }

  __device__ __forceinline__ static int first_column() {
    const int lane = threadIdx.x % WARP;
    return ((lane >> 2 & 3) * 2 + (lane >> 4)) * V_COLUMNS;
  }

  __device__ __forceinline__ void unpack(int i, half2 (&out)[4]) const {
    unpack_eight<V_BITS>(words, i, scale, out);
    if constexpr (V_BITS == 8) {
#pragma unroll
      for (int c = 0; c < 4; c++) out[c] = __hmul2(out[c], scale);
    }
  }
};

// Four tokens of the tile. Past the last token that one is taken once more: a weight of 0 does not help against what is
// no number.
struct FourValues {
  Value loads[V_LOADS];

  // part: the lane's first columns of the tile's first token.
  __device__ __forceinline__ void load(const char* part, const Values& values, long long place, int step, int last) {
    const int token = min(4 * step + static_cast<int>(threadIdx.x & 3), last);
#pragma unroll
    for (int i = 0; i < V_LOADS; i++) loads[i].load(part + token * V_ROW, values, place + token, i);
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

// The column of accumulator i of a product, as Value::load has it.
__device__ __forceinline__ int value_column(int lane, int product, int i) {
  const int load = product / (V_COLUMNS / 4), within = product % (V_COLUMNS / 4);
  return load * V_SPAN + ((lane >> 2 & 3) * 2 + (i >> 2)) * V_COLUMNS + 4 * within + (lane & 2) + (i & 1);
}
