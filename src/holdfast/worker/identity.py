"""Which process this is, so that its successor on the same host can prove it dead.

A worker's id is `<name>@<host>.<boot>.<pid>.<start>`: the first eight digits of the kernel's boot
id, the process id, and when the kernel started that process, with the namespace its id belongs to.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from holdfast.locks.runtime import SYSTEM

NAME_MAX = 60


class Identity(NamedTuple):
    host: str
    boot_id: str
    pid: int
    started_at: str

    def worker_id(self, name: str) -> str:
        return f"{name[:NAME_MAX]}@{self.host}.{self.boot_id[:8]}.{self.pid}.{self.started_at}"


def own_identity() -> Identity:
    pid = os.getpid()
    return Identity(_host(), SYSTEM.boot_id(), pid, find_start(pid) or "0")


def is_dead(worker: str, me: Identity) -> bool:
    """Whether that worker's process is known to run no more. In doubt it is not: then its leases run out by themselves."""
    _, _, place = worker.rpartition("@")
    parts = place.rsplit(".", 3)
    if len(parts) != 4 or parts[0] != me.host or not parts[2].isdigit():
        return False
    _, boot, pid, started_at = parts
    if boot != me.boot_id[:8]:
        # Booted since; or another machine that was set up from the same image, with its name and its machine id.
        return False
    if _namespace_of(started_at) != _namespace_of(me.started_at):
        return False  # a container beside this one: its process ids say nothing here
    return find_start(int(pid)) != started_at


def find_start(pid: int) -> str | None:
    """When the kernel started this process, and in which namespace it has this id; None if it does not run."""
    if sys.platform != "linux":
        command = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (a number)
        return re.sub(r"[^A-Za-z0-9]+", "", shown.stdout) or None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":  # dead, and not yet reaped by its parent
        return None
    return f"{fields[19]}-{_pid_namespace()}"


def _namespace_of(started_at: str) -> str:
    return started_at.partition("-")[2]


def _pid_namespace() -> str:
    return re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))


def _host() -> str:
    """The host's name, and a digest that tells machines of one name apart."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())[:20]
    return f"{name}-{digest}" if (digest := _machine()) else name


def _machine() -> str:
    try:
        return hashlib.sha256(Path("/etc/machine-id").read_bytes()).hexdigest()[:6]
    except OSError:
        return ""
