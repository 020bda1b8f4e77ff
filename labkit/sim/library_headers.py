"""The C++ library on the device: ``<limits>``, ``<tuple>``, ``<complex>``, ... and what of CUB and Thrust kernels use.

NVIDIA's libcu++ has these parts of the standard library under ``<cuda/std/...>`` in namespace cuda::std; here they go
by their usual names. CUB's and Thrust's own main headers bring in what only the host can use, which NVRTC refuses.
"""

from __future__ import annotations

STANDARD = (
    *("array", "bit", "bitset", "complex", "concepts", "functional", "initializer_list", "iterator", "limits"),
    *("numeric", "optional", "ratio", "span", "tuple", "type_traits", "utility", "variant"),
)
CUB_BLOCK = (
    *("adjacent_difference", "discontinuity", "exchange", "histogram", "load", "merge_sort", "radix_rank"),
    *("radix_sort", "reduce", "run_length_decode", "scan", "shuffle", "store"),
)
CUB_WARP = ("exchange", "load", "merge_sort", "reduce", "scan", "store")
CUB_THREAD = ("load", "operators", "reduce", "scan", "search", "store")
COMPLEX = (
    *("abs", "acos", "acosh", "arg", "asin", "asinh", "atan", "atanh", "complex", "conj", "cos", "cosh", "exp", "log"),
    *("log10", "norm", "polar", "pow", "proj", "sin", "sinh", "sqrt", "tan", "tanh"),
)


def _where_present(*names: str) -> str:
    """Include each header that this version of the libraries has."""
    return "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names)


def _standard(*names: str) -> str:
    """Headers of libcu++ whose names are to be found in namespace std."""
    return (
        "#pragma once\n"
        + "".join(f"#include <{name}>\n" for name in names)
        + "namespace std { using namespace cuda::std; }\n"
    )


def _thrust(header: str, names: tuple[str, ...]) -> str:
    """What libcu++ has under the same names as Thrust."""
    using = "".join(f"using cuda::std::{name};\n" for name in names)
    return f"#pragma once\n#include <cuda/std/{header}>\nnamespace thrust {{\n{using}}}\n"


_ALGORITHM = (
    "#pragma once\n#include <cuda/std/utility>\n"
    + _where_present("cuda/std/__algorithm_", "cuda/std/algorithm")
    + "namespace std { using namespace cuda::std; }\n"
)
_CUB = "#pragma once\n" + _where_present(
    *(f"cub/block/block_{name}.cuh" for name in CUB_BLOCK),
    *(f"cub/warp/warp_{name}.cuh" for name in CUB_WARP),
    *(f"cub/thread/thread_{name}.cuh" for name in CUB_THREAD),
)
# Where CUB sees a version of Thrust, its iterators want Thrust's as well, and those NVRTC refuses.
_THRUST_VERSION = "#pragma once\n#define THRUST_VERSION 0\n"

LIBRARY_HEADERS = {
    **{name: _standard(f"cuda/std/{name}") for name in STANDARD},
    "algorithm": _ALGORITHM,
    "cub/cub.cuh": _CUB,
    "thrust/complex.h": _thrust("complex", COMPLEX),
    "thrust/pair.h": _thrust("utility", ("make_pair", "pair")),
    "thrust/swap.h": _thrust("utility", ("swap",)),
    "thrust/tuple.h": _thrust("tuple", ("get", "make_tuple", "tie", "tuple")),
    "thrust/version.h": _THRUST_VERSION,
}
"""Name as included -> content."""
