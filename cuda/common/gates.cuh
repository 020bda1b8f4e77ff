// The gates of Gated DeltaNet, as exact as fp32 allows and without overflow for any x.
#pragma once

// log(1 + e^x): e^x alone would overflow for a large x, and 1 + e^x lose a small e^x.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
