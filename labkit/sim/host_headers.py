"""Headers that CUDA files include by habit and that NVRTC does not have: the host's C library, and host-only ones.

What kernels use of them is built into NVRTC (printf, assert, the math functions, size_t); what is not stands here. So a
file written for nvcc compiles as it is, once its host code is hidden behind ``#ifndef __CUDACC_RTC__``.
"""

from __future__ import annotations

from labkit.sim.library_headers import LIBRARY_HEADERS

MATH_FUNCTIONS = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh"),
    *("erf", "erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot"),
    *("ilogb", "isfinite", "isinf", "isnan", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2"),
    *("logb", "lrint", "lround", "modf", "nearbyint", "nextafter", "pow", "remainder", "rint", "round", "scalbn"),
    *("signbit", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc"),
)


def _with_std(content: str, names: tuple[str, ...]) -> str:
    """A C header as C++ includes it: its names are in namespace std as well."""
    return content + "namespace std {\n" + "".join(f"using ::{name};\n" for name in names) + "}\n"


_INTEGERS = """#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL
#define UINT64_MAX 18446744073709551615ULL
#define SIZE_MAX UINT64_MAX
"""
_INTEGER_NAMES = tuple(f"{sign}int{bits}_t" for sign in ("", "u") for bits in ("8", "16", "32", "64", "ptr"))
_LIMITS = """#pragma once
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX ((long)(~0UL >> 1))
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX (~0UL)
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ULL
"""
_FLOATS = """#pragma once
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
"""
_MATH = """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"""
_FORMATS = """#pragma once
#include <stdint.h>
#define PRId32 "d"
#define PRIi32 "i"
#define PRIu32 "u"
#define PRIx32 "x"
#define PRIX32 "X"
#define PRId64 "lld"
#define PRIi64 "lli"
#define PRIu64 "llu"
#define PRIx64 "llx"
#define PRIX64 "llX"
"""
_SIZES = """#pragma once
typedef decltype((char*)0 - (char*)0) ptrdiff_t;
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
"""
_NOTHING = "#pragma once\n"

C_HEADERS = {
    "stdint.h": _INTEGERS,
    "cstdint": _with_std(_INTEGERS, _INTEGER_NAMES),
    "inttypes.h": _FORMATS,
    "cinttypes": _FORMATS + "#include <cstdint>\n",
    "limits.h": _LIMITS,
    "climits": _LIMITS,
    "float.h": _FLOATS,
    "cfloat": _FLOATS,
    "math.h": _MATH,
    "cmath": _with_std(_MATH, MATH_FUNCTIONS),
    "stddef.h": _SIZES,
    "cstddef": _with_std(_SIZES, ("size_t", "ptrdiff_t")),
}

HOST_ONLY = (
    *("assert.h", "cassert", "cerrno", "cstdio", "cstdlib", "cstring", "ctime", "errno.h", "stdbool.h", "stdio.h"),
    *("stdlib.h", "string.h", "sys/time.h", "time.h", "unistd.h"),
    *("chrono", "condition_variable", "deque", "exception", "filesystem", "fstream", "future", "iomanip", "iostream"),
    *("istream", "list", "map", "memory", "mutex", "new", "ostream", "queue", "random", "set", "sstream", "stack"),
    *("stdexcept", "string", "string_view", "thread", "unordered_map", "unordered_set", "vector"),
    *("cuda_profiler_api.h", "cublas_v2.h", "curand.h", "cusparse.h", "cufft.h"),
    *(f"thrust/{name}.h" for name in ("copy", "count", "device_malloc", "device_ptr", "device_vector", "fill")),
    *(f"thrust/{name}.h" for name in ("for_each", "gather", "generate", "host_vector", "reduce", "scan", "scatter")),
    *(f"thrust/{name}.h" for name in ("sequence", "sort", "transform", "transform_reduce", "unique")),
)
"""Headers of libraries that device code cannot use: they are there, and empty."""

HOST_HEADERS = {**C_HEADERS, **LIBRARY_HEADERS, **dict.fromkeys(HOST_ONLY, _NOTHING)}
"""Name as included -> content."""
