"""A real Adreno compiler on any machine: the code of our kernels, and its cost.

Debian's Mesa for arm64 has a driver of Adreno 6xx and a device that executes nothing; it runs under
qemu. Nothing here needs a GPU. See docs/adreno.md, ADR 0132.
"""
