"""`Worker`: which topics a program works on, and how. Declared in a module, run by `worker.run()` or `holdfast worker`."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import inspect
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

from holdfast import tracing
from holdfast.core.family import fits
from holdfast.worker.errors import BrokenWorker

if TYPE_CHECKING:
    from holdfast.worker.supervisor import Supervisor

PLANE = "http://127.0.0.1:7070"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,59}\Z")
_NAMING = "Name it as MODULE:WORKER or FILE.py:WORKER"
_loading: ContextVar[bool] = ContextVar("holdfast_loading", default=False)
"""Whether a worker's module is being loaded: by a child, or to look at it."""
_Handler = TypeVar("_Handler", bound=Callable[[Any], Any])


class Isolation(StrEnum):
    PROCESS = "process"
    """In a child process, which is killed and reaped before its lease can expire. For everything."""
    ASYNC = "async"
    """A coroutine in the worker's own loop, cancelled on loss. For trusted code that only waits."""
    THREAD = "thread"
    """In a thread of the worker. Cannot be stopped: call `job.check()` before each effect."""


class Task(NamedTuple):
    handler: Callable[[Any], Any]
    isolation: Isolation
    is_coroutine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`slots` jobs run at once, `backlog` more may wait here; both are told to the scheduler."""

    url: str = PLANE
    name: str = "worker"
    pool: str = "default"
    slots: int = 8
    backlog: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    drain_s: float = 30.0
    """After SIGTERM: how long running jobs may take before they are handed back."""
    cancel_grace_s: float = 5.0
    """How long a cancelled handler may take to stop by itself."""
    jobs_per_child: int = 1000
    """Then a child process is replaced by a fresh one."""
    health: str = ""
    """HOST:PORT at which it answers /livez and /readyz; nowhere if empty."""
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"worker name {self.name!r}: use up to 60 letters, digits and '_.:/-'")
        if self.slots < 1 or self.backlog < 0 or self.jobs_per_child < 1:
            raise ValueError(f"worker {self.name}: slots and jobs_per_child must be at least 1, backlog at least 0")

    def described(self) -> dict[str, Any]:
        return asdict(self)


class WorkerOptions(TypedDict, total=False):
    """`Options` once more, for editors and type checkers: they see no fields through `**`."""

    name: str
    pool: str
    slots: int
    backlog: int
    labels: Mapping[str, str]
    drain_s: float
    cancel_grace_s: float
    jobs_per_child: int
    health: str
    api_key: str


class Worker:
    """Everything after `url` is a keyword of `Options`; the module that declares it runs in every child process."""

    def __init__(self, url: str = PLANE, **options: Unpack[WorkerOptions]) -> None:
        self.options = Options(url=url, **options)
        self._tasks: dict[str, Task] = {}
        self._module: str = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001  (where children find it)

    def task(self, topic: str, *, isolation: str = Isolation.PROCESS) -> Callable[[_Handler], _Handler]:
        """Declare the handler of a topic, or of a family of topics ending in `*`.

        A handler takes the job and returns its JSON result. What it raises fails the attempt,
        which is tried again unless that is `Fatal`.
        """
        if not isinstance(topic, str):
            raise TypeError(f"{topic!r} is no topic: write @worker.task('TOPIC') above the handler")
        if isolation not in list(Isolation):
            raise ValueError(f"topic {topic!r}: isolation must be one of {', '.join(Isolation)}, not {isolation!r}")
        chosen = Isolation(isolation)

        def declare(handler: _Handler) -> _Handler:
            if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
                # To call it would do nothing of what it says.
                raise ValueError(f"topic {topic!r}: a handler returns its result; this one yields")
            is_coroutine = inspect.iscoroutinefunction(handler)
            if chosen is Isolation.ASYNC and not is_coroutine:
                raise ValueError(
                    f"topic {topic!r}: isolation 'async' needs a coroutine; a function would block the loop"
                )
            if topic in self._tasks:
                raise ValueError(f"topic {topic!r} has a handler already: {self._tasks[topic].handler!r}")
            self._tasks[topic] = Task(handler, chosen, is_coroutine)
            return handler

        return declare

    def find_task(self, topic: str) -> Task | None:
        return self._tasks.get(match_topic(topic, self._tasks) or "")

    def isolations(self) -> dict[str, str]:
        """Topic → isolation: what the supervisor must know of the tasks."""
        return {topic: task.isolation.value for topic, task in self._tasks.items()}

    def run(self) -> None:
        """Work until SIGTERM or SIGINT; then finish or hand back what is running, and return."""
        if _loading.get():
            # Each child would start children of its own, without an end.
            raise BrokenWorker(
                f"worker {self.options.name}: its module runs it while it is loaded; "
                'write `if __name__ == "__main__": worker.run()`'
            )
        _run(self._supervisor)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Supervisor]:
        """Work inside of the block, in this loop. For tests and for programs that are more than a worker."""
        async with working(self._supervisor()) as supervisor:
            yield supervisor

    def _supervisor(self) -> Supervisor:
        from holdfast.worker.supervisor import Supervisor  # noqa: PLC0415  (children need none of it)

        in_children = Isolation.PROCESS in self.isolations().values()
        return Supervisor(self.options, self.isolations(), worker=self, target=self._target() if in_children else "")

    def _target(self) -> str:
        """How a child process finds this very object: `module:name`, or `file.py:name` for a script."""
        module = sys.modules.get(self._module)
        names = [name for name, value in vars(module).items() if value is self] if module is not None else []
        if module is None or not names:
            raise BrokenWorker(
                f"worker {self.options.name}: children cannot find it; assign it to a name at the top of a module"
            )
        if self._module != "__main__":
            return f"{self._module}:{names[0]}"
        if module.__spec__ is not None:  # python -m module
            return f"{module.__spec__.name}:{names[0]}"
        return f"{Path(module.__file__ or '').resolve()}:{names[0]}"


def match_topic(topic: str, known: Mapping[str, object]) -> str | None:
    """The exact name, else the longest family (`mail.*`) that it belongs to."""
    if topic in known:
        return topic
    families = [name for name in known if fits(topic, name)]
    return max(families, key=len, default=None)


def load(target: str) -> Worker:
    """The worker that `module:name` or `file.py:name` names; the name is `worker` if left out.

    Raises `BrokenWorker` if there is none of that name, and whatever the module raises."""
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "worker")
    loading = _loading.set(True)
    try:
        module = _import(place)
    finally:
        _loading.reset(loading)
    found = getattr(module, name, None)
    if not isinstance(found, Worker):
        raise BrokenWorker(f"{place}: {name!r} in it is not a Worker. {_NAMING}")
    return found


def _import(place: str) -> ModuleType:
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):  # an installed command has its own folder there instead
        sys.path.insert(0, here)
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise BrokenWorker(f"{place}: no such file. {_NAMING}")
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise BrokenWorker(f"{place}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # something that it imports itself
        raise BrokenWorker(f"{place}: no such module in this folder or on PYTHONPATH. {_NAMING}") from error


def serve(target: str, *, on_ready: Callable[[Supervisor], None] | None = None, **changes: Any) -> None:
    """What `holdfast worker module:name` does: `Worker.run`, with some options set anew. `on_ready` is called when the
    plane knows it.

    If every task has isolation `process`, the module is loaded by children only, and no code of
    the user's runs in the process that keeps the leases.
    """
    _run(lambda: _from_target(target, changes), on_ready)


@asynccontextmanager
async def serving(target: str, **changes: Any) -> AsyncIterator[Supervisor]:
    """As `serve`, inside of the block."""
    async with working(await _from_target(target, changes)) as supervisor:
        yield supervisor


async def _from_target(target: str, changes: dict[str, Any]) -> Supervisor:
    from holdfast.worker.children import describe  # noqa: PLC0415
    from holdfast.worker.supervisor import Supervisor  # noqa: PLC0415

    described, isolations = await describe(target)
    known = {name: value for name, value in changes.items() if value is not None}
    options = replace(Options(**described), **known)
    inline = set(isolations.values()) - {Isolation.PROCESS.value}
    return Supervisor(options, isolations, worker=load(target) if inline else None, target=target)


def _run(
    prepare: Callable[[], Supervisor | Awaitable[Supervisor]], on_ready: Callable[[Supervisor], None] | None = None
) -> None:
    async def announce(supervisor: Supervisor) -> None:
        await supervisor.wait_ready()
        if on_ready is not None:
            on_ready(supervisor)

    async def main() -> None:
        tracing.collect_if_configured()
        supervisor = prepare()
        if isinstance(supervisor, Awaitable):
            supervisor = await supervisor
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.drain)
        gc.freeze()  # what is here now stays; a collection that walks it delays renewals
        announcing = asyncio.create_task(announce(supervisor))
        try:
            await supervisor.run()
        finally:
            announcing.cancel()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


@asynccontextmanager
async def working(supervisor: Supervisor) -> AsyncIterator[Supervisor]:
    """It works inside of the block, in this loop, and has ended after it."""
    running = asyncio.create_task(supervisor.run())
    ready = asyncio.create_task(supervisor.wait_ready())
    await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        if not running.done():
            yield supervisor
    finally:
        supervisor.drain()
        await running


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415  (only where it exists)

    return uvloop.new_event_loop
