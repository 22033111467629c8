"""The command `ocrstore`, and `python -m ocrstore` where it is not on the path."""

from ocrstore.interrupts import quick_exit


def main() -> None:
    """Import the command line, which takes a moment, and run it."""
    with quick_exit():
        from ocrstore.cli import main as run
    run()


if __name__ == "__main__":
    main()
