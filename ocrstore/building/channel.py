"""Messages between the build and its workers: length-prefixed pickles over a pair of pipes.

Both ends are this program, started by itself; nothing that a pickle says comes from a file.
"""

from __future__ import annotations

import pickle
import struct
from contextlib import suppress
from typing import IO, Any

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end of a connection; for one reading and one writing thread."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, message: Any) -> None:
        """Send a message; OSError if the other end is gone."""
        data = pickle.dumps(message, protocol=5)
        self._outgoing.write(_LENGTH.pack(len(data)) + data)
        self._outgoing.flush()

    def receive(self) -> Any:
        """Wait for a message; EOFError when the other end is gone, even within a message."""
        (nbytes,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(nbytes))

    def close_outgoing(self) -> None:
        """Say that there will be no more messages."""
        with suppress(OSError):  # the other end is gone already, which is what was to be told
            self._outgoing.close()

    def _exactly(self, nbytes: int) -> bytes:
        data = self._incoming.read(nbytes)
        if len(data) != nbytes:
            raise EOFError("the other end is gone")
        return data
