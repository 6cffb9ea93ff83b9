"""What was told of a run: its alarms, and what was found to cause them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rksp.documents.confirm import CauseReport
from rksp.watch.attach.log import Voice
from rksp.watch.monitors.base import Alarm, Severity
from rksp.watch.monitors.sinks import said

EXPECTED = "expected"  # the monitor of what needs no baseline
_MOST = 3  # diagnoses of a kind of alarm, and one more for each `_PER_DIAGNOSIS` steps
_PER_DIAGNOSIS = 1000
_EPISODE = 50  # steps after a cause was found in which an alarm is taken for the same trouble
_AFTER = 5  # steps after a known cause in which the loss jumps because of it


class Account:
    """Tells the alarms of a run, each trouble once, and counts them."""

    def __init__(self, voice: Voice) -> None:
        self.causes: list[CauseReport] = []  # in order
        self._voice = voice
        self._first: Alarm | None = None
        self._count = 0
        self._asked: Counter[str] = Counter()
        self._was_critical = False

    def count(self, alarms: Sequence[Alarm]) -> None:
        """Count some alarms."""
        self._first = self._first or alarms[0]
        self._count += sum(not alarm.is_escalation for alarm in alarms)

    def tell(self, alarm: Alarm, cause: CauseReport | None) -> None:
        """Print an event and note its cause; one line for both."""
        if cause is not None:
            self.causes.append(cause)
            self._voice.note(cause)
        if cause is None:
            line = said(alarm)
        elif cause.text == alarm.text:
            line = f"{cause.text} ({cause.cause})"
        elif cause.cause == "unknown":
            line = f"{said(alarm)}. Cause unknown: {cause.text}"
        else:
            line = f"{said(alarm)}. Cause: {cause.cause}: {cause.text}"
        self._voice.say(f"step {alarm.step}: {line}")
        event = {"step": alarm.step, "severity": alarm.severity.value, "text": line}
        event |= {"cause": cause.cause if cause else "", "module": cause.module if cause else ""}
        self._voice.leave(f"{alarm.step}-{self._count}.event", json.dumps(event))

    def tell_of(
        self,
        alarms: Sequence[Alarm],
        *,
        loss_before: float | None,
        diagnose: Callable[[set[str]], CauseReport] | None,
    ) -> None:
        """Print the first of a step's alarms, with its cause; the others are its consequences."""
        head = next((a for a in alarms if a.monitor == EXPECTED), None)
        head = head or next((a for a in alarms if a.monitor == "loss"), alarms[0])
        step, last = head.step, self.causes[-1] if self.causes else None
        is_open = last is not None and last.cause != "unknown" and step - last.step < _EPISODE
        is_worse = any(a.severity is Severity.CRITICAL for a in alarms) and not self._was_critical
        self._was_critical |= is_worse
        since = _AFTER if is_open and head.quantity == "jump" else 0
        is_same = last is not None and step - last.step <= since
        if is_same or (is_open and not is_worse and head.monitor != EXPECTED):
            return
        if head.quantity == "loss":  # whose baseline lies where a line through older ones does
            head = replace(head, baseline=loss_before)
        if diagnose is None or self._asked[head.quantity] >= _MOST + step // _PER_DIAGNOSIS:
            self.tell(head, None)
            return
        self._asked[head.quantity] += 1
        words = {alarm.quantity for alarm in alarms}
        words |= {"not finite"} if any(not math.isfinite(a.value) for a in alarms) else set()
        found = diagnose(words)
        known = next((one for one in self.causes[::-1] if one.cause != "unknown"), None)
        if found.cause == "unknown" and known is not None:
            text = f"{found.text}; see step {known.step} ({known.cause})"
            found = found.model_copy(update={"text": text})
        is_known = ("unknown", "") if last is None else (last.cause, last.module)
        if is_open and (found.cause, found.module) in (is_known, ("unknown", "")):
            return
        self.tell(head, found)

    def __str__(self) -> str:
        if self._first is None:
            return "no alarm"
        known = {one.cause: one.step for one in self.causes[::-1] if one.cause != "unknown"}
        causes = ", ".join(f"{cause} at step {step}" for cause, step in list(known.items())[::-1])
        count = f"{self._count} alarm{'s' * (self._count > 1)}"
        return f"{count} from step {self._first.step} on; {causes or 'cause unknown'}"
