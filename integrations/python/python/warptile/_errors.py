"""The exceptions of this package."""


class Error(Exception):
    """Base of all exceptions that warptile raises itself."""


class InvalidInput(Error, ValueError):
    """A shape, stride, device or value breaks a rule; the message names the argument and the rule."""


class InvalidType(Error, TypeError):
    """An argument is not a tensor, or its elements have the wrong type."""


class NoKernel(Error, ValueError):
    """No kernel of the GPU can compute this; the message has the reason for each."""


class Unsupported(Error, NotImplementedError):
    """An argument of another library's function asks for what warptile does not do; the message names it."""


class DeviceError(Error, RuntimeError):
    """The driver is missing, too old, unusable after a fork, or reports an error."""


class OutOfMemory(DeviceError, MemoryError):
    """The device or the host has not enough memory."""


def refuse_second_derivatives(*_):
    raise Unsupported("warptile computes no second derivatives")


for _class in (Error, InvalidInput, InvalidType, NoKernel, Unsupported, DeviceError, OutOfMemory):
    _class.__module__ = "warptile"
