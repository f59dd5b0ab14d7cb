"""Parts by catalogue name, and the parts a user brings as `module:function`. What a part is, a registry does not know.

A kind of part has its registry beside its type, a part registers itself where it is defined, and
`algorithms/__init__.py` imports every such module:

    POLICY_LOSSES: Registry[PolicyLoss] = Registry("policy loss")

    @POLICY_LOSSES.register("PPOClip")
    def ppo_clip_loss(tokens, options): ...

    resolve(POLICY_LOSSES, "PPOClip")            the function above
    resolve(POLICY_LOSSES, "my_losses:softer")   `softer` of the user's module `my_losses`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rljob_worker.errors import InvalidJob
from rljob_worker.users_code.function import load_function

Part = TypeVar("Part", bound=Callable[..., Any])


class Registry(Generic[Part]):
    """Parts of one kind by name. What each reads stands in the catalogue, or in the job for a part from outside."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """Decorator: file a part under its catalogue name."""
        assert name not in self._parts, f"two {self.kind}s are called {name}"

        def add(part: Part) -> Part:
            self._parts[name] = part
            return part

        return add

    def names(self) -> list[str]:
        return sorted(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __getitem__(self, name: str) -> Part:
        return self._parts[name]


def resolve(registry: Registry[Part], name: str) -> Part:
    """The part of a catalogue name, or `module:function` of the user's code. Raises InvalidJob."""
    if name in registry:
        return registry[name]
    if ":" not in name:
        raise InvalidJob(f"{registry.kind} {name!r} is unknown; write module:function or one of {registry.names()}")
    return load_function(registry.kind, name)  # type: ignore[return-value]
