"""Which pictures a terminal can show, found out from its environment and, if need be, by asking."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

KITTY, ITERM, SIXEL, BLOCKS = "kitty", "iterm", "sixel", "blocks"
_SIXEL_TERMS = ("mlterm", "foot", "contour", "yaft", "sixel")
_ANSWER_SECONDS = 0.25


def detect(environment: Mapping[str, str], *, ask: bool = True) -> str:
    """Name the best way to show a picture; call it only if the output is a terminal.

    Inside tmux and screen the outer terminal's variables say nothing, so only asking counts.
    """
    get = environment.get
    term, program = get("TERM", ""), get("TERM_PROGRAM", "")
    multiplexed = bool(get("TMUX") or get("STY")) or term.startswith(("screen", "tmux"))
    if not multiplexed:
        if get("KITTY_WINDOW_ID") or term == "xterm-kitty" or "ghostty" in (program, term[6:]):
            return KITTY
        if program in ("iTerm.app", "WezTerm", "mintty") or get("LC_TERMINAL") == "iTerm2":
            return ITERM
        if get("KONSOLE_VERSION", "").isdigit() and int(get("KONSOLE_VERSION", "0")) >= 220400:
            return KITTY
        if any(name in term for name in _SIXEL_TERMS):
            return SIXEL
    if ask and term not in ("", "dumb", "linux") and _answers_sixel():
        return SIXEL
    return BLOCKS


def cell_pixels() -> tuple[int, int]:
    """Return the (height, width) of a character cell in pixels; a usual one if nobody says."""
    try:
        import fcntl
        import struct
        import termios

        packed = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns, wide, high = struct.unpack("HHHH", packed)
        if rows and columns and wide and high:
            return high // rows, wide // columns
    except (ImportError, OSError, ValueError):
        pass
    return 20, 10


def _answers_sixel() -> bool:
    """Ask for the terminal's attributes (DA1); 4 among them means sixel."""
    answer = _ask(b"\x1b[c")
    start = answer.find(b"\x1b[?")
    end = answer.find(b"c", start)
    return start >= 0 and b"4" in answer[start + 3 : end].split(b";")


def _ask(question: bytes) -> bytes:
    """Send a question to the terminal and read what it answers within a moment."""
    try:
        import select
        import termios
        import tty

        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except (ImportError, OSError):
        return b""
    try:
        before = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor, termios.TCSANOW)
            os.write(descriptor, question)
            answer = b""
            while not answer.endswith(b"c") and len(answer) < 256:
                ready, _, _ = select.select([descriptor], [], [], _ANSWER_SECONDS)
                if not ready:
                    break
                answer += os.read(descriptor, 64)
            return answer
        finally:
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
    except (OSError, termios.error):
        return b""
    finally:
        os.close(descriptor)
