// The weights of a packed word as halves, each rounded once: the values by which every INT4 kernel multiplies.
#pragma once

#include "common/quant.cuh"

// scale_zero: (q - z) s, the difference exact. scale_bias: q s + b in one fused step. pair: (s, z) or (s, b).
template <bool SCALE_BIAS_FORM>
__device__ __forceinline__ void dequantize_word(unsigned word, half2 pair, half2 (&out)[4]) {
  const half2 scale = __low2half2(pair), bias = __high2half2(pair);
  unpack_word(word, Offsets(SCALE_BIAS_FORM ? __float2half(0.0f) : __high2half(pair)), out);
#pragma unroll
  for (int i = 0; i < 4; i++) out[i] = SCALE_BIAS_FORM ? __hfma2(out[i], scale, bias) : __hmul2(out[i], scale);
}
