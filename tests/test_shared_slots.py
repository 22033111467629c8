"""Slots of shared memory: taken by a worker, freed when the parent's last array is gone."""

import gc
import os
from dataclasses import replace

import numpy as np
import pytest

from ocrstore import shared_slots
from ocrstore.shared_slots import PAGE, SlotReader, SlotWriter, Ticket, needed_nbytes, place

needs_memory_files = pytest.mark.skipif(
    not shared_slots.supported, reason="the system has no anonymous memory files"
)


@pytest.fixture(params=["anonymous", "folder"])
def writer(request, tmp_path):
    """A writer on each kind of memory."""
    if request.param == "anonymous" and not shared_slots.supported:
        pytest.skip("the system has no anonymous memory files")
    return SlotWriter(folder=tmp_path if request.param == "folder" else None)


def test_a_slot_is_busy_until_its_last_view_is_gone(writer):
    """Views of views keep a slot; without them the next call takes it again."""
    reader = SlotReader(os.getpid())
    first, memory = writer.take(1000)
    memory[:3] = b"abc"
    view = reader.receive(first)[1:].view(np.uint8).reshape(3, -1)[0, :2]
    assert view.tobytes() == b"bc"
    second, _ = writer.take(1000)
    assert second.slot == 1
    del view
    assert writer.take(1000)[0].slot == 0


def test_slots_grow(writer):
    """A slot that is too small grows, and the parent maps it anew."""
    reader = SlotReader(os.getpid())
    small, _ = writer.take(10)
    reader.receive(small)
    large, memory = writer.take(100_000)
    assert large.slot == small.slot
    memory[99_999] = 7
    assert reader.receive(large)[-1] == 7


def test_a_free_slot_counts_with_the_size_it_grows_to(writer):
    """Else many small slots would grow, one after the other, beyond the limit of all."""
    reader = SlotReader(os.getpid())
    tickets = [writer.take(PAGE)[0] for _ in range(3)]
    assert writer.has_room(PAGE, 8 * PAGE) and not writer.has_room(PAGE, 8 * PAGE - 1)
    reader.receive(tickets[1])
    assert writer.has_room(PAGE, 6 * PAGE)
    assert writer.has_room(3 * PAGE, 8 * PAGE) and not writer.has_room(3 * PAGE, 8 * PAGE - 1)
    writer.take(3 * PAGE)
    assert sum(len(slot.memory) for slot in writer._slots) == 8 * PAGE


@needs_memory_files
def test_slots_shrink():
    """What one large sample took is returned to the system."""
    writer, reader = SlotWriter(keep_nbytes=50_000), SlotReader(os.getpid())
    for nbytes, wanted in ((10, PAGE), (2_000_000, 2_000_000), (40_000, 40_000), (10, 40_000)):
        ticket, _ = writer.take(nbytes)
        assert ticket.slot == 0
        assert os.fstat(ticket.file).st_size == PAGE + -(-wanted // PAGE) * PAGE
        reader.receive(ticket)


@needs_memory_files
def test_unused_slots_shrink():
    """Large slots that were needed at once are returned when one of them is enough."""
    writer, reader = SlotWriter(keep_nbytes=50_000), SlotReader(os.getpid())
    first, second = (writer.take(2_000_000)[0] for _ in range(2))
    for ticket in (first, second):
        reader.receive(ticket)  # and free again
    again, _ = writer.take(2_000_000)
    assert again.slot == first.slot and os.fstat(second.file).st_size == PAGE
    held = reader.receive(again)
    grown, memory = writer.take(2_000_000)
    memory[1_999_999] = 7
    assert grown.slot == second.slot and reader.receive(grown)[-1] == 7 and len(held) == 2_000_000


def test_nothing_fits_into_an_empty_slot(writer):
    """Arrays without elements need no room."""
    placed = place({"a": (np.dtype("f4"), (0, 3))})
    ticket, _ = writer.take(needed_nbytes(placed.values()))
    assert placed["a"].array(SlotReader(os.getpid()).receive(ticket)).shape == (0, 3)


def test_arrays_are_aligned():
    """Arrays lie behind one another, each at a multiple of 64 bytes."""
    placed = place(
        {"a": (np.dtype("u1"), (65,)), "b": (np.dtype("f8"), ()), "c": (np.dtype("f2"), (3, 2))}
    )
    assert [at.offset for at in placed.values()] == [0, 128, 192]
    assert needed_nbytes(placed.values()) == 204


@needs_memory_files
def test_an_ended_worker_is_named():
    """A slot whose worker has ended gives an error that says so; another file is not taken."""
    with pytest.raises(RuntimeError, match=r"worker process 4194309 has ended"):
        shared_slots.receive(Ticket("1-ab", 2**22 + 5, 0, 3, 4096))
    mine, _ = SlotWriter().take(100)
    with pytest.raises(RuntimeError, match=r"worker process .* has ended|is not the slot"):
        shared_slots.receive(mine)  # its writer is gone, and its file with it
    writer = SlotWriter()
    mine, _ = writer.take(100)
    for wrong in (replace(mine, writer="other"), replace(mine, nbytes=10**6)):
        with pytest.raises(RuntimeError, match="is not the slot"):
            SlotReader(mine.pid).receive(wrong)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_frees_nothing(writer):
    """The child's copy of an array ends without freeing the parent's slot."""
    array = SlotReader(os.getpid()).receive(writer.take(100)[0])
    pid = os.fork()
    if not pid:
        del array
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    assert writer.take(100)[0].slot == 1
    assert len(array) == 100
