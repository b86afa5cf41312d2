"""What counts as an array in the signatures."""

from typing import Any, Protocol, TypeVar


class SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: int | None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Array = SupportsDLPack | SupportsArrayInterface | SupportsCudaArrayInterface | memoryview
ArrayT = TypeVar("ArrayT", bound=Array)
