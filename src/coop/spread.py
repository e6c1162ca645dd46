"""Work that is spread over other machines: calls of a function, on the workers of a dask cluster.

    with Cluster("tcp://scheduler:8786") as cluster:
        trace = cluster.share(content)
        for number, result in cluster.calls(function, [(trace, 1), (trace, 2)]):
            ...

A worker that dies is no loss: the scheduler gives its calls, and what was shared with it, to
another. Without the scheduler the rest is given up. Workers need the same build of coop, so that
their results are those that this machine would find. Why dask: docs/decisions/0023.
"""

import contextlib
import hashlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from importlib import import_module
from typing import Any

from coop.report.points import engine_stamp

_PATIENCE = 30.0  # seconds until a scheduler and its first worker have to be there


_LOST = object()


class ClusterError(RuntimeError):
    """The cluster cannot be used, or is gone. The text says what to do."""


class Cluster:
    def __init__(self, address: str, patience: float = _PATIENCE) -> None:
        self.address = address
        self._patience = patience
        self._within = contextlib.ExitStack()
        self._client: Any = None

    def __enter__(self) -> "Cluster":
        try:
            dask, config = import_module("distributed"), import_module("dask.config")
        except ImportError:
            raise ClusterError(
                f"work is spread to {self.address} by dask.distributed, which is not installed. "
                "Tip: pip install 'coop-memory[cluster]'"
            ) from None
        with contextlib.ExitStack() as within:
            within.enter_context(_quiet())
            within.enter_context(config.set({"distributed.comm.timeouts.connect": self._patience}))
            self._client = self._connect(dask.Client)
            within.callback(self._close)
            self._check_workers()
            self._within = within.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._within.close()

    def share(self, content: bytes) -> Any:
        """Content for many calls, sent to each worker once. It stands for itself in their
        arguments."""
        return self._client.submit(_itself, content, key=f"coop-{hashlib.sha256(content).hexdigest()[:32]}")

    def calls(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Calls the function with each of the arguments, and gives the numbers of the calls with
        what they returned, or with the exception that they raised, as they end. Raises
        ClusterError if the scheduler is lost."""
        as_completed = import_module("distributed").as_completed
        stamp = engine_stamp()
        futures = {
            self._client.submit(_call, stamp, function, *args, pure=False, retries=0): number
            for number, args in enumerate(arguments)
        }
        done = 0
        ended = as_completed(futures, loop=self._client.loop)
        try:
            for future in ended:
                result = self._result(future)
                if result is _LOST and self._client.status == "running":  # with its worker: it is computed again
                    future.retry()
                    ended.add(future)
                    continue
                if result is _LOST:
                    raise ClusterError(f"the scheduler at {self.address} is lost after {done} of {len(futures)} calls")
                done += 1
                yield futures[future], result
        finally:
            if done < len(futures):
                with contextlib.suppress(Exception):
                    self._client.cancel(list(futures), force=True)

    def _result(self, future: Any) -> Any:
        """What the call returned or raised, or _LOST."""
        if future.status == "error":
            return self._failure(future)
        try:
            return future.result(timeout=self._patience) if future.status == "finished" else _LOST
        except (OSError, TimeoutError, CancelledError):
            return _LOST

    def _failure(self, future: Any) -> BaseException:
        from distributed.scheduler import KilledWorker

        error: BaseException = future.exception()
        if isinstance(error, KilledWorker):
            return ClusterError(
                f"{error.allowed_failures + 1} workers died of it, the last one {error.last_worker.address}"
            )
        return error

    def _connect(self, client: Callable[..., Any]) -> Any:
        where = {"scheduler_file": self.address} if self.address.endswith(".json") else {"address": self.address}
        try:
            return client(**where, timeout=self._patience, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterError(
                f"no scheduler answers at {self.address} within {self._patience:g} s ({_first_line(error)}). "
                "Tip: `dask scheduler` starts one, and tells its address"
            ) from None

    def _check_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=self._patience)
        except TimeoutError:
            raise ClusterError(
                f"the scheduler at {self.address} has no workers, and none came within {self._patience:g} s. "
                f"Tip: `dask worker {self.address} --nthreads 1 --nworkers -1`, on each machine"
            ) from None
        try:
            stamps = self._client.run(_stamp_there)
        except Exception as error:
            raise ClusterError(
                f"a worker of {self.address} cannot use coop: {_first_line(error)}. Tip: install the same coop there"
            ) from None
        for worker, stamp in stamps.items():
            if stamp != engine_stamp():
                raise ClusterError(_another_build(worker, stamp, engine_stamp()))

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=2)


def _itself(content: bytes) -> bytes:
    return content


def _stamp_there() -> str:
    return engine_stamp()


def _call(stamp: str, function: Callable[..., Any], *args: Any) -> Any:
    """On a worker. It may have come after the others were checked."""
    if stamp != engine_stamp():
        raise ClusterError(_another_build(socket.gethostname(), engine_stamp(), stamp))
    return function(*args)


def _another_build(worker: str, there: str, here: str) -> str:
    return (
        f"the worker {worker} has another build of coop ({there}, and here it is {here}), and its figures could be others. "
        "Tip: install the same wheel there"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """dask and what it stands on log what they do about lost connections. We tell it ourselves."""
    names = [
        name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("distributed", "tornado", "asyncio")
    ]
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado.application", "asyncio", *names)]
    before = [(logger, logger.disabled) for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in before:
            logger.disabled = disabled
