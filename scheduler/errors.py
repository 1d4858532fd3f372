"""The exceptions of the compiler, each with the exit code of the command line.

SchedulerError
├── VerifyError            an IR invariant does not hold: a bug of ours, never of the user's model
├── InternalError          a translator of ONNX nodes has a defect: ours, not the model's
├── LoweringError          a kernel cannot be generated
├── DeviceLimitError       an artifact needs more than its target has
├── SelfCheckError         a compiled model does not compute what the model says
└── ModelError             the user's model cannot be used
    ├── UnsupportedOpError every operator we cannot translate, all at once
    ├── DynamicInputError  what has to be known while compiling depends on inputs of the model
    ├── TensorIndexError   an index or an axis that a tensor does not have; an IndexError too
    ├── TensorTypeError    a tensor used as what it is not, or beside what is none; a TypeError too
    └── TensorCopyError    values that only a copy can hold; a ValueError and a BufferError too

The last three are what protocols ask for: a sequence ends at its first IndexError, numpy expects a
ValueError where it must not copy, DLPack a BufferError.
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of all compiler errors; `exit_code` is what the command line exits with."""

    exit_code = 4


class VerifyError(SchedulerError):
    """A graph breaks a rule of the IR; the message names the node and the rule."""


class InternalError(SchedulerError):
    """The compiler has a defect; the message names the node that shows it."""

    exit_code = 1


class LoweringError(SchedulerError):
    """A kernel cannot be lowered or rendered; the message names its origin."""


class ModelError(SchedulerError):
    """The ONNX model is unreadable or asks for something that does not exist."""


class UnsupportedOpError(ModelError):
    """The model uses operators without a translator; lists each with its node name."""


class DynamicInputError(ModelError):
    """A shape, axes, a count must be known while compiling, but depends on run-time data.

    `value` names it in the graph; it is computed from `inputs` of the model, () if they are
    unknown.
    """

    def __init__(self, message: str, value: str, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.value = value
        self.inputs = inputs


class TensorIndexError(ModelError, IndexError):
    """A tensor has no such element, row or axis."""


class TensorTypeError(ModelError, TypeError):
    """A tensor is used as a number, a size or a sequence that it is not, or meets no operand."""


class TensorCopyError(ModelError, ValueError, BufferError):
    """The values of a tensor were asked for without a copy, and there is no array of them."""


class DeviceLimitError(SchedulerError):
    """What was compiled does not fit the target; `limit` names which of its limits is broken."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


class SelfCheckError(SchedulerError):
    """A compiled model failed its self-check; says which output, how far off, and what to try."""

    exit_code = 1
