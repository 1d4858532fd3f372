"""A fixed piece of work that a model's time is divided by, so that a slow machine is no slow model.

Two kernels, written by hand and compiled by the driver alone: nothing that our compiler or runtime
does changes how long they take. One is chains of vector multiply-adds in registers, which follows
the clock under vector load; the other reads scattered bytes with scalar arithmetic, which follows
the rest of a core. Of the mixtures tried, this one kept the ratio of the 8 M driving model within
3 % from process to process, quiet and beside a process that never sleeps (2026-11-22, 2 shared
cores of AMD Zen 4, PoCL 3.0); kernels that stream from L2 or DRAM varied by 10 to 20 %, because
what a neighbour takes of a shared cache is not what the model loses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from runtime import Device

CHAINS = 12  # independent multiply-adds: two units with a latency of 4 need 8, registers hold 12
CPU_ITEMS = 64
GPU_ITEMS = 1 << 16
ROUNDS = 4000
WIDTH, HEIGHT = 512, 256  # of what is sampled, as a model's image
IMAGE_WIDTH, IMAGE_HEIGHT = 1344, 760
REPEATS = 4

SOURCE = """
__kernel void chains(__global float8* out, const int rounds) {
  float8 x[CHAINS];
  #pragma unroll
  for (int k = 0; k < CHAINS; k++) x[k] = (float8)(0.25f * k + get_global_id(0));
  for (int i = 0; i < rounds; i++) {
    #pragma unroll
    for (int k = 0; k < CHAINS; k++) x[k] = x[k] * 0.999f + 0.001f;
  }
  float8 sum = x[0];
  #pragma unroll
  for (int k = 1; k < CHAINS; k++) sum += x[k];
  out[get_global_id(0)] = sum;
}

__kernel void sample(__global const uchar* image, __global float* out) {
  const int y = get_global_id(0);
  for (int x = 0; x < WIDTH; x++) {
    const int u = (int)(x * 2.5f), v = (int)(y * 2.9f);
    const __global uchar* p = image + v * IMAGE_WIDTH + u;
    out[y * WIDTH + x] = p[0] * 0.25f + p[1] * 0.25f + p[IMAGE_WIDTH] * 0.5f;
  }
}
"""


class CalibrationWorkload:
    """The kernels, built for one device.

    `device`: an opened device.
    """

    def __init__(self, device: Device) -> None:
        from runtime.opencl.binding import cl

        self._queue = cl.CommandQueue(device.context)
        sizes = {"CHAINS": CHAINS, "WIDTH": WIDTH, "IMAGE_WIDTH": IMAGE_WIDTH}
        options = [f"-D{name}={value}" for name, value in sizes.items()]
        program = cl.Program(device.context, SOURCE).build(options=options)
        self._chains = cl.Kernel(program, "chains")
        self._sample = cl.Kernel(program, "sample")
        # A CPU works through the items one after the other, a GPU has thousands in flight.
        self._items = CPU_ITEMS if device.info.kind == "cpu" else GPU_ITEMS
        self._local = (1,) if device.info.kind == "cpu" else None
        flags = cl.mem_flags
        self._out = cl.Buffer(
            device.context, flags.READ_WRITE, max(32 * self._items, 4 * WIDTH * HEIGHT)
        )
        image = np.arange(IMAGE_WIDTH * IMAGE_HEIGHT, dtype=np.uint32).astype(np.uint8)
        self._image = cl.Buffer(
            device.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=image
        )

    def run(self) -> None:
        """Do the work once, about a tenth of the 8 M model's on one core, and wait for it."""
        for _ in range(REPEATS):
            self._chains(self._queue, (self._items,), self._local, self._out, np.int32(ROUNDS))
            self._sample(self._queue, (HEIGHT,), self._local, self._image, self._out)
        self._queue.finish()
