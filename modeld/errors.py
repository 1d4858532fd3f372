"""Errors of the daemon. The command line prints the message and exits with ``exit_code``.

Tree::

    ModeldError                 4  base
    |- ConfigError              2  bad configuration file or option
    |- ModelInterfaceError      4  the artifact is not a driving model that this daemon can run
    |  `- CameraSizeError       4  a frame contradicts its format, or is too large for the artifact
    |- CameraConfigError        4  no intrinsics known for this camera
    |- StoreError               4  the model store, or a model in it, cannot be used
    |  `- NothingSelectedError 4  no stored model is selected for a role
    |- ParameterError           4  a parameter of the driving stack cannot be used
    |- RunTimeoutError          4  a model run did not finish, and there is no fallback model
    |- RunAbandonedError        4  ends a thread whose run was given up; users never see it
    `- InternalError            1  a defect of the daemon itself; the log holds the traceback
"""


class ModeldError(Exception):
    """Base of all errors the daemon raises; the message is one line for the user."""

    exit_code: int = 4


class ConfigError(ModeldError):
    """A configuration value, file or option is unknown, has the wrong type or is out of range."""

    exit_code = 2


class ModelInterfaceError(ModeldError):
    """The artifact's metadata or entry points are not those of a driving model."""


class CameraSizeError(ModelInterfaceError):
    """A frame is shorter than its format requires, or too large for the artifact.

    The loop logs it and waits for usable frames.
    """


class CameraConfigError(ModeldError):
    """No camera intrinsics are known for the device and sensor that sent the frames."""


class StoreError(ModeldError):
    """The model store, or a model in it, is missing, damaged or not permitted."""


class NothingSelectedError(StoreError):
    """No model is selected for a role."""


class ParameterError(ModeldError):
    """A parameter of the driving stack is damaged or cannot be read."""


class RunTimeoutError(ModeldError):
    """A model run did not finish; the device resources that it holds are not released."""


class RunAbandonedError(ModeldError):
    """Ends the thread of a run that was given up; another thread has replaced it."""


class InternalError(ModeldError):
    """An unexpected exception ended the daemon; its traceback is in the log."""

    exit_code = 1
