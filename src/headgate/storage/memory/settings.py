"""What is set about limits at run time, as the memory storage keeps it."""

from __future__ import annotations

from headgate.storage.live_rules import LimitSetting, LiveRules


class Settings:
    """All settings, and the live rules that they make; `revision` grows with each change."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str, str], LimitSetting] = {}
        self.live = LiveRules()
        self.revision = 1

    def all(self) -> list[LimitSetting]:
        return list(self._stored.values())

    def change(self, setting: LimitSetting, *, remove: bool) -> None:
        """Keep a setting in place of the one for the same keys, or remove that."""
        place = (setting.limit, setting.scope, setting.target)
        self._renew({**self._stored, place: setting} if not remove else _without(self._stored, place))

    def forget(self, limit: str) -> bool:
        """Remove everything that is set about a limit; whether there was anything."""
        kept = {place: setting for place, setting in self._stored.items() if setting.limit != limit}
        if len(kept) == len(self._stored):
            return False
        self._renew(kept)
        return True

    def _renew(self, stored: dict[tuple[str, str, str], LimitSetting]) -> None:
        # The rules first: a setting that cannot be read leaves everything as it was.
        self.live = LiveRules(stored.values())
        self._stored = stored
        self.revision += 1


def _without(
    stored: dict[tuple[str, str, str], LimitSetting], place: tuple[str, str, str]
) -> dict[tuple[str, str, str], LimitSetting]:
    return {other: setting for other, setting in stored.items() if other != place}
