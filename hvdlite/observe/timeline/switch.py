"""Turns the timeline of a session on and off."""

from __future__ import annotations

import threading
from typing import Final

from hvdlite.groups.group import Group
from hvdlite.groups.sets import Registry
from hvdlite.log import logger
from hvdlite.members.membership import Membership
from hvdlite.observe.timeline.recording import Recording
from hvdlite.observe.timeline.sinks import HvdrunsFile, OwnFile, Sink
from hvdlite.rendezvous.meeting import launchers_job
from hvdlite.settings import Start

DYNAMIC: Final = "DYNAMIC"
"""In place of a path: the timeline begins with the first call of ``start_timeline``."""


class Switch:
    """The timeline of one session. For any thread."""

    def __init__(self, world: Membership, sets: Registry) -> None:
        self._world = world
        self._sets = sets
        self._recording: Recording | None = None
        self._lock = threading.Lock()
        sets.watch(self._watch)

    def obey(self, start: Start, setting: str, mark_cycles: bool) -> None:
        """Starts if HVDLITE_TIMELINE demands it. If the file cannot be written, logs a warning."""
        if start.timeline_address:
            secret = launchers_job(start).key("timeline")
            self._record(HvdrunsFile(setting, start.timeline_address, secret, self._world.number), mark_cycles)
        elif setting and setting != DYNAMIC:
            try:
                self.start(setting, mark_cycles)
            except OSError as error:
                logger.warning("there is no timeline: %s cannot be written: %s", error.filename, error.strerror)

    def start(self, path: str, mark_cycles: bool) -> None:
        """Records to ``path`` from now on, or with several ranks to ``path.rankN``. An earlier recording ends.

        Raises OSError if the file cannot be written.
        """
        self.stop()
        own = path if self._world.size == 1 else f"{path}.rank{self._world.number}"
        self._record(OwnFile(own), mark_cycles)

    def _record(self, sink: Sink, mark_cycles: bool) -> None:
        recording = Recording(sink, self._world, mark_cycles)
        with self._lock:
            self._recording = recording
        for number, group in self._sets.groups.items():
            self._watch(number or 0, group)

    def stop(self) -> None:
        """Ends the recording, if there is one. Its file is complete then."""
        with self._lock:
            recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop()

    def _watch(self, number: int, group: Group) -> None:
        recording = self._recording
        if recording is not None:
            recording.watch(number, group.membership, group.observer)
