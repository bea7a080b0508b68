"""A worker in plain Python, with nothing of Holdfast installed: `python worker.py URL [late]`."""

import json
import sys
import threading
import time
import urllib.error
import urllib.request

PLANE, LATE = sys.argv[1], "late" in sys.argv  # "late" stops renewing, to be refused
ME = "plain-worker-1"


def say(verb: str, **words: object) -> dict:
    body = json.dumps({"worker": ME, **words}).encode()
    request = urllib.request.Request(f"{PLANE}/v1/work/{verb}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=40) as reply:
        return json.load(reply)


def keep(attempt: dict, every_s: float, done: threading.Event) -> None:
    while not done.wait(every_s):
        [standing] = say("renew", attempts=[attempt])["attempts"]
        if standing["status"] != "ok" or standing["cancel"]:
            return  # a better worker stops its work here


say("hello", name="plain", topics=["shout"], slots=1)
[delivery] = say("claim", wait_s=30, start=True)["deliveries"]
attempt, done = {"job_id": delivery["job_id"], "fence": delivery["fence"]}, threading.Event()
if not LATE:
    threading.Thread(target=keep, args=(attempt, delivery["lease_s"] / 3, done), daemon=True).start()
time.sleep(delivery["payload"].get("seconds", 0))
done.set()
try:
    result = delivery["payload"]["text"].upper()
    print(say("complete", outcomes=[{**attempt, "outcome": "succeeded", "result": result}]))
except urllib.error.HTTPError as refused:
    print(refused.code, json.load(refused)["code"])
