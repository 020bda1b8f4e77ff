// The mathematical library as CUDA programs use it: every function over the same arguments.
#define ONE(f) out[row++ * n + i] = f(a);
#define TWO(f) out[row++ * n + i] = f(a, b);

extern "C" __global__ void single_precision(const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = 0;
    if (i >= n) return;
    float a = x[i], b = y[i];
    ONE(expf) ONE(exp2f) ONE(exp10f) ONE(expm1f) ONE(logf) ONE(log2f) ONE(log10f) ONE(log1pf)
    ONE(sinf) ONE(cosf) ONE(tanf) ONE(asinf) ONE(acosf) ONE(atanf) ONE(sinhf) ONE(coshf) ONE(tanhf)
    ONE(erff) ONE(erfcf) ONE(cbrtf) ONE(rsqrtf) ONE(sqrtf) ONE(tgammaf) ONE(lgammaf) ONE(normcdff)
    ONE(floorf) ONE(ceilf) ONE(rintf) ONE(truncf) ONE(roundf) ONE(fabsf) ONE(logbf) ONE(sinpif)
    TWO(powf) TWO(atan2f) TWO(fmodf) TWO(remainderf) TWO(hypotf) TWO(nextafterf) TWO(fminf) TWO(fmaxf) TWO(fdimf)
    ONE(__expf) ONE(__logf) ONE(__frcp_rn) ONE(__fsqrt_rz) TWO(__fdividef) TWO(__fdiv_ru) TWO(__powf)
}

extern "C" __global__ void double_precision(const double *x, const double *y, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = 0;
    if (i >= n) return;
    double a = x[i], b = y[i];
    ONE(exp) ONE(log) ONE(sin) ONE(cos) ONE(tanh) ONE(erf) ONE(cbrt) ONE(rsqrt) ONE(sqrt) ONE(floor) ONE(rint)
    TWO(pow) TWO(atan2) TWO(fmod) TWO(hypot) TWO(copysign) TWO(fmin)
    out[row++ * n + i] = a / b;
    int exponent;
    out[row++ * n + i] = frexp(a, &exponent);
    out[row++ * n + i] = exponent;
}
