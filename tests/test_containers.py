"""What `ops/kubernetes` says is started here as it is said, but for addresses, secrets and Kubernetes itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import servers
import yaml
from plane.store_fixtures import FRESH
from servers import free_port

from holdfast.cli.worker import AS_PROCESS_1
from holdfast.client import Client

ROOT = Path(__file__).parents[1]
FILES = ROOT / "ops/kubernetes"
SECRETS = {"api-key": "a-key-of-the-test"}
MAIL_JOBS = """
from holdfast.worker import Job, Worker

worker = Worker(name="mail", slots=2)

@worker.task("mail.send")
def send(job: Job) -> str:
    return "to " + job.payload["to"]
"""


class Container(NamedTuple):
    """One of a pod's, with what is to be known of the pod."""

    spec: dict[str, Any]
    grace_s: int
    labels: dict[str, str]

    @property
    def port(self) -> int:
        [port] = self.spec["ports"]
        return int(port["containerPort"])


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FILES / name).read_text()))


def containers(name: str) -> list[Container]:
    found = []
    for document in documents(name):
        if "template" not in document.get("spec", {}):
            continue
        pod, selector = document["spec"]["template"], document["spec"]["selector"]["matchLabels"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        [container] = pod["spec"]["containers"]
        found.append(Container(container, pod["spec"]["terminationGracePeriodSeconds"], pod["metadata"]["labels"]))
    return found


class Process(NamedTuple):
    container: Container
    handle: subprocess.Popen[bytes]
    log: Path

    def wait_until(self, probe: str, ports: Mapping[int, int]) -> None:
        asked = self.container.spec[probe]["httpGet"]
        [port] = [port for port in self.container.spec["ports"] if port["name"] == asked["port"]]
        url = f"http://127.0.0.1:{ports[port['containerPort']]}{asked['path']}"
        until = time.monotonic() + 60
        while time.monotonic() < until:
            assert self.handle.poll() is None, self.log.read_text()
            with suppress(httpx2.TransportError):
                if httpx2.get(url, timeout=5, trust_env=False).status_code == 200:
                    return
            time.sleep(0.05)
        pytest.fail(f"{probe} of {self.container.spec['name']}: {self.log.read_text()}")


class Place(NamedTuple):
    """Where containers are here: what is mounted, and which port another one has."""

    folder: Path
    secrets: Mapping[str, str]
    ports: dict[int, int]

    def here(self, text: str) -> str:
        text = text.replace("0.0.0.0", "127.0.0.1").replace("//holdfast:", "//127.0.0.1:")
        text = re.sub(r":(70\d\d)$", lambda port: f":{self.ports[int(port[1])]}", text)
        return text.replace("/etc/holdfast", str(self.folder)).replace("/var/lib/holdfast", str(self.folder))

    def start(self, container: Container) -> Process:
        arguments = [self.here(argument) for argument in container.spec["args"]]
        if "--health" not in arguments:
            arguments += ["--port", str(self.ports[container.port])]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        for each in container.spec["env"]:
            source = each.get("valueFrom")
            value = self.secrets[source["secretKeyRef"]["key"]] if source else self.here(each["value"])
            environment[each["name"]] = value
        log = self.folder / f"{container.spec['name']}.log"
        command = [sys.executable, "-m", "holdfast", *arguments]
        with log.open("wb") as errors:
            return Process(container, subprocess.Popen(command, cwd=self.folder, env=environment, stderr=errors), log)


@contextmanager
def started(place: Place, wanted: list[Container]) -> Iterator[None]:
    """Until they are to end, which they must do by themselves, in their time."""
    processes: list[Process] = []
    try:
        processes += map(place.start, wanted)
        for process in processes:
            process.wait_until("livenessProbe", place.ports)
            process.wait_until("readinessProbe", place.ports)
        yield
        for process in processes:
            process.handle.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.handle.wait(process.container.grace_s) == 0, process.log.read_text()
    finally:
        for process in processes:
            process.handle.kill()
            process.handle.wait()


def place_for(folder: Path, wanted: list[Container], **secrets: str) -> Place:
    (folder / "mail_jobs.py").write_text(MAIL_JOBS)
    return Place(folder, SECRETS | secrets, {container.port: free_port() for container in wanted})


def sends_mail(place: Place) -> None:
    with Client(f"http://127.0.0.1:{place.ports[7070]}", api_key=SECRETS["api-key"]) as client:
        assert client.run("mail.send", {"to": "ann"}, timeout=60).result == "to ann"


def test_roles_and_workers_of_the_manifests_do_a_job(tmp_path: Path, running: dict[str, servers.Server | None]) -> None:
    wanted = containers("holdfast.yaml") + containers("worker.yaml")
    assert [container.spec["name"] for container in wanted] == ["gateway", "scheduler", "reconciler", "worker"]
    [settings, *_] = documents("holdfast.yaml")
    # There is no load balancer here that would have to notice anything.
    (tmp_path / "plane.toml").write_text(settings["data"]["plane.toml"].replace("notice_s = 10", "notice_s = 0"))
    with FRESH["postgres"](running) as store:
        place = place_for(tmp_path, wanted, store=store)
        with started(place, wanted):
            sends_mail(place)


def test_single_plane_of_the_manifest_does_a_job(tmp_path: Path) -> None:
    wanted = containers("single.yaml") + containers("worker.yaml")
    place = place_for(tmp_path, wanted)
    with started(place, wanted):
        sends_mail(place)
    assert (tmp_path / "plane.db").exists(), "it is not where the volume is"


@pytest.mark.parametrize("name", ["holdfast.yaml", "single.yaml"])
def test_service_leads_to_those_who_speak_http(name: str) -> None:
    [service] = [document for document in documents(name) if document["kind"] == "Service"]
    [told] = service["spec"]["ports"]
    chosen = [each for each in containers(name) if service["spec"]["selector"].items() <= each.labels.items()]

    assert [each.spec["args"][0] for each in chosen] in (["gateway"], ["up"])
    assert [port["name"] for port in chosen[0].spec["ports"]] == [told["targetPort"]]
    [worker] = containers("worker.yaml")
    [url] = [each["value"] for each in worker.spec["env"] if each["name"] == "HOLDFAST_URL"]
    assert url == f"http://{service['metadata']['name']}:{told['port']}"


def test_a_process_is_given_the_time_it_takes_to_end() -> None:
    [settings, *_] = documents("holdfast.yaml")
    plane = tomllib.loads(settings["data"]["plane.toml"])["plane"]
    for container in containers("holdfast.yaml"):
        assert plane["notice_s"] >= 2 * container.spec["readinessProbe"]["periodSeconds"]
        assert container.grace_s > plane["notice_s"] + 10, "drain_s"


def test_image_has_what_the_package_offers() -> None:
    said = (ROOT / "ops/Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [wanted] = re.findall(r"holdfast\[([a-z,]+)\]", said)
    assert set(wanted.split(",")) <= set(extras)
    assert 'ENTRYPOINT ["tini", "--", "holdfast"]' in said


IN_A_CONTAINER = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"]


def test_worker_that_is_process_1_says_what_it_does_not_do(tmp_path: Path) -> None:
    if (
        sys.platform != "linux"
        or subprocess.run([*IN_A_CONTAINER, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs leave to make a process namespace")
    (tmp_path / "mail_jobs.py").write_text(MAIL_JOBS)
    command = [sys.executable, "-m", "holdfast", "worker", "run", "mail_jobs:nobody"]

    alone = subprocess.run([*IN_A_CONTAINER, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    usual = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert alone.stderr == f"{AS_PROCESS_1}\n{usual.stderr}"
    assert (alone.returncode, usual.returncode) == (2, 2)
