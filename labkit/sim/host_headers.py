"""Headers of the host's C library that CUDA files include by habit and that NVRTC does not have.

What kernels use of them is built into NVRTC (printf, assert, the math functions, size_t); what is not stands here. So a
file written for nvcc compiles as it is, once its host code is hidden behind ``#ifndef __CUDACC_RTC__``.
"""

from __future__ import annotations

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
"""
_LIMITS = """#pragma once
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ULL
"""
_FLOATS = """#pragma once
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
#endif
"""
_NOTHING = "#pragma once\n"

HOST_HEADERS = {
    "stdint.h": _INTEGERS,
    "cstdint": _INTEGERS,
    "limits.h": _LIMITS,
    "climits": _LIMITS,
    "float.h": _FLOATS,
    "cfloat": _FLOATS,
    "math.h": _MATH,
    "cmath": _MATH,
    **dict.fromkeys(
        ("stdio.h", "cstdio", "stdlib.h", "cstdlib", "assert.h", "cassert", "string.h", "cstring"), _NOTHING
    ),
    **dict.fromkeys(("stddef.h", "cstddef", "iostream", "vector", "string", "algorithm", "chrono", "random"), _NOTHING),
    **dict.fromkeys(("stdbool.h", "time.h", "ctime", "iomanip", "memory", "numeric", "functional"), _NOTHING),
}
"""Name as included -> content. Those of host-only libraries are empty: device code cannot use them anyway."""
