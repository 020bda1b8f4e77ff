"""Sizes that the kernels, the engine and the pictures agree on."""

PAGE_SIZE = 64  # tokens in a KV page
