"""The annotations of declared functions, resolved to types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from headgate.errors import DeclarationError


def annotations_of(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """Return the types of the parameters and of the result. Raises DeclarationError for an undefined name."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationError(
            f"an annotation of {where} cannot be resolved: {error}; import the name at the top of its module"
        ) from None
