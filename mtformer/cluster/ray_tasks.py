"""Tasks on Ray (https://docs.ray.io): on the cores of this machine, or on a cluster of machines with shared folders.

Each task first checks that its node has this version of mtformer. An error that the user can act on names the node.
"""

import io
import logging
import os
import pickle
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout, suppress
from functools import lru_cache, partial
from typing import Any

from mtformer.errors import ConfigError, DataError, MtformerError, log, require_extra
from mtformer.version import __version__

CONNECT_SECONDS = 10
"""Maximum time to wait for a cluster."""
LOCAL = "ray"
"""Address of the cluster of RAY_ADDRESS, else of one that runs on this machine, else of one that is started."""
RETRIES = 3
"""How often Ray repeats a task whose process or node has ended."""
MAX_MESSAGE = 200
"""Maximum number of characters that are logged of a message of Ray."""
MAX_ERROR = 300
"""Maximum number of characters that are shown of an error of Ray; its end says most."""
_load = lru_cache(maxsize=1)(pickle.loads)


@contextmanager
def connect(address: str) -> Iterator[None]:
    """Connect to a Ray cluster inside the context; `address` is `ray`, or ray://HOST:PORT of a Ray client server.

    Raise ConfigError if Ray is missing, or the cluster does not answer in 10 seconds or has another version of it.
    """
    require_extra("--on ray", "ray", "ray", "grpc")
    import grpc
    import ray

    if address != LOCAL and not address.startswith("ray://"):
        raise ConfigError(f"--on {address}: not an address of Ray; use ray, or ray://HOST:PORT")
    server = os.environ.get("RAY_ADDRESS", "auto") if address == LOCAL else address
    if server != "auto":
        with grpc.insecure_channel(server.removeprefix("ray://")) as channel:
            try:
                grpc.channel_ready_future(channel).result(CONNECT_SECONDS)
            except grpc.FutureTimeoutError as error:
                raise ConfigError(
                    f"{server}: no Ray cluster answers within {CONNECT_SECONDS} seconds; start one, or give another "
                    "address with --on"
                ) from error

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here sends nothing
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(_Messages()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ray.init(None if address == LOCAL else address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of any class, for example if a node starts slowly
            hint = "a cluster with token authentication needs RAY_AUTH_MODE=token"
            raise ConfigError(f"--on {address}: {_one_line(error)} ({hint})") from error
        try:
            signal.signal(signal.SIGTERM, on_sigterm)  # `ray.init` has replaced it
            yield
        finally:
            ray.shutdown()


class _Messages(io.StringIO):
    """Logs what Ray prints to stdout, such as that a node ended and its tasks are repeated."""

    def write(self, text: str) -> int:
        for line in re.sub(r"\x1b\[\d*m", "", text).splitlines():
            if line.strip() and "[state-dump]" not in line:
                log.warning("Ray: %s", line.strip()[:MAX_MESSAGE])
        return len(text)


class RayTasks:
    """Ray tasks that apply a function to an item.

    Args:
        function: see `Workers`.
        device: each task gets a GPU on `cuda`, and on `auto` if there are GPUs.
        jobs: number of tasks that divide the CPUs of the cluster; 0: one per GPU, or per node; None: each task gets
            one CPU.
    """

    def __init__(self, function: Callable[[Any, int], Any], device: str, jobs: int | None = None) -> None:
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus = [int(node.get("CPU", 0)) for node in nodes]
        gpus = [int(node.get("GPU", 0)) for node in nodes]
        needs_gpu = device == "cuda" or (device == "auto" and sum(gpus) > 0)

        if needs_gpu:
            capacity = sum(gpus)
        elif jobs is None:
            capacity = sum(cpus)
        else:
            capacity = len(nodes)
        self.jobs = jobs or max(1, capacity)
        """Number of tasks at a time."""
        cpus_per_task = 1
        if jobs is not None:
            cpus_per_task = max(1, min(sum(cpus) // self.jobs, max(cpus)))

        self._function = ray.put(pickle.dumps(function))
        # With the default of max_calls, a process with a GPU ends after each task, and the next one loads the model.
        task = ray.remote(max_calls=0)(_make_task())
        self._task = task.options(
            scheduling_strategy="SPREAD", num_cpus=cpus_per_task, num_gpus=int(needs_gpu), max_retries=RETRIES
        )

    def submit(self, item: Any) -> "Future[Any]":
        """Start a task and return a future of its result."""
        done: Future[Any] = Future()
        ref = self._task.remote(self._function, pickle.dumps(item), os.getcwd(), __version__)
        ref.future().add_done_callback(partial(self._finish, done))
        return done

    def _finish(self, done: "Future[Any]", future: "Future[tuple[str, Any]]") -> None:
        error = future.exception()
        if error is not None:
            done.set_exception(DataError(f"a task failed on Ray: {_one_line(error)}"))
            return
        message, result = future.result()
        if not message:
            done.set_result(pickle.loads(result))
        elif result is None:
            done.set_exception(ConfigError(message))
        else:
            done.set_exception(result(message))


def _make_task() -> Callable[[bytes, bytes, str, str], tuple[str, Any]]:
    """Return the function of a task. Ray sends the code of a nested function, so it runs without mtformer too."""

    def task(function: bytes, item: bytes, folder: str, version: str) -> tuple[str, Any]:
        """Return ("", result), or an error message and the class of the error (None: mtformer is missing)."""
        import socket

        node = f"node {socket.gethostname()}"
        try:
            import mtformer
            from mtformer.cluster.ray_tasks import compute
        except ImportError:
            return f"{node}: mtformer {version} is not installed; install it on all nodes", None
        if mtformer.__version__ != version:
            return f"{node}: mtformer {mtformer.__version__} is installed; install {version} on all nodes", None
        return compute(function, item, folder, node)

    return task


def compute(function: bytes, item: bytes, folder: str, node: str) -> tuple[str, Any]:
    """Run a task on a node, and return the same as the function of `_make_task`.

    Args:
        function: the pickled function, which is called with the item and the number of threads.
        item: the pickled item.
        folder: working directory of the driver.
        node: name of the node, for messages.
    """
    with suppress(OSError):  # without this folder, relative paths are missing
        os.chdir(folder)
    try:
        result = _load(function)(pickle.loads(item), 1)
        return "", pickle.dumps(result)
    except MtformerError as error:
        return f"{node}: {error}", type(error)
    except OSError as error:
        return f"{node}: {error}", DataError


def _one_line(error: BaseException) -> str:
    """Return the message of an error, without the traceback that Ray adds."""
    cause = getattr(error, "cause", None) or error
    text = " ".join(str(cause).split())
    return text[-MAX_ERROR:]
