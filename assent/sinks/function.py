"""A user's function, named in an option as `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from assent.protocol.errors import ConfigurationError


def load_function(name: str, option: str) -> Callable[..., Any]:
    """The function of that name; ConfigurationError if it cannot be had where this runs."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ConfigurationError(f"option {option} is {name!r}; expected module:function")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"option {option} is {name!r}, which cannot be imported here: {error}; the module "
            "has to be installed on the driver and on all executors (or sent with addPyFile)"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"option {option} is {name!r}, which is not a function")
    function: Callable[..., Any] = found
    return function
