"""A run under watch: training, monitors, interventions and faults; and the door to it.

    with rksp.watch(model, optimizer):
        train()

    Trainer(model, args, callbacks=[rksp.watch.Callback()])  # of transformers
    Trainer(callbacks=[rksp.watch.LightningCallback()])

All are what `rksp watch -- COMMAND` is to a command: the same monitors, causes and log.
"""

from __future__ import annotations

from rksp.ground.doors import open_door

_DOOR = "rksp.watch.attach.door"
open_door(
    __name__,
    f"{_DOOR}:Watched",
    Callback=f"{_DOOR}:callback",
    LightningCallback=f"{_DOOR}:lightning_callback",
)
