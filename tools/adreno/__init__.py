"""Compiles our kernels with a real Adreno compiler on any machine, and estimates their cost.

Debian's Mesa for arm64 has a driver for Adreno 6xx, and a device that executes nothing. It runs
under qemu, so no GPU is needed. See docs/adreno.md, ADR 0132.
"""
