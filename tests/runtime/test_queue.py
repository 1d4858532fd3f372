"""A queue's priority is a hint: where the device does not take it, the queue is one without."""

from dataclasses import replace

import pytest

from runtime.device import choose_device
from runtime.queue import PRIORITIES, PRIORITY_EXTENSION, open_first_queue

pytestmark = pytest.mark.opencl


def test_without_a_wish_nothing_is_refused() -> None:
    queue, refusal = open_first_queue(choose_device(), None)
    queue.finish()
    assert refusal == ""


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_device_without_the_extension_is_named(priority: str) -> None:
    device = choose_device()
    info = replace(device.info, extensions=())
    queue, refusal = open_first_queue(replace(device, info=info), priority)
    queue.finish()
    assert refusal == f"{info.name} does not have {PRIORITY_EXTENSION}"


def test_a_driver_that_does_not_keep_its_word_is_no_error() -> None:
    device = choose_device()
    info = replace(device.info, extensions=(PRIORITY_EXTENSION,))
    queue, refusal = open_first_queue(replace(device, info=info), "high")
    queue.finish()
    # PoCL does not know the property; a driver that does takes it.
    assert refusal == "" or refusal.startswith(f"{info.name} refuses it: ")


def test_a_priority_that_is_none() -> None:
    _, refusal = open_first_queue(choose_device(), "highest")
    assert refusal == "expected one of high, medium, low, found 'highest'"
