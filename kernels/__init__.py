"""Triton kernels for the page tables and the bytes of a paged KV cache.

One module per launch. Each operation has three names in its module: ``_op_kernel`` (the Triton
body), ``op`` (the launcher, whose docstring is the specification) and ``op_host`` (the same in
numpy on host memory: the CPU backend, and the oracle of the tests).

The kernels know tensors only. They know nothing of bands, directions or policies.
"""
