// C = alpha A B + beta C with double-buffered shared tiles; each thread computes 4 x 4.
#define BM 32
#define BN 32
#define BK 8

extern "C" __global__ void __launch_bounds__(64)
sgemm(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    __shared__ float As[2][BK][BM];
    __shared__ __align__(16) float Bs[2][BK][BN];
    int t = threadIdx.x, row = (t / 8) * 4, col = (t % 8) * 4;
    int a_row = t / 2, a_col = (t % 2) * 4, b_row = t / 8, b_col = (t % 8) * 4;
    A += blockIdx.y * BM * K;
    B += blockIdx.x * BN;
    C += blockIdx.y * BM * N + blockIdx.x * BN;
    float4 a = *reinterpret_cast<const float4 *>(&A[a_row * K + a_col]);
    float4 b = *reinterpret_cast<const float4 *>(&B[b_row * N + b_col]);
    float acc[4][4] = {};
    int stage = 0;
    for (int k = 0; k < K; k += BK) {
        As[stage][a_col + 0][a_row] = a.x;
        As[stage][a_col + 1][a_row] = a.y;
        As[stage][a_col + 2][a_row] = a.z;
        As[stage][a_col + 3][a_row] = a.w;
        *reinterpret_cast<float4 *>(&Bs[stage][b_row][b_col]) = b;
        __syncthreads();
        if (k + BK < K) {
            a = *reinterpret_cast<const float4 *>(&A[a_row * K + k + BK + a_col]);
            b = *reinterpret_cast<const float4 *>(&B[(k + BK + b_row) * N + b_col]);
        }
#pragma unroll
        for (int i = 0; i < BK; i++) {
            float ra[4], rb[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                ra[j] = As[stage][i][row + j];
                rb[j] = Bs[stage][i][col + j];
            }
#pragma unroll
            for (int y = 0; y < 4; y++)
#pragma unroll
                for (int x = 0; x < 4; x++) acc[y][x] += ra[y] * rb[x];
        }
        stage ^= 1;
    }
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++) {
            float *c = &C[(row + y) * N + col + x];
            *c = alpha * acc[y][x] + beta * *c;
        }
}
