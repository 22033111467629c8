"""The benchmark suite: ocrstore side by side with what else people load pictures with.

    python -m tools.bench --quick       a look at everything, in minutes
    python -m tools.bench               all cells, three rounds

`cell.py` and `peers/` run in the peers' own virtual environments: the standard library, numpy and
torch are all they may count on.
"""
