"""A fake of `torch.cuda` on the CPU, in which what may happen late does happen late.

- A stream is a thread that does its work in order, each piece after a random delay.
- A copy from page-locked memory that is not waited for reads its source when its turn comes. A copy
  from pageable memory reads at once, and is counted: there the driver synchronises.
- Device memory comes from a caching allocator with a pool for each stream: a freed block is used
  again at once on its stream, unless `record_stream` named another stream that is not done yet.
- Every thread has a current device, 0 at first. What makes a context on a device is noted.
- `torch.cuda.stream` is torch's own Python code.

Limits: no kernels but `Fake.read`; operations on device tensors see the memory as it is now;
page-locked memory is never freed; a context is noted where the CUDA runtime is known to make one
(setting a device, a stream on it, page-locked memory), not where the driver does; no graphs, no
peer copies, no errors of the device.
"""

from __future__ import annotations

import queue
import random
import threading
import time
import weakref
from collections import defaultdict

import torch

_DISABLED = torch._C._disabled_torch_function_impl


class DeviceTensor(torch.Tensor):
    """Memory of the fake device; `raw` is the same memory as an ordinary tensor."""

    __torch_function__ = _DISABLED
    fake: Fake
    raw: torch.Tensor
    block: Block

    @property
    def device(self):
        """The device that it is on."""
        return self.block.stream.device

    def detach(self):
        """Return the tensor: it has no gradient."""
        return self

    def cpu(self):
        """Wait for the current stream, and return a copy."""
        self.fake.waits += 1
        self.fake.current_stream(self.device).synchronize()
        return self.raw.clone()


class Block:
    """A piece of device memory, allocated on a stream."""

    def __init__(self, stream, nbytes):
        self.stream = stream
        self.memory = torch.zeros(nbytes, dtype=torch.uint8)
        self.used_on = set()


class Event:
    """A point in a stream."""

    fake: Fake | None = None

    def __init__(self, **_):
        self.reached = threading.Event()
        self.reached.set()

    def record(self, stream):
        """Be reached when the stream has done what it has now."""
        self.reached = threading.Event()
        stream.work.put((0.0, self.reached.set))

    def synchronize(self):
        """Let the host wait, which makes a context on the device of this thread."""
        if self.fake is not None:
            self.fake.contexts.add(self.fake.current_device())
        assert self.reached.wait(60), "a stream of the fake hangs"


class Fake:
    """The state of the fake device; `install` puts it in place of torch's."""

    def __init__(self, *, devices=2, seed=0):
        self.random = random.Random(seed)
        self.copy_seconds = 0.002
        self.kernel_seconds = 0.008
        """The most that each takes. The loop does not wait, so it is far ahead of slow kernels."""
        self.contexts = set()
        """Devices on which a context was made."""
        self.waits = 0
        """Copies for which the host waited."""
        self.pinned = {}
        self.reserved = 0
        """Bytes of device memory in all pools."""
        self.streams = []
        self._lock = threading.RLock()
        self._pools = defaultdict(list)
        self._pending = []
        self._local = threading.local()
        fake = self

        class Stream:
            def __init__(self, device=None, **_):
                index = None if device is None else torch.device(device).index
                self.device = torch.device(
                    "cuda", fake.current_device() if index is None else index
                )
                self.work = queue.SimpleQueue()
                fake.streams.append(self)
                threading.Thread(target=self._run, daemon=True, name="fake-stream").start()

            def _run(self):
                while (job := self.work.get()) is not None:
                    time.sleep(job[0])
                    job[1]()
                    del job  # what it refers to must not wait for the next one

            def wait_event(self, event):
                self.work.put((0.0, event.reached.wait))

            def synchronize(self):
                event = Event()
                event.record(self)
                event.synchronize()

        self.Stream = Stream
        self._default = [Stream(f"cuda:{index}") for index in range(devices)]

    def close(self):
        """End the threads of the streams."""
        for stream in self.streams:
            stream.work.put(None)

    # the current device and the current stream of a thread

    def _state(self):
        if not hasattr(self._local, "device"):
            self._local.device, self._local.streams = 0, list(self._default)
        return self._local

    def current_device(self):
        """Return the index of this thread's device."""
        return self._state().device

    def set_device(self, device):
        """Choose this thread's device; makes a context."""
        self._state().device = device if isinstance(device, int) else torch.device(device).index
        self.contexts.add(self.current_device())

    def exchange_device(self, index):
        """Choose a device and return the one before, as torch does inside of `with device(...)`."""
        before = self.current_device()
        self.set_device(index)
        return before

    def maybe_exchange_device(self, index):
        """Do the same without making a context."""
        before, self._state().device = self.current_device(), index
        return before

    def current_stream(self, device=None):
        """Return this thread's stream of a device."""
        index = None if device is None else torch.device(device).index
        return self._state().streams[self.current_device() if index is None else index]

    def set_stream(self, stream):
        """Choose a stream, and with it its device."""
        self._state().streams[stream.device.index] = stream
        self.set_device(stream.device)

    # memory

    def pin(self, tensor):
        """Make the memory of a CPU tensor page-locked; allocating it makes a context."""
        self.contexts.add(self.current_device())
        storage = tensor.untyped_storage()
        self.pinned[storage.data_ptr()] = storage  # kept, so that no other memory has its address
        return tensor

    @property
    def pinned_nbytes(self):
        """Return how many bytes were page-locked."""
        return sum(storage.nbytes() for storage in self.pinned.values())

    def is_pinned(self, tensor):
        """Return whether a tensor is in page-locked memory."""
        if tensor.device.type != "cpu":
            return False
        return tensor.untyped_storage().data_ptr() in self.pinned

    def _allocate(self, like, stream):
        count = like.numel() * like.element_size()
        with self._lock:
            for block, events in list(self._pending):
                if all(event.reached.is_set() for event in events):
                    self._pending.remove((block, events))
                    self._pools[block.stream].append(block)
            fitting = [b for b in self._pools[stream] if len(b.memory) == count]
            if fitting:
                block = fitting[0]
                self._pools[stream].remove(block)
                block.used_on = set()
            else:
                block = Block(stream, count)
                self.reserved += count
        raw = torch.empty(0, dtype=like.dtype)
        raw.set_(block.memory.untyped_storage(), 0, like.shape, like.stride())
        tensor = raw.as_subclass(DeviceTensor)
        tensor.fake, tensor.raw, tensor.block = self, raw, block
        weakref.finalize(tensor, self._free, block).atexit = False
        return tensor

    def _free(self, block):
        with self._lock:
            events = [Event() for _ in block.used_on]
            for event, stream in zip(events, block.used_on, strict=True):
                event.record(stream)
            if events:
                self._pending.append((block, events))
            else:
                self._pools[block.stream].append(block)

    def record_stream(self, tensor, stream):
        """Keep a block after it was freed until a stream has done what it has then."""
        if stream is not tensor.block.stream:
            tensor.block.used_on.add(stream)

    # work

    def enqueue(self, stream, action, seconds):
        """Do something on a stream, after all that it has to do, and a little later."""
        with self._lock:
            delay = self.random.uniform(0.2, 1.0) * seconds
        stream.work.put((delay, action))

    def copy_to(self, tensor, device, non_blocking):
        """Copy a tensor to the device on the current stream of this thread."""
        stream = self.current_stream(device)
        self.contexts.add(stream.device.index)
        late = non_blocking and self.is_pinned(tensor)
        source = tensor.detach() if late else tensor.detach().clone()
        target = self._allocate(tensor, stream)
        raw = target.raw
        self.enqueue(stream, lambda: raw.copy_(source), self.copy_seconds)
        if not late:
            self.waits += 1
        if not non_blocking:
            stream.synchronize()
        return target

    def read(self, tensor, then):
        """Launch a kernel that reads a device tensor; `then` gets what it has read."""
        raw = tensor.raw  # as a kernel: the address, no reference to the tensor
        stream = self.current_stream(tensor.device)
        self.enqueue(stream, lambda: then(raw.clone()), self.kernel_seconds)

    def install(self, monkeypatch):
        """Replace the parts of torch that the package uses, and those that these use."""
        monkeypatch.setattr(Event, "fake", self)
        plain_to, plain_empty, plain_like = torch.Tensor.to, torch.empty, torch.empty_like
        plain_copy = torch.Tensor.copy_

        def copy(target, source, non_blocking=False):
            if not isinstance(source, DeviceTensor):
                return plain_copy(target, source)
            assert non_blocking and self.is_pinned(target), "the host would wait for this copy"
            raw, stream = source.raw, self.current_stream(source.device)
            self.enqueue(stream, lambda: plain_copy(target, raw), self.copy_seconds)
            return target

        def to(tensor, *args, **kwargs):
            where = kwargs.get("device", args[0] if args else None)
            if isinstance(where, (str, torch.device)) and torch.device(where).type == "cuda":
                return self.copy_to(tensor, where, kwargs.get("non_blocking", False))
            return plain_to(tensor, *args, **kwargs)

        def empty(*args, pin_memory=False, **kwargs):
            made = plain_empty(*args, **kwargs)
            return self.pin(made) if pin_memory else made

        def empty_like(*args, pin_memory=False, **kwargs):
            made = plain_like(*args, **kwargs)
            return self.pin(made) if pin_memory else made

        for target, names in {
            torch: {"empty": empty, "empty_like": empty_like},
            torch.Tensor: {
                "to": to,
                "copy_": copy,
                "is_pinned": lambda tensor: self.is_pinned(tensor),
                "pin_memory": lambda tensor: self.pin(tensor.clone()),
                "record_stream": lambda tensor, stream: self.record_stream(tensor, stream),
            },
            torch.accelerator: {"is_available": lambda: True},
            torch.cuda: {
                "Stream": self.Stream,
                "Event": Event,
                "current_device": self.current_device,
                "current_stream": self.current_stream,
                "is_available": lambda: True,
                "set_device": self.set_device,
                "set_stream": self.set_stream,
                "_exchange_device": self.exchange_device,
                "_maybe_exchange_device": self.maybe_exchange_device,
            },
        }.items():
            for name, value in names.items():
                monkeypatch.setattr(target, name, value)
