"""OpenCL as the runtime uses it: devices, drivers and their faults, builds, recordings."""
