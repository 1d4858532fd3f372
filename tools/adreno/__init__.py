"""A real Adreno compiler on any machine: what it makes of our kernels, and what that costs.

Debian's Mesa for arm64 has a driver of Adreno 6xx and a device that executes nothing; it runs under
qemu. Nothing here needs a GPU, and nothing of it is on the device. See docs/adreno.md, ADR 0132.
"""
