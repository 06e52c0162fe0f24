"""Unknown keyword arguments: the TypeError of a public call names the known ones, and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

Declared = TypeVar("Declared", bound=Callable[..., Any])


def require_keywords(
    given: Mapping[str, Any], known: Collection[str], where: str, *, kind: str = "", of_limits: Collection[str] = ()
) -> None:
    """Raise TypeError, as Python does, for an unknown keyword argument of a call, or of the class `kind`.

    `of_limits` are the options that a limit would take instead.
    """
    for name in given:
        if name not in known:
            # Only a mistake needs them.
            from headgate.foreign_words import instead_of_option
            from headgate.suggestion import did_you_mean

            foreign = instead_of_option(name, given[name], known, kind)
            hint = did_you_mean(name, known) if foreign is None else f"; write {foreign}."
            if name in of_limits:
                hint = f", which is an option of a limit: limits=[StrictRate(…, {name}=…)]."
            takes = ", ".join(known) or "none"
            raise TypeError(f"{where} got an unexpected keyword argument {name!r}{hint} It takes: {takes}") from None


def names_keywords(declared: Declared) -> Declared:
    """Decorate a class or a function: its TypeError for an unknown keyword argument names the known ones."""
    call: Any = vars(declared)["__init__"] if isinstance(declared, type) else declared

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except TypeError:
            name = declared.__qualname__
            require_keywords(kwargs, _parameters(call), f"{name}()", kind=name)
            raise

    if not isinstance(declared, type):
        return checked  # type: ignore[return-value]
    declared.__init__ = checked  # type: ignore[misc]
    return declared


if TYPE_CHECKING:  # To a type checker, the fields are the arguments.
    NamesKeywords = msgspec.StructMeta
elif hasattr(msgspec, "StructMeta"):

    class NamesKeywords(msgspec.StructMeta):
        """The metaclass of structs that do as `names_keywords`: a struct has no `__init__`."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                require_keywords(kwargs, _parameters(self), f"{self.__name__}()", kind=self.__name__)
                raise

else:  # The metaclass of msgspec 0.19 can have no subclass.
    NamesKeywords = type(msgspec.Struct)


def _parameters(call: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a call takes; for `**options: Unpack[Options]` those of the options."""
    import inspect  # As above.

    known: list[str] = []
    for each in inspect.signature(call).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            options = each.annotation.removeprefix("Unpack[").removesuffix("]")
            known += call.__globals__[options].__annotations__
        elif each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name != "self":
            known.append(each.name)
    return known
