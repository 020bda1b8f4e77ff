"""A flat kernel to blocks that run: each becomes one Python function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.sim.arith import NAMESPACE
from labkit.sim.cfg import RawBlock, build_blocks
from labkit.sim.codegen import warp
from labkit.sim.codegen.emitter import Emitter, unknown
from labkit.sim.codegen.schedule import grouped
from labkit.sim.codegen.scope import Scope
from labkit.sim.inline import FlatBody, flatten
from labkit.sim.liveness import Flow, analyse
from labkit.sim.parse import Function, ParsedModule
from labkit.sim.program import Block, Instruction, Kernel, Module, Variable
from labkit.sim.propagate import propagate
from labkit.sim.registers import CARRY, NAME, destinations, sources

ENDS_OF_BLOCKS = ("bra", "ret", "exit")
DYNAMIC_ALIGNMENT = 16  # bytes; where dynamic shared memory starts


def build_kernel(
    parsed: ParsedModule, function: Function, module: Module, exact_fma: bool, single_step: bool
) -> Kernel:
    """Everything from the kernel's text to runnable blocks. Raises PtxError for what the simulator does not know."""
    flat = flatten(parsed, function)
    flat.registers[CARRY] = "pred"
    shared, shared_bytes = _laid_out(_shared_variables(parsed, flat))
    local, local_bytes = _laid_out([v for v in flat.variables.values() if v.space == "local"])
    parameters = {variable.name: variable for variable in function.parameters}
    if not single_step:
        propagate(flat, shared | local | parameters)
    scope = Scope(flat.registers, parsed.variables | shared | local | parameters, exact_fma)
    raw_blocks = build_blocks(flat, single_step)
    flows = analyse(raw_blocks, flat.registers, keep_all=single_step)
    blocks, python = _compiled(function.name, raw_blocks, flows, scope)
    return Kernel(
        name=function.name,
        parameters=function.parameters,
        registers=flat.registers,
        shared=shared,
        shared_bytes=shared_bytes,
        local=local,
        local_bytes=local_bytes,
        sites=flat.sites,
        blocks=blocks,
        module=module,
        max_threads=function.max_threads,
        python=python,
    )


def _shared_variables(parsed: ParsedModule, flat: FlatBody) -> list[Variable]:
    """The kernel's own shared variables and those of the module that it mentions; unsized ones last."""
    mentioned = {
        name
        for item in flat.items
        if isinstance(item, Instruction)
        for operand in item.operands
        for name in NAME.findall(operand)
    }
    own = [variable for variable in flat.variables.values() if variable.space == "shared"]
    of_module = [v for v in parsed.variables.values() if v.space == "shared" and v.name in mentioned]
    return sorted(own + of_module, key=lambda variable: variable.size == 0)


def _laid_out(variables: list[Variable]) -> tuple[dict[str, Variable], int]:
    """Variables with their offsets, and the bytes they take in all."""
    placed: dict[str, Variable] = {}
    end = 0
    for variable in variables:
        start = -(-end // variable.align) * variable.align
        if variable.size == 0:
            start = -(-end // DYNAMIC_ALIGNMENT) * DYNAMIC_ALIGNMENT
        placed[variable.name] = replace(variable, offset=start)
        end = start + variable.size
    return placed, end


def _compiled(name: str, raw_blocks: list[RawBlock], flows: list[Flow], scope: Scope) -> tuple[list[Block], str]:
    """Generate and compile the functions of all blocks in one go."""
    texts = [
        _function_text(index, raw, flow, scope) for index, (raw, flow) in enumerate(zip(raw_blocks, flows, strict=True))
    ]
    python = "\n\n".join(texts)
    namespace: dict[str, Any] = NAMESPACE | scope.constants.arrays
    exec(compile(python, f"<kernel {name}>", "exec"), namespace)
    blocks = []
    for index, (raw, flow) in enumerate(zip(raw_blocks, flows, strict=True)):
        run: Callable[..., tuple[Any, ...]] = namespace[f"block_{index}"]
        classes = Counter(instruction.site.kind for instruction in raw.instructions)
        inputs, outputs = tuple(flow.inputs), tuple(flow.outputs)
        blocks.append(
            Block(index, raw.instructions, inputs, outputs, raw.successors, run, raw.sync, raw.barrier, classes)
        )
    return blocks, python


def _function_text(index: int, raw: RawBlock, flow: Flow, scope: Scope) -> str:
    emitter = Emitter(scope)
    body = [i for i in flow.kept if i.opcode not in ENDS_OF_BLOCKS and not (raw.barrier and i is raw.instructions[-1])]
    live_after = _live_after(body, flow, raw, scope)
    for group in grouped(body, scope.registers):
        emitter.live_after = live_after[group[0].site.index]
        if group[0].opcode == "mma":
            _emit_mma(emitter, group)
        else:
            emitter.emit(group[0])
    parameters = ", ".join(["threads", *map(scope.python_name, flow.inputs)])
    last = raw.instructions[-1]
    condition = "None"
    if last.opcode in ENDS_OF_BLOCKS and last.predicate is not None:
        condition = emitter.condition(last.predicate, last.negated)
    for register in flow.outputs:
        emitter.write_bits(register)
    results = ", ".join([*map(scope.python_name, flow.outputs), condition])
    lines = [*emitter.lines, f"return ({results},)"]
    return f"def block_{index}({parameters}):\n" + "\n".join(f"    {line}" for line in lines)


def _live_after(body: list[Instruction], flow: Flow, raw: RawBlock, scope: Scope) -> dict[int, set[str]]:
    """Registers still read after each instruction, by the index of its site."""
    live = set(flow.outputs)
    live.update(sources(raw.instructions[-1], scope.registers))
    after: dict[int, set[str]] = {}
    for instruction in reversed(body):
        after[instruction.site.index] = set(live)
        live.difference_update(destinations(instruction, scope.registers))
        live.update(sources(instruction, scope.registers))
    return after


def _emit_mma(emitter: Emitter, group: list[Instruction]) -> None:
    try:
        warp.emit_mma(emitter, group)
    except (KeyError, ValueError, IndexError) as error:
        raise unknown(group[0], error) from error
