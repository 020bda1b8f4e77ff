// The first half of the wide rung: products of queries and a tile of 32 keys, exact but for fp32 sums.
//
// HEAD_DIM / 16 lanes share a key, 16 elements each. Their sums are brought together while they are halved in number,
// so that in the end lane i has the products of key i. At step s of four, lane l of a quad takes key s ^ l: loads are
// less tidy then, but what a lane keeps always comes first, and two selects for each shuffle are saved.
// Short sums in half precision would save a third of the instructions, but a few channels of real keys are much larger
// than others, and round away what the others say. So fp16 keys are multiplied in fp32, two at a time; quantized ones
// as integers, four bytes to an instruction (dp4a): a query is brought to 16 bits, as q = step (256 high + low) with a
// step for every 64 elements, and its sums are exact.
#pragma once

#include "attention_decode/slice.cuh"
#include "common/reduce.cuh"

using Keys = PagedStore<K_BITS, HEAD_DIM>;

constexpr int TILE = WARP;                                  // tokens
constexpr int K_LANES = HEAD_DIM / 16;                      // lanes that share a key
constexpr int STEPS = K_LANES;                              // in which a warp loads the keys of a tile
constexpr int QUAD = 4;                                     // lanes that take four keys each in an order of its own
constexpr int K_AHEAD = STEPS < K_STEPS_AHEAD ? STEPS : K_STEPS_AHEAD;  // steps whose keys are on their way
constexpr int K_ROW = HEAD_DIM * K_BITS / 8;                // bytes of a token
constexpr int PAIRS = HEAD_DIM / PAIR_SPAN;
constexpr int PAIR_LANES = PAIR_SPAN / 16;                  // lanes whose elements have one pair
constexpr int PAIR_LOADS = K_BITS == 4 ? STEPS / PAIR_LANES : 1;
constexpr float Q_LARGEST = 32512.0f;                       // 256 * 127
// Keys of which a lane's sums are brought together before they become floats with the scale that they have in common.
constexpr int EXACT = K_BITS == 16 ? 2 : PAIR_LANES;

// Where the lane's part of a tile's keys begins: those of its group, one a step.
struct KeyPart {
  const char* values;
  const half2* pairs;  // of 4 bits

  __device__ __forceinline__ KeyPart(const Keys& keys, long long place) {
    const int lane = threadIdx.x % WARP, part = lane % K_LANES;
    const long long first = place + lane / K_LANES * STEPS;
    values = keys.at<char>(first, (K_BITS == 16 ? 8 : 16) * part);
    if constexpr (K_BITS == 4) {
      pairs = reinterpret_cast<const half2*>(keys.params) + (first + part % PAIR_LANES) * PAIRS + part / PAIR_LANES;
    }
  }
};

// A lane's 16 elements of a key: 32, 16 or 8 bytes. In fp16 they are two stretches of eight, half a head apart, so that
// the lanes of a token read side by side. Behind the last token there may be anything: it is not looked at.
struct Key {
  unsigned words[K_BITS / 2];

  __device__ __forceinline__ void load(const KeyPart& part, int step) {
    const int own = threadIdx.x % QUAD;
    const char* from = part.values + (step / QUAD * QUAD + (step % QUAD ^ own)) * K_ROW;
    if constexpr (K_BITS == 16) {
      reinterpret_cast<uint4*>(words)[0] = __ldg(reinterpret_cast<const uint4*>(from));
      reinterpret_cast<uint4*>(words)[1] = __ldg(reinterpret_cast<const uint4*>(from + K_ROW / 2));
    } else if constexpr (K_BITS == 8) {
      *reinterpret_cast<uint4*>(words) = __ldg(reinterpret_cast<const uint4*>(from));
    } else {
      *reinterpret_cast<uint2*>(words) = __ldg(reinterpret_cast<const uint2*>(from));
    }
  }

  // Four elements as signed bytes. Of a word of nibbles: its even ones, which are elements 0, 4, 1, 5, then the others.
  __device__ __forceinline__ int bytes(int i) const {
    if constexpr (K_BITS == 8) return words[i];
    return words[i / 2] >> 4 * (i % 2) & 0x0f0f0f0fu;
  }
  __device__ __forceinline__ static int element(int i, int byte) {
    if constexpr (K_BITS == 8) return 4 * i + byte;
    return 8 * (i / 2) + 2 * (i % 2) + 4 * (byte % 2) + byte / 2;
  }
};

// What is on its way from memory.
struct KeysAhead {
  Key keys[K_AHEAD];
  half2 pairs[PAIR_LOADS];

  __device__ __forceinline__ explicit KeysAhead(const KeyPart& part) {
#pragma unroll
    for (int i = 0; i < K_AHEAD; i++) keys[i].load(part, i);
#pragma unroll
    for (int i = 0; i < PAIR_LOADS; i++) load_pair(part, i);
  }
  __device__ __forceinline__ void load_pair(const KeyPart& part, int i) {
    if constexpr (K_BITS == 4) pairs[i] = __ldg(part.pairs + i * PAIR_LANES * PAIRS);
  }
};

// The lane's elements of each query.
struct Queries {
  half2 elements[QUERIES][8];                   // of fp16 keys
  int high[QUERIES][4], low[QUERIES][4];        // of others: bytes, in the order of Key::bytes
  float step[QUERIES], sum[QUERIES];            // sum: over the elements that have a pair in common

  __device__ __forceinline__ void load(const half* q, const Slice& slice) {
    const int part = threadIdx.x % K_LANES;
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      const half* from = q + slice.place(min(j, slice.count - 1)) * HEAD_DIM;
      if constexpr (K_BITS == 16) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const half* first = from + i * (HEAD_DIM / 2) + 8 * part;
          reinterpret_cast<uint4*>(elements[j])[i] = *reinterpret_cast<const uint4*>(first);
        }
      } else {
        quantize(j, from + 16 * part);
      }
    }
  }

  __device__ __forceinline__ void quantize(int j, const half* from) {
    float largest = 0.0f, nothing = 0.0f;
    for (int i = 0; i < 16; i++) {
      const float x = __half2float(from[i]);
      largest = fmaxf(largest, fabsf(x));
      nothing += x * 0.0f;  // NaN where x is no finite number: a maximum passes that over
    }
#pragma unroll
    for (int distance = 1; distance < PAIR_LANES; distance *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
      nothing += __shfl_xor_sync(ALL_LANES, nothing, distance);
    }
    largest = fmaxf(largest, 1e-20f);
    step[j] = largest / Q_LARGEST + nothing;
    int total = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      unsigned upper = 0, lower = 0;
#pragma unroll
      for (int byte = 0; byte < 4; byte++) {
        const int whole = __float2int_rn(__half2float(from[Key::element(i, byte)]) * (Q_LARGEST / largest));
        const int above = (whole + 128) >> 8;
        upper |= (above & 255u) << 8 * byte;
        lower |= ((whole - 256 * above) & 255u) << 8 * byte;
        total += whole;
      }
      high[j][i] = upper, low[j][i] = lower;
    }
#pragma unroll
    for (int distance = 1; distance < PAIR_LANES; distance *= 2) {
      total += __shfl_xor_sync(ALL_LANES, total, distance);
    }
    sum[j] = static_cast<float>(total) * step[j];
  }

  // With one key, in units of step.
  __device__ __forceinline__ void multiply(const Key& key, int (&out)[QUERIES]) const {
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      int upper = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) upper = __dp4a(key.bytes(i), high[j][i], upper);
      out[j] = upper * 256;
#pragma unroll
      for (int i = 0; i < 4; i++) out[j] = __dp4a(key.bytes(i), low[j][i], out[j]);
    }
  }

  // With two keys: what is converted to fp32 serves both. (The compiler keeps queries as floats: with more than 6 there
  // are not enough registers for them.)
  __device__ __forceinline__ void multiply(const Key& a, const Key& b, float (&of_a)[QUERIES],
                                           float (&of_b)[QUERIES]) const {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float2 x = __half22float2(*reinterpret_cast<const half2*>(&a.words[i]));
      const float2 y = __half22float2(*reinterpret_cast<const half2*>(&b.words[i]));
#pragma unroll
      for (int j = 0; j < QUERIES; j++) {
        const float2 with = __half22float2(elements[j][i]);
        of_a[j] = fmaf(with.y, x.y, fmaf(with.x, x.x, i ? of_a[j] : 0.0f));
        of_b[j] = fmaf(with.y, y.y, fmaf(with.x, y.x, i ? of_b[j] : 0.0f));
      }
    }
  }
};

// Lanes that differ in bit ``distance`` add up: the upper one keeps the second set of sums, the lower one the first; in
// a quad, whose lanes have keys in an order of their own, both the first.
template <typename T>
__device__ __forceinline__ void halve(const T (&low)[QUERIES], const T (&high)[QUERIES], int distance,
                                      T (&out)[QUERIES]) {
  const bool upper = distance >= QUAD && threadIdx.x & distance;
#pragma unroll
  for (int j = 0; j < QUERIES; j++) {
    const T kept = upper ? high[j] : low[j], given = upper ? low[j] : high[j];
    out[j] = kept + __shfl_xor_sync(ALL_LANES, given, distance);
  }
}

// A key that was used makes room for a later one, in the end of the next tile.
template <int STEP>
__device__ __forceinline__ void refill(KeysAhead& ahead, const KeyPart& part, const KeyPart& next) {
  constexpr int LATER = STEP + K_AHEAD;
  ahead.keys[STEP % K_AHEAD].load(LATER < STEPS ? part : next, LATER % STEPS);
}

// Products with keys FIRST .. FIRST + COUNT - 1 of the lane's group, in units of step: a lane gets those of key FIRST +
// lane % COUNT, as the sum over the lanes that differ in lower bits.
template <int FIRST, int COUNT>
__device__ __forceinline__ void exact_products(const Queries& queries, const KeyPart& part, const KeyPart& next,
                                               KeysAhead& ahead, int (&out)[QUERIES]) {
  if constexpr (COUNT == 1) {
    queries.multiply(ahead.keys[FIRST % K_AHEAD], out);
    refill<FIRST>(ahead, part, next);
  } else {
    int low[QUERIES], high[QUERIES];
    exact_products<FIRST, COUNT / 2>(queries, part, next, ahead, low);
    exact_products<FIRST + COUNT / 2, COUNT / 2>(queries, part, next, ahead, high);
    halve(low, high, COUNT / 2, out);
  }
}

// The same as numbers, but for the scale of INT8 keys.
template <int FIRST, int COUNT>
__device__ __forceinline__ void products(const Queries& queries, const KeyPart& part, const KeyPart& next,
                                         KeysAhead& ahead, float (&out)[QUERIES]) {
  if constexpr (COUNT > EXACT || K_BITS == 16) {
    float low[QUERIES], high[QUERIES];
    if constexpr (COUNT == EXACT) {
      queries.multiply(ahead.keys[FIRST % K_AHEAD], ahead.keys[(FIRST + 1) % K_AHEAD], low, high);
      refill<FIRST>(ahead, part, next);
      refill<FIRST + 1>(ahead, part, next);
    } else {
      products<FIRST, COUNT / 2>(queries, part, next, ahead, low);
      products<FIRST + COUNT / 2, COUNT / 2>(queries, part, next, ahead, high);
    }
    halve(low, high, COUNT / 2, out);
  } else {
    int whole[QUERIES];
    exact_products<FIRST, COUNT>(queries, part, next, ahead, whole);
    float scale = 1.0f, bias = 0.0f;
    if constexpr (K_BITS == 4) {
      half2& pair = ahead.pairs[FIRST / PAIR_LANES];
      scale = __low2float(pair), bias = __high2float(pair);
      ahead.load_pair(next, FIRST / PAIR_LANES);
    }
#pragma unroll
    for (int j = 0; j < QUERIES; j++) {
      out[j] = static_cast<float>(whole[j]) * queries.step[j];
      if constexpr (K_BITS == 4) out[j] = fmaf(out[j], scale, bias * queries.sum[j]);
    }
  }
}
