"""PTX text to a Module whose kernels run on the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from labkit.errors import PtxError
from labkit.sim.codegen.kernel import build_kernel
from labkit.sim.parse import ParsedModule, parse
from labkit.sim.program import Kernel, Module


@lru_cache(maxsize=64)
def load_ptx(ptx: str, exact_fma: bool = True, single_step: bool = False) -> Module:
    """Read a PTX module; each kernel is made runnable when it is first asked for.

    exact_fma: round fma.rn.f32 and fma.rn.f64 once, as hardware does; else multiply and add, which is faster.
    single_step: every instruction becomes a block of its own and no result is left out, for stepping.
    The same text gives the same Module. Raises PtxError, naming line and instruction, for what it cannot read.
    """
    parsed = parse(ptx)
    variables = {name: variable for name, variable in parsed.variables.items() if variable.space != "shared"}
    module = Module(ptx, parsed.target, {}, variables)
    module.kernels = _Kernels(parsed, module, exact_fma, single_step)
    return module


class _Kernels(Mapping[str, Kernel]):
    """Kernels by name, built on first use: a module may hold many specialisations of which a run needs one."""

    def __init__(self, parsed: ParsedModule, module: Module, exact_fma: bool, single_step: bool) -> None:
        self._parsed = parsed
        self._module = module
        self._settings = exact_fma, single_step
        self._built: dict[str, Kernel] = {}
        self._names = [f.name for f in parsed.functions.values() if f.is_entry and f.body is not None]

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._names:
            raise PtxError(f"There is no kernel '{name}'.", cure=f"The module has: {', '.join(self._names)}.")
        if name not in self._built:
            function = self._parsed.functions[name]
            self._built[name] = build_kernel(self._parsed, function, self._module, *self._settings)
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
