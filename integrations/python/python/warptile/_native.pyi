"""What the native module has; its docstrings say what it does."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

from ._types import Array, ArrayT
from .generated import Options

__version__: str

@overload
def attention(
    q: ArrayT, k: Array, v: Array, *, return_lse: Literal[False] = False, **options: Unpack[Options]
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT, k: Array, v: Array, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[ArrayT, ArrayT]: ...
def attention_without_gradient(q: ArrayT, k: Array, v: Array, **options: Any) -> Any: ...
def attention_after_write(
    write: dict[str, Any], q: Array, k: Array, v: Array, *, between: Callable[[], None] | None = None, **options: Any
) -> Any: ...
def explain(q: Array, k: Array, v: Array, *, device: str | None = None, **options: Unpack[Options]) -> str: ...
def merge(
    parts: Sequence[tuple[ArrayT, ArrayT]],
    *,
    out: ArrayT | None = None,
    lse: Array | None = None,
    base_two: bool = False,
    layout: Literal["bshd", "bhsd"] | None = None,
    stream: int | None = None,
) -> tuple[ArrayT, ArrayT]: ...
def options_stub() -> str: ...
def write_cache(**arguments: Any) -> Any: ...
