"""Images on a device: made from what the manifest says, filled where a check asks for it."""

import numpy as np
from numpy.typing import NDArray

from runtime.device import Device
from runtime.errors import ArtifactError
from runtime.image_spec import TEXEL, ImageSpec
from runtime.manifest import Manifest
from runtime.opencl import cl


def check_images(specs: list[tuple[str, ImageSpec]], device: Device) -> None:
    """Compare images with what the device takes: a driver's own refusal names no image.

    Args:
        specs: name and texels of each.
        device: to be used.

    Raises:
        ArtifactError: the device has no images, or none as large.
    """
    if not specs:
        return
    info = device.info
    if not info.images:
        raise ArtifactError(f"it reads images, {info.name} has none; compile for another --target")
    most = info.max_image
    for name, image in specs:
        if image.width > most[0] or image.height > most[1]:
            raise ArtifactError(
                f"image {name!r} has {image.width}x{image.height} texels, {info.name} takes "
                f"{most[0]}x{most[1]}; compile for another --target"
            )


def check_image_arguments(manifest: Manifest, device: Device) -> None:
    """Compare the images that kernels are given with what the device takes.

    Args:
        manifest: of the artifact.
        device: to be used.

    Raises:
        ArtifactError: a kernel reads or writes more images than kernels may on the device.
    """
    info = device.info
    for kernel in manifest.kernels:
        images = [manifest.buffers[index].image is not None for index in kernel.args]
        counts = sum(images[kernel.writes :]), sum(images[: kernel.writes])
        for count, most, verb in zip(counts, info.max_image_args, ("reads", "writes"), strict=True):
            if count > most:
                raise ArtifactError(
                    f"kernel {kernel.name!r} {verb} {count} images, {info.name} takes {most}; "
                    "compile with `--target auto` on the device, or for another --target"
                )


def make_image(
    device: Device, image: ImageSpec, dtype: str, data: NDArray[np.uint8] | None
) -> cl.Image:
    """Return an image.

    Args:
        device: where it is.
        image: its texels.
        dtype: of a component.
        data: what it holds, copied; None for an intermediate.

    Raises:
        pyopencl.Error: the device refuses it.
    """
    kind = cl.channel_type.HALF_FLOAT if dtype == "float16" else cl.channel_type.FLOAT
    texels = cl.ImageFormat(cl.channel_order.RGBA, kind)
    flags, shape = cl.mem_flags, (image.width, image.height)
    if data is None:
        return cl.create_image(device.context, flags.READ_WRITE, texels, shape=shape)
    how, host = flags.READ_ONLY | flags.COPY_HOST_PTR, data.view(dtype)
    return cl.create_image(device.context, how, texels, shape=shape, hostbuf=host)


def poison_image(queue: cl.CommandQueue, memory: cl.Image, image: ImageSpec) -> None:
    """Fill an image with NaN."""
    texel = np.full(TEXEL, np.nan, np.float32)
    cl.enqueue_fill_image(queue, memory, texel, (0, 0, 0), (image.width, image.height, 1))
