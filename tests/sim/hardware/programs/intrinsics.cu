// Intrinsics on integers, bytes in words, and halves.
#include <cuda_fp16.h>
#define PUT(value) out[row++ * n + i] = (unsigned int)(value);
#define FLOAT(value) { float v = value; PUT(v == v ? __float_as_uint(v) : 0x7fffffffu) }  // any NaN as one

__device__ unsigned int bits(half v) { return __hisnan(v) ? 0x7fff : __half_as_ushort(v); }

extern "C" __global__ void integers(const unsigned int *x, const unsigned int *y, unsigned int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = 0;
    if (i >= n) return;
    unsigned int a = x[i], b = y[i];
    PUT(__popc(a)) PUT(__clz(a)) PUT(__brev(a)) PUT(__ffs(a)) PUT(__byte_perm(a, b, 0x6170))
    PUT(__funnelshift_l(a, b, b)) PUT(__funnelshift_rc(a, b, b & 63)) PUT(__umulhi(a, b)) PUT(__mulhi((int)a, (int)b))
    PUT(__umul24(a, b)) PUT(__mul24(a, b)) PUT(__usad(a, b, 7u)) PUT(__sad((int)a, (int)b, 7u))
    PUT(__dp4a((int)a, (int)b, 5)) PUT(__dp4a(a, b, 5u)) PUT(__dp2a_lo(a, b, 1u)) PUT(__hadd((int)a, (int)b))
    PUT(__rhadd((int)a, (int)b)) PUT(__uhadd(a, b)) PUT(__vadd4(a, b)) PUT(__vsub4(a, b)) PUT(__vaddus4(a, b))
    PUT(__vaddss4(a, b)) PUT(__vabsdiffu4(a, b)) PUT(__vabsdiffs4(a, b)) PUT(__vavgu4(a, b)) PUT(__vmaxs4(a, b))
    PUT(__vminu4(a, b)) PUT(__vcmpgtu4(a, b)) PUT(__vcmpeq4(a, b)) PUT(__vsadu4(a, b)) PUT(__vadd2(a, b))
    PUT(__vsubss2(a, b)) PUT(__vmaxu2(a, b)) PUT(__vneg4(a)) PUT(__vabs2(a)) PUT(__vseteq2(a, b)) PUT(__vsads2(a, b))
    unsigned long long wide = ((unsigned long long)a << 32) | b;
    PUT(__popcll(wide)) PUT(__clzll(wide)) PUT(__brevll(wide) >> 7) PUT(__ffsll(wide)) PUT(__umul64hi(wide, ~wide) >> 9)
    PUT(wide / (b | 1u)) PUT(wide % (b | 1u)) PUT((long long)wide / ((int)a | 1)) PUT((int)a % ((int)b | 1))
    PUT(abs((int)a)) PUT(min((int)a, (int)b)) PUT(max(a, b)) PUT((short)a * (short)b) PUT((signed char)a >> 2)
}

extern "C" __global__ void conversions(const unsigned int *x, unsigned int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = 0;
    if (i >= n) return;
    unsigned int a = x[i];
    float f = __uint_as_float(a);
    PUT(__float2int_rn(f)) PUT(__float2int_ru(f)) PUT(__float2uint_rd(f)) PUT(__float2ll_rz(f)) PUT((int)f)
    FLOAT(__int2float_rz((int)a)) FLOAT(__uint2float_ru(a))
    FLOAT(__ll2float_rn((long long)a * -77777LL)) FLOAT(__fadd_rz(f, 1.0f))
    FLOAT(__fmaf_ru(f, f, 0.5f)) FLOAT(__saturatef(f))
    PUT(__double2hiint((double)f)) PUT(__double2loint((double)f * 1.1)) PUT(__float2half_rd(f) > __half(0.0f))
    PUT(bits(__float2half_rn(f))) PUT(bits(__float2half_ru(f)))
    PUT(bits(__int2half_rn((int)a))) PUT(bits(__uint2half_rz(a & 0xffff)))
    PUT(__half2int_rn(__ushort_as_half(a))) PUT(__half2uint_rz(__ushort_as_half(a)))
    FLOAT(__half2float(__ushort_as_half(a))) PUT(signbit(f)) PUT(isnan(f)) PUT(isinf(f)) PUT(ilogbf(f))
}

extern "C" __global__ void halves(const unsigned int *x, const unsigned int *y, unsigned int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = 0;
    if (i >= n) return;
    unsigned int raw_a = x[i], raw_b = y[i];
    half2 a = *(half2 *)&raw_a, b = *(half2 *)&raw_b;
    half p = __low2half(a), q = __high2half(b);
#define PAIR(value) { half2 v = value; PUT(bits(__low2half(v)) | bits(__high2half(v)) << 16) }
#define HALF(value) { half v = value; PUT(bits(v)) }
    PAIR(__hadd2_rn(a, b)) PAIR(__hsub2_rn(a, b)) PAIR(__hmul2_rn(a, b)) PAIR(__hfma2(a, b, a)) PAIR(__hadd2_sat(a, b))
    PAIR(__hfma2_sat(a, b, b)) PAIR(__hneg2(a)) PAIR(__habs2(a)) PAIR(__hmax2(a, b)) PAIR(__hmin2(a, b))
    PAIR(__heq2(a, b)) PAIR(__hltu2(a, b)) PAIR(__lowhigh2highlow(a)) PAIR(__lows2half2(a, b)) PAIR(__hisnan2(a))
    HALF(__hadd_rn(p, q)) HALF(__hmul_rn(p, q)) HALF(__hfma(p, q, p)) HALF(__hsub_sat(p, q)) HALF(hfloor(p)) HALF(hceil(p))
    HALF(hrint(p)) HALF(htrunc(q)) HALF(__hmax(p, q)) HALF(__hmin_nan(p, q)) PUT(__hlt(p, q)) PUT(__hgeu(p, q))
    PUT(__hisinf(p)) PUT(__hbne2(a, b)) HALF(__hdiv(p, q)) HALF(hsqrt(p))
}
