"""Make the shards of a data set by the tasks of a Ray cluster (extra `ray`).

A task makes one shard. It is given names and returns a few hundred bytes; pixels never pass through
Ray's object store. Ray runs a task of a machine or process that died again, elsewhere.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from ocrstore.building.run import BuildProgress, Options
from ocrstore.building.shard import Failed, Made, ShardJob, build_shard
from ocrstore.errors import MissingPackageError, OCRStoreError, SchemaError

_RETRIES = 3
"""How often a task is run again because its machine or process died."""
_SECONDS = 0.5
"""Progress is told and shown so often."""


def run_on_ray(
    jobs: Sequence[ShardJob], options: Options, *, address: str | None = None
) -> Iterator[Made | Failed]:
    """Make shards, one in each task; yield them as they are finished.

    Every machine of the cluster has ocrstore, and source and data set under the same paths.

    Args:
        jobs: The shards.
        options: As for a local build; each task uses one core.
        address: Of the cluster; by default that of the environment variable RAY_ADDRESS, else one
            that runs on this machine, else a new one on this machine alone.
    """
    ray = _import_ray()
    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError) as exc:
            raise SchemaError(f"no Ray cluster at {address or 'RAY_ADDRESS'}: {exc}") from exc
    try:
        # Ray prints about processes that died to standard output, which is for the result
        with redirect_stdout(sys.stderr):
            yield from _run(ray, jobs, options)
    finally:
        if mine:
            ray.shutdown()  # ends the tasks of this build, too


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as exc:
        raise MissingPackageError(
            "builds on Ray need the package ray: pip install 'ocrstore[ray]'"
        ) from exc
    return ray


def _run(ray: Any, jobs: Sequence[ShardJob], options: Options) -> Iterator[Made | Failed]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    progress = ray.remote(num_cpus=0, scheduling_strategy=here)(_Progress).remote()
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_make)
    # the cores of a machine are divided by Ray: a task is one process
    alone = replace(options, workers=0, progress=None, measuring=None)
    waiting = {task.remote(replace(job, options=alone), progress): job for job in jobs}
    careful: set[str] = set()
    total = sum(len(job.source) for job in jobs)
    finished = 0
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=_SECONDS)
        for ref in done:
            job = waiting.pop(ref)
            try:
                outcome: Made | Failed = ray.get(ref)
            except ray.exceptions.RayTaskError as exc:
                if not isinstance(exc.cause, OCRStoreError):
                    raise
                outcome = Failed(job.bucket, str(exc.cause))
            except ray.exceptions.RayError as exc:
                if job.bucket not in careful:
                    # probably a picture that crashes its decoder: a process of its own names it
                    careful.add(job.bucket)
                    own_process = replace(job, options=replace(alone, workers=1))
                    waiting[task.remote(own_process, progress)] = job
                    continue
                why = str(exc).strip().partition("\n")[0]
                outcome = Failed(job.bucket, f"its process died again and again: {why}")
            finished += len(job.source)
            yield outcome
        if options.progress is not None:
            told = ray.get(progress.read.remote())
            begun = sum(told[job.bucket].done for job in waiting.values() if job.bucket in told)
            lost = sum(now.lost for now in told.values())
            notes = sum(now.notes for now in told.values())
            options.progress(BuildProgress(finished + begun, total, lost, notes))


def _make(job: ShardJob, progress: Any) -> Made:
    """Make a shard in a task."""
    told = time.monotonic()

    def tell(done: BuildProgress) -> None:
        nonlocal told
        if time.monotonic() - told > _SECONDS:
            told = time.monotonic()
            progress.tell.remote(job.bucket, done)

    return build_shard(replace(job, options=replace(job.options, progress=tell)))


class _Progress:
    """An actor that knows how far the tasks are; a task that is run again begins anew."""

    def __init__(self) -> None:
        self._told: dict[str, BuildProgress] = {}

    def tell(self, bucket: str, done: BuildProgress) -> None:
        self._told[bucket] = done

    def read(self) -> dict[str, BuildProgress]:
        return self._told
