"""`python -m ocrstore`: the command line, where the `ocrstore` command is not on the path."""

from ocrstore.cli import main

if __name__ == "__main__":
    main()
