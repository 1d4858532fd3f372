"""The compiler's exceptions, each with its exit code for the command line.

SchedulerError
├── VerifyError            an IR invariant is broken: a compiler bug, not a fault of the model
├── InternalError          a translator of ONNX nodes has a bug; the model is not at fault
├── LoweringError          a kernel cannot be generated
├── DeviceLimitError       an artifact exceeds a limit of its target
├── SelfCheckError         a compiled model's results differ from the model's
└── ModelError             the user's model cannot be used
    ├── UnsupportedOpError the model has operators without a translator; lists all of them
    ├── DynamicInputError  a value needed at compile time depends on inputs of the model
    ├── TensorIndexError   a tensor has no such index or axis; also an IndexError
    ├── TensorTypeError    a tensor or an operand has the wrong type; also a TypeError
    └── TensorCopyError    no array holds the values; also a ValueError and a BufferError

Protocols require the built-in bases of the last three: iteration over a sequence ends at the first
IndexError, numpy expects a ValueError if it must not copy, and DLPack expects a BufferError.
"""

from __future__ import annotations


class SchedulerError(Exception):
    """The base class of all compiler errors; `exit_code` is the exit code of the command line."""

    exit_code = 4


class VerifyError(SchedulerError):
    """A graph breaks a rule of the IR; the message names the node and the rule."""


class InternalError(SchedulerError):
    """The compiler has a bug; the message names the ONNX node that triggers it."""

    exit_code = 1


class LoweringError(SchedulerError):
    """A kernel cannot be lowered or rendered; the message names its origin."""


class ModelError(SchedulerError):
    """The ONNX model is unreadable or refers to something that does not exist."""


class UnsupportedOpError(ModelError):
    """The model uses operators without a translator; the message lists each with its node."""


class DynamicInputError(ModelError):
    """A value needed at compile time, such as a shape or axes, depends on run-time data.

    `value` is its name in the graph. `inputs` names the model inputs it is computed from; it is ()
    if they are unknown.
    """

    def __init__(self, message: str, value: str, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.value = value
        self.inputs = inputs


class TensorIndexError(ModelError, IndexError):
    """A tensor has no such element, row or axis."""


class TensorTypeError(ModelError, TypeError):
    """A tensor is used as a number, size or sequence that it is not, or has an unusable operand."""


class TensorCopyError(ModelError, ValueError, BufferError):
    """A tensor's values were requested without a copy, but no array holds them."""


class DeviceLimitError(SchedulerError):
    """An artifact does not fit its target; `limit` is the name of the exceeded limit."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


class SelfCheckError(SchedulerError):
    """A compiled model failed its self-check; the message names the output, the error and a fix."""

    exit_code = 1
