// Kernels whose memory traffic is counted by a hardware profiler.
#define TILE 32

extern "C" __global__ void copy_strided(const float *in, float *out, int stride) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i * stride];
}

extern "C" __global__ void copy_float4(const float4 *in, float4 *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void copy_offset(const float *in, float *out, int offset) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i + offset];
}

extern "C" __global__ void transpose_naive(const float *in, float *out, int n) {
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) out[x * n + y + j] = in[(y + j) * n + x];
}

extern "C" __global__ void transpose_tile(const float *in, float *out, int n) {
    __shared__ float tile[TILE][TILE];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void transpose_padded(const float *in, float *out, int n) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void gather(const float *in, const int *index, float *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[index[i]];
}

extern "C" __global__ void shared_stride(float *out, int stride) {
    __shared__ float cells[4096];
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) cells[i] = i;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = cells[(threadIdx.x * stride) & 4095];
}

extern "C" __global__ void shared_vector(float4 *out) {
    __shared__ float4 cells[256];
    cells[threadIdx.x] = make_float4(threadIdx.x, 1.0f, 2.0f, 3.0f);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = cells[255 - threadIdx.x];
}

extern "C" __global__ void reduce_shared(const float *in, float *out) {
    __shared__ float cells[256];
    cells[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
#pragma unroll 1  // else the assembler joins the two loads of the first step
    for (int stride = 1; stride < 256; stride *= 2) {
        __syncthreads();
        int i = 2 * stride * threadIdx.x;
        if (i < 256) cells[i] += cells[i + stride];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = cells[0];
}

extern "C" __global__ void copy_bytes(const unsigned char *in, unsigned char *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i];
}

extern "C" __global__ void copy_structs(const float *in, float *out, int n) {  // an array of 12-byte structures
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        for (int j = 0; j < 3; j++) out[3 * i + j] = in[3 * i + j];
}

extern "C" __global__ void shared_double(double *out, int stride) {
    __shared__ double cells[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) cells[i] = i;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = cells[(threadIdx.x * stride) & 2047];
}

extern "C" __global__ void shared_wide(float4 *out, int stride) {
    __shared__ float4 cells[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) cells[i] = make_float4(i, i, i, i);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = cells[(threadIdx.x * stride) & 1023];
}

extern "C" __global__ void shared_gather(const int *index, float *out) {
    __shared__ float cells[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) cells[i] = i;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = cells[index[i] & 1023];
}

extern "C" __global__ void transpose_half(const unsigned short *in, unsigned short *out, int n) {
    __shared__ unsigned short tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x, y = blockIdx.x * TILE + threadIdx.y;
    for (int j = 0; j < TILE; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void histogram_shared(const unsigned char *in, unsigned int *out, int n) {
    __shared__ unsigned int bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i]], 1u);
    __syncthreads();
    atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}
