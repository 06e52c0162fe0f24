"""The control of a node: applies what operators set while it runs."""

from __future__ import annotations

from collections.abc import Callable

from headgate.engine.claim_wakeup import ClaimWakeup
from headgate.engine.membership import Membership
from headgate.engine.services import Services
from headgate.engine.slots import Slots
from headgate.jobs.event import NodeChanged
from headgate.storage.records import NodeSetting


class NodeControl:
    """Changes the slots of a node, lets it claim nothing for a while, or calls `stop`."""

    def __init__(
        self,
        services: Services,
        membership: Membership,
        slots: Slots,
        wakeup: ClaimWakeup,
        *,
        stop: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._slots = slots
        self._wakeup = wakeup
        self._stop = stop
        self._clock = services.clock
        self._bus = services.bus

    def apply(self, setting: NodeSetting) -> None:
        """Apply what the store says that this node is set to do; no effect if it does that already."""
        before, self._membership.setting = self._membership.setting, setting
        if setting.is_stopping:
            self._stop()
        elif setting != before:
            self._slots.change(setting.queues, setting.slots, is_quiet=setting.is_quiet)
            self._bus.publish(
                NodeChanged(
                    at=self._clock.now(),
                    node=self._membership.id,
                    queues=setting.queues,
                    slots=setting.most,
                    is_quiet=setting.is_quiet,
                )
            )
            self._wakeup.wake()
