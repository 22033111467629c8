"""The worker process: samples in over a pipe, their arrays out through shared memory."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import deque
from dataclasses import dataclass

from ocrstore.annotation import Problem
from ocrstore.building.channel import Channel
from ocrstore.building.derive import Derived, Deriver, Job, Reserve, Task
from ocrstore.building.files import SkippedPictureError
from ocrstore.building.slots import Placed, Slot, SlotName


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a worker."""

    job: Job
    slots: tuple[SlotName, ...]
    share_nbytes: int
    """What a sample may take without asking."""


@dataclass(frozen=True, slots=True)
class Order:
    """A sample to derive into a slot."""

    number: int
    slot: int
    task: Task


@dataclass(frozen=True, slots=True)
class Need:
    """A worker asks before it decodes a picture larger than its share; a `True` lets it go on."""

    number: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """A sample lies in its slot."""

    number: int
    placed: dict[str, Placed]
    derived: Derived
    """Without its columns, which are in the slot."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A picture has to be left out."""

    number: int
    problem: Problem


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker met an error that is nobody's picture's fault."""

    number: int
    message: str


def main() -> None:
    """Serve one build until its pipe ends."""
    # Ctrl-C reaches the whole process group; the build decides, and closes the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the messages have standard output for themselves: what a library prints goes elsewhere
    outgoing = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    channel = Channel(sys.stdin.buffer, outgoing)
    try:
        _serve(channel)
    except (EOFError, BrokenPipeError):
        pass  # the build is over, or was killed: so is this worker
    finally:
        channel.close_outgoing()


def _serve(channel: Channel) -> None:
    import cv2

    cv2.setNumThreads(1)  # the workers are the parallelism
    setup: Setup = channel.receive()
    slots = [Slot.attach(name) for name in setup.slots]
    deriver = Deriver(setup.job)
    waiting: deque[Order] = deque()
    while True:
        order: Order = waiting.popleft() if waiting else channel.receive()

        def reserve(nbytes: int, number: int = order.number) -> None:
            if nbytes > setup.share_nbytes:
                channel.send(Need(number, nbytes))
                # the next order may be in the pipe already, before the answer
                while isinstance(message := channel.receive(), Order):
                    waiting.append(message)

        channel.send(_work(order, deriver, reserve, slots[order.slot], setup.share_nbytes))


def _work(
    order: Order, deriver: Deriver, reserve: Reserve, slot: Slot, share_nbytes: int
) -> Done | Skipped | Failed:
    try:
        derived = deriver.derive(order.task, reserve=reserve)
        placed = slot.put(derived.columns, keep_nbytes=share_nbytes)
    except SkippedPictureError as exc:
        return Skipped(order.number, exc.problem)
    except (EOFError, BrokenPipeError):
        raise
    except Exception:  # whatever it is, the build must hear of it, with the place
        return Failed(order.number, traceback.format_exc())
    return Done(order.number, placed, derived.without_columns())
