"""The processes of one torchrun, or `accelerate launch`, that share the runs of a ladder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rksp.ground.errors import InputError

_WAIT = timedelta(days=2)  # for the longest run of another rank; a dead one ends the others


@dataclass(slots=True)
class Ranks:
    """This process among all, which train for themselves and tell each other what they did.

    They talk through the store of the launcher and make no process group: training would take one
    for replicas of a single run.

    Attributes:
        rank: Of this process, from 0.
        count: Of the processes.
        device_number: Which GPU of its machine is this process's own.
    """

    rank: int = 0
    count: int = 1
    device_number: int | None = None
    _store: Any = field(default=None, repr=False)
    _round: int = 0

    @classmethod
    def launched(cls) -> Ranks:
        """Return the processes that a launcher started; one alone without a launcher."""
        numbers = {name: os.environ.get(name, "1") for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
        for name, text in numbers.items():
            if not text.isdecimal():
                raise InputError(f"{name} is {text!r}, which no launcher sets; unset it.")
        if int(numbers["WORLD_SIZE"]) < 2:
            return cls()
        from torch.distributed import rendezvous

        store, rank, count = next(rendezvous("env://"))
        store.set_timeout(_WAIT)
        number = int(os.environ.get("LOCAL_RANK", rank))
        return cls(rank=rank, count=count, device_number=number, _store=store)

    def place(self, device: str) -> str:
        """Return the device of this process: of several GPUs its own."""
        is_shared = self.device_number is not None and device == "cuda"
        return f"cuda:{self.device_number}" if is_shared else device

    def told(self, said: Any) -> list[Any]:
        """Tell all ranks something, as JSON, and return what every rank says, in their order.

        Every rank calls it equally often.
        """
        if self._store is None:
            return [said]
        self._round += 1
        keys = [f"rksp/{self._round}/{rank}" for rank in range(self.count)]
        self._store.set(keys[self.rank], json.dumps(said))
        found = [json.loads(self._store.get(key)) for key in keys]
        if self._store.add(f"rksp/{self._round}/heard", 1) == self.count:
            self._store.set(f"rksp/{self._round}/done", "1")
        if self.rank == 0:  # it may hold the store, which must outlive the others' questions
            self._store.wait([f"rksp/{self._round}/done"])
        return found
