"""Running commands in this process."""

import pytest

from ocrstore import cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line as the shell would; returns exit code, standard output and error."""
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["ocrstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run
