"""Kernels of gatespec in the registries of another package: dictionaries that lead from a name to a function."""

from collections.abc import Callable, Mapping
from typing import Any

from reference._call import describe

Registry = dict[str, Callable[..., Any]]


def register_kernels(name: str, registries: Mapping[str, Registry], kernels: Mapping[str, Callable[..., Any]]) -> None:
    """Enter one kernel of each form; one of ours with the same name is replaced.

    Args:
        name: of the kernels, in every registry.
        registries: by the form of their kernels.
        kernels: by the same forms.

    Raises:
        ValueError: the name is empty or contains ``--``, or a kernel that is not ours has it. Nothing is registered.
    """
    _check_name("register", name)
    if not name or "--" in name:
        raise ValueError(f"register: `name` is {name!r}; expected a name without '--', which mlstm_kernels splits at")
    for form, registry in registries.items():
        if name in registry and type(registry[name]) is not type(kernels[form]):
            raise ValueError(f"register: `name` is {name!r}; expected one that no {form} kernel of mlstm_kernels has")
    for form, registry in registries.items():
        registry[name] = kernels[form]


def unregister_kernels(name: str, registries: Mapping[str, Registry], kinds: Mapping[str, type]) -> None:
    """Take the kernels of that name out.

    Args:
        name: as given to `register_kernels`.
        registries: by the form of their kernels.
        kinds: the class of our kernel of each form.

    Raises:
        ValueError: a kernel of that name is missing or is not ours. Nothing is taken out.
    """
    _check_name("unregister", name)
    for form, registry in registries.items():
        if type(registry.get(name)) is not kinds[form]:
            raise ValueError(f"unregister: `name` is {name!r}; expected a {form} kernel that `register` registered")
    for registry in registries.values():
        del registry[name]


def _check_name(function: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{function}: `name` is {describe(name)}; expected the name of a kernel")
