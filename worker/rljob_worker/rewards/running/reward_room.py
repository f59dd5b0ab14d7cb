"""What the processes of a job's rewards may do. They share processes, so that the strictest of them holds for all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rljob_api.vocabulary.network import NetworkPlace
from rljob_worker.sandbox.confinement.confine import Confinement, check_confinement, strictest
from rljob_worker.sandbox.confinement.proxy import Proxy, network_places
from rljob_worker.sandbox.guardian.environment import bounded_environment, child_environment
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.user_processes import Guardian, OwnProcess, UserProcess

if TYPE_CHECKING:
    from rljob_api.v1alpha1.data import RewardSpec

MODULE = "rljob_worker.rewards.running.process"
DEFAULT_PORTS = {"http": 80, "https": 443}


class RewardRoom:
    """Reward processes; where they are confined their guardian, and their proxy where they reach a network."""

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        services: Sequence[str],
        pythonpath: Sequence[str | os.PathLike[str]],
    ) -> None:
        """services: URLs that the rewards ask, which they may always reach. Raises InvalidJob: this machine cannot
        confine, or an entry of `network` is none."""
        self._mode = strictest(reward.confinement for reward in rewards)
        owner = next(reward.name for reward in rewards if reward.confinement == self._mode)
        check_confinement(f'reward "{owner}"', self._mode)
        listed = [network_places(f'reward "{reward.name}"', reward.network) for reward in rewards]
        places = frozenset[NetworkPlace]().union(*listed, map(_place, services))
        self._proxy = Proxy(places) if places and self._mode != "Off" else None
        self.guardian: Guardian | None = None
        if self._mode == "Off":
            self._environment = child_environment(pythonpath)
        else:
            environment = bounded_environment(pythonpath, ()) | (self._proxy.environment if self._proxy else {})
            self.guardian = Guardian(MODULE, environment)

    @property
    def has_proxy(self) -> bool:
        return self._proxy is not None

    def start(self, hello: Message) -> UserProcess:
        """A process that runs rewards."""
        if self.guardian is None:
            return OwnProcess(MODULE, self._environment, hello)
        confinement = Confinement(self._mode, proxy_port=None if self._proxy is None else self._proxy.port)
        return self.guardian.start(hello, {"folder": True, "confinement": asdict(confinement)})

    def close(self) -> None:
        """Kill what a guardian has forked."""
        if self.guardian is not None:
            self.guardian.close()
        if self._proxy is not None:
            self._proxy.close()


def _place(url: str) -> NetworkPlace:
    parts = urlsplit(url)
    return NetworkPlace(parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme, 80))
