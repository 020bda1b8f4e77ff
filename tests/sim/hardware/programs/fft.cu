// Complex FFT of 256 points in shared memory, one transform a block (decimation in time, radix 2).
#define N 256

extern "C" __global__ void fft(const float2 *in, float2 *out) {
    __shared__ float2 s[N];
    int t = threadIdx.x;  // 0 .. N / 2 - 1
    in += blockIdx.x * N;
    out += blockIdx.x * N;
    s[__brev(t) >> 24] = in[t];
    s[__brev(t + N / 2) >> 24] = in[t + N / 2];
    for (int half = 1; half < N; half *= 2) {
        __syncthreads();
        int k = t & (half - 1), i = 2 * (t - k) + k, j = i + half;
        float c, d;
        sincospif(-(float)k / half, &d, &c);
        float2 a = s[i], b = s[j];
        float2 turned = make_float2(b.x * c - b.y * d, b.x * d + b.y * c);
        s[i] = make_float2(a.x + turned.x, a.y + turned.y);
        s[j] = make_float2(a.x - turned.x, a.y - turned.y);
    }
    __syncthreads();
    out[t] = s[t];
    out[t + N / 2] = s[t + N / 2];
}
