// Escape times of the Mandelbrot set: every thread leaves its loop at its own time.
extern "C" __global__ void mandelbrot(unsigned short *image, int width, int height, float x0, float y0, float step, int limit) {
    int px = blockIdx.x * blockDim.x + threadIdx.x;
    int py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= width || py >= height) return;
    float cx = __fmaf_rn((float)px, step, x0), cy = __fmaf_rn((float)py, step, y0);
    float x = 0.0f, y = 0.0f;
    int n = 0;
    while (n < limit) {
        float xx = __fmul_rn(x, x), yy = __fmul_rn(y, y);
        if (__fadd_rn(xx, yy) > 4.0f) break;
        y = __fmaf_rn(__fmul_rn(2.0f, x), y, cy);
        x = __fadd_rn(__fsub_rn(xx, yy), cx);
        n++;
    }
    image[py * width + px] = (unsigned short)n;
}
