"""All threads of a process above others, those to come too, and back. With and without leave."""

import json
import os
import subprocess
import sys

CODE = """
import json, os, threading
from fabricd.process import realtime

def policies():
    return [os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")]

ended = threading.Event()
threads = [threading.Thread(target=ended.wait) for _ in range(3)]
for thread in threads[:2]:
    thread.start()
why = realtime.enter()
threads[2].start()
above = policies()
realtime.leave()
left = policies()
ended.set()
print(json.dumps([why, above, left]))
"""


def test_all_threads_or_none():
    done = subprocess.run(
        [sys.executable, "-c", CODE], check=True, capture_output=True, text=True, timeout=60
    )
    why, above, left = json.loads(done.stdout)
    assert len(above) == 4
    assert set(above) == ({os.SCHED_OTHER} if why else {os.SCHED_RR})
    assert set(left) == {os.SCHED_OTHER}
