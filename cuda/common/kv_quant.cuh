// Writing keys and values into their pages, a warp for one head of one token: 16, 8 or 4 bits an element, by the rules
// of labkit/quant/kv.py, bit for bit. Layouts: labkit/ops/paged_kv.py.
#pragma once

#include "common/reduce.cuh"
#include "common/vector.cuh"

constexpr int TOKENS_OF_PAGE = 64;
constexpr int INT4_GROUP = 64;  // elements of a head that share a scale and a bias
constexpr float FINEST_STEP = 1.0f / 131072.0f, LARGEST_HALF = 65504.0f;

__device__ __forceinline__ int lane_index() { return threadIdx.x % WARP; }

// The N elements of a head that belong to a lane lie next to one another, and so do the lanes'.
template <int N, int WIDTH>
__device__ __forceinline__ void load_head(const half* head, float (&x)[N]) {
  static_assert(N % WIDTH == 0, "Loads divide a lane's elements");
#pragma unroll
  for (int i = 0; i < N; i += WIDTH) load(head + lane_index() * N + i, *reinterpret_cast<float(*)[WIDTH]>(&x[i]));
}

template <int N>
__device__ __forceinline__ void store_head(half* head, const float (&x)[N]) {
  store(head + lane_index() * N, x);
}

// Where one head of one token lies in a store of pages, or would, with PARAMS halves of scales beside its elements.
template <int BITS, int DIM>
struct PageRow {
  static_assert(BITS == 16 || BITS == 8 || BITS == 4, "An element has 16, 8 or 4 bits");
  static constexpr int BYTES = DIM * BITS / 8;
  static constexpr int PARAMS = BITS == 16 ? 0 : BITS == 8 ? 1 : 2 * (DIM / INT4_GROUP);
  char* values;
  half* params;

  // row: of all pages, heads and slots together
  __device__ __forceinline__ PageRow(void* all_values, half* all_params, long long row)
      : values(static_cast<char*>(all_values) + row * BYTES), params(all_params + row * PARAMS) {}

  __device__ __forceinline__ half* halves() const { return reinterpret_cast<half*>(values); }
};

template <int DIM, int WIDTH>
__device__ __forceinline__ void copy_row(half* to, const half* from) {
  for (int i = lane_index() * WIDTH; i < DIM; i += WARP * WIDTH) copy<WIDTH>(to + i, from + i);
}

// How many tokens of this step lie in the page of ``token``, itself and those behind it: they are neighbours.
__device__ __forceinline__ int tokens_in_page(const long long* page, int token, int tokens) {
  int count = 0;
#pragma unroll
  for (int first = 0; first < TOKENS_OF_PAGE; first += WARP) {
    const int other = token + first + lane_index();
    count += __popc(__ballot_sync(ALL_LANES, other < tokens && page[other] == page[token]));
  }
  return count;
}

// Zeros behind the tokens that this step writes to a fresh page; row is that of the first slot. What an earlier owner
// left there may be a NaN. WIDTH halves go at a time.
template <int WIDTH, int BITS, int DIM>
__device__ __forceinline__ void clear_behind(const PageRow<BITS, DIM>& row, int written) {
  constexpr int HALVES = PageRow<BITS, DIM>::BYTES / 2, PARAMS = PageRow<BITS, DIM>::PARAMS;
  for (int i = written * HALVES + lane_index() * WIDTH; i < TOKENS_OF_PAGE * HALVES; i += WARP * WIDTH) {
    clear<WIDTH>(row.halves() + i);
  }
  for (int i = written * PARAMS + lane_index(); i < TOKENS_OF_PAGE * PARAMS; i += WARP) row.params[i] = __half();
}

// A step between codes as it is stored: a half that is neither too fine to be exact nor so large, rounded up, that the
// last code passes the largest half.
template <int MOST>
__device__ __forceinline__ half stored_step(float step, float low) {
  const half nearest = __float2half_rn(fminf(fmaxf(step, FINEST_STEP), LARGEST_HALF));
  const bool beyond = __fadd_rn(low, MOST * __half2float(nearest)) > LARGEST_HALF;
  return __ushort_as_half(__half_as_ushort(nearest) - beyond);
}

// The nearest code, a tie to the even one; 0 for NaN, as the conversion gives it. Division and difference are those of
// IEEE 754: an approximation would now and then choose the neighbour.
__device__ __forceinline__ int code(float x, float step, int least, int most) {
  return max(least, min(most, __float2int_rn(__fdiv_rn(x, step))));
}

template <int N>
__device__ __forceinline__ bool any_nan(const float (&x)[N]) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < N; i++) found |= isnan(x[i]);
  return found;
}

__device__ __forceinline__ half half_nan() { return __ushort_as_half(0x7fff); }

// x ~ q s with one s for the head; a NaN makes s NaN, which the maximum alone would pass over.
template <int N, int DIM>
__device__ __forceinline__ void quantize(const float (&x)[N], const PageRow<8, DIM>& row) {
  float peak = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) peak = fmaxf(peak, fabsf(x[i]));
  peak = warp_max(peak);
  const half scale = __any_sync(ALL_LANES, any_nan(x)) ? half_nan() : stored_step<127>(__fdiv_rn(peak, 127.0f), 0.0f);
  typename Moved<N>::type bytes;
#pragma unroll
  for (int i = 0; i < N; i++) {
    reinterpret_cast<signed char*>(&bytes)[i] = static_cast<signed char>(code(x[i], __half2float(scale), -127, 127));
  }
  reinterpret_cast<typename Moved<N>::type*>(row.values)[lane_index()] = bytes;
  if (lane_index() == 0) row.params[0] = scale;
}

// x ~ q s + b with (s, b) for 64 elements, which LANES lanes hold. b is their minimum, rounded down.
template <int N, int DIM>
__device__ __forceinline__ void quantize(const float (&x)[N], const PageRow<4, DIM>& row) {
  constexpr int LANES = INT4_GROUP / N, WORD_LANES = 8 / N;
  const int lane = lane_index();
  float low = x[0], high = x[0];
#pragma unroll
  for (int i = 1; i < N; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) {
    low = fminf(low, __shfl_xor_sync(ALL_LANES, low, distance));
    high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, distance));
  }
  const unsigned group = (ALL_LANES >> (WARP - LANES)) << (lane / LANES * LANES);  // the lanes of these 64 elements
  const bool nan = __ballot_sync(ALL_LANES, any_nan(x)) & group;
  const half bias = nan ? half_nan() : __float2half_rd(fminf(fmaxf(low, -LARGEST_HALF), LARGEST_HALF));
  const float reach = __fsub_rn(high, __half2float(bias));
  const half scale = nan ? half_nan() : stored_step<15>(__fdiv_rn(reach, 15.0f), __half2float(bias));
  unsigned word = 0;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int q = code(__fsub_rn(x[i], __half2float(bias)), __half2float(scale), 0, 15);
    const int element = lane % WORD_LANES * N + i;  // of the word: even ones in the low half, odd ones in the high half
    word |= static_cast<unsigned>(q) << (2 * (element & ~1) + 16 * (i & 1));
  }
#pragma unroll
  for (int distance = 1; distance < WORD_LANES; distance *= 2) word |= __shfl_xor_sync(ALL_LANES, word, distance);
  if (lane % WORD_LANES == 0) reinterpret_cast<unsigned*>(row.values)[lane / WORD_LANES] = word;
  if (lane % LANES == 0) reinterpret_cast<half2*>(row.params)[lane / LANES] = __halves2half2(scale, bias);
}
