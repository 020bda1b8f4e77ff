"""Sizes that the kernels, the engine and the pictures agree on."""

PAGE_SIZE = 64  # tokens in a KV page
QUERY_TILE = 64  # rows of one sequence that prefill attention works on together
HEAD_DIMS = (64, 128, 256)  # heads that the kernels of attention are built for
CHUNK = 64  # positions that the chunked delta rule works on together
GDN_DIMS = (64, 128)  # heads that the kernels of Gated DeltaNet are built for
