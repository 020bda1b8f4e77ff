"""Basic blocks to Python functions over NumPy arrays.

`kernel` builds a kernel and is where to start; `emitter` turns operands into expressions and results into assignments;
each module named here writes some opcodes and registers its writers when it is imported.
"""

from labkit.sim.codegen import arithmetic, bits, compare, convert, memory, moves, video, warp

__all__ = ["arithmetic", "bits", "compare", "convert", "memory", "moves", "video", "warp"]
