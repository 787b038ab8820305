"""Checks of arguments that are flags, or one of several words."""

from collections.abc import Collection
from typing import Any

__all__ = ["choice", "flag"]


def flag(argument: str, value: Any) -> bool:
    """A flag. Other values would count by their truth, and all texts are true."""
    # Also NumPy's, which is called bool_ before version 2.
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{argument}={value!r}: True or False is needed")
    return bool(value)


def choice(argument: str, value: Any, words: Collection[str]) -> str:
    """One of at least two words."""
    if not isinstance(value, str) or value not in words:
        *others, last = map(repr, words)
        raise ValueError(f"{argument}={value!r}: {', '.join(others)} or {last} is possible")
    return value
