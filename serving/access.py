"""Who may ask, and under which names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.configuration import HOSTS
from serving.hosts import hosts_in
from serving.keys import Keys


@dataclass(frozen=True)
class Access:
    """`hosts`: names that the service answers to besides loopback's."""

    keys: Keys = field(default_factory=Keys)
    hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Access:
        """Raises `UsageError` for a key that can be guessed."""
        return cls(Keys.of(environment), tuple(hosts_in(environment.get(HOSTS, ""))))
