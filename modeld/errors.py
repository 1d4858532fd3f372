"""Errors of the daemon; the command line prints the message and exits with ``exit_code``.

Tree::

    ModeldError                 4  base
    |- ConfigError              2  bad configuration file or option
    |- ModelInterfaceError      4  the artifact is not a driving model that this daemon can run
    |  `- CameraSizeError       4  a frame is not what it says, or the artifact has no room for it
    |- CameraConfigError        4  no intrinsics known for this camera
    |- StoreError               4  the store of models, or a model in it, cannot be used
    |  `- NothingSelectedError 4  no model of the store is selected for a role
    |- ParameterError           4  a parameter of the stack cannot be used
    |- RunTimeoutError          4  the model did not come back, and there is no fallback model
    |- RunAbandonedError        4  of a thread whose run was given up; no user sees it
    `- InternalError            1  a defect of the daemon itself; the log holds the traceback
"""


class ModeldError(Exception):
    """Base of all errors the daemon raises; the message is one line for the user."""

    exit_code: int = 4


class ConfigError(ModeldError):
    """A configuration value, file or option is unknown, of a wrong type or out of range."""

    exit_code = 2


class ModelInterfaceError(ModeldError):
    """The artifact's metadata or entry points are not those of a driving model."""


class CameraSizeError(ModelInterfaceError):
    """A frame is shorter than its format, or larger than the artifact has room for.

    The loop logs it and waits for usable frames.
    """


class CameraConfigError(ModeldError):
    """No camera intrinsics are known for the device and sensor that sent the frames."""


class StoreError(ModeldError):
    """The store of models, or a model in it, is missing, damaged or may not be used."""


class NothingSelectedError(StoreError):
    """No model is selected for a role."""


class ParameterError(ModeldError):
    """A parameter of the stack is damaged or cannot be read."""


class RunTimeoutError(ModeldError):
    """A run of the model did not come to its end; what it needs of the device is not given back."""


class RunAbandonedError(ModeldError):
    """Ends the thread of a run that was given up: another one has taken its place."""


class InternalError(ModeldError):
    """An unexpected exception ended the daemon; its traceback is in the log."""

    exit_code = 1
