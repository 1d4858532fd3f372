"""OpenCL for the runtime: devices, driver workarounds, program builds and recordings."""
