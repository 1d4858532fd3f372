"""Golden figures of what Mesa's compiler for Adreno makes of our kernels: `make adreno`."""
