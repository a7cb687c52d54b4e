"""In place of lab.gpu.worker where there is no GPU: fabric-perf moves the bytes through the plugin.

Same command line, same rows. Digests are those of what would have been put in, so that they are
the same in every run; ``FABRIC_STAND_IN=wrong`` makes one of the last round differ, ``die`` ends
the rank before it is ready.
"""

import hashlib
import json
import os
import subprocess
import sys
import time

from lab.gpu.plan import STEPS, WORLD, seed
from lab.gpu.worker import arguments
from lab.node import build_dir


def main() -> int:
    args = arguments()
    mode = os.environ.get("FABRIC_STAND_IN", "")
    if mode == "die":
        sys.exit("told to")
    native = build_dir() / "nccl_plugin"
    with args.out.open("w") as out:

        def write(row: dict[str, object]) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()

        def play(number: int, *, last: bool = False) -> None:
            for index, step in enumerate(STEPS):
                put_in = f"{seed(number % args.rounds, index, 0)} {step.name}"
                if mode == "wrong" and last and index == 1 and args.rank == 1:
                    put_in = "something else"
                digest = hashlib.sha256(put_in.encode()).hexdigest()
                write({"type": "result", "round": number, "step": index, "sha256": digest})

        play(0)
        write({"type": "ready"})
        while not args.go.exists():
            time.sleep(0.01)
        command = [native / "fabric-perf", "p2p", "--plugin", native / "libnccl-net-fabric.so"]
        command += ["--rank", str(args.rank), "--world", str(WORLD), "--verify", "full"]
        command += ["--rendezvous", f"file:{args.store}.d", "--duration", str(args.seconds or 0.5)]
        args.store.with_name(args.store.name + ".d").mkdir(exist_ok=True)
        status = subprocess.run([str(word) for word in command], check=False).returncode
        for number in range(1, args.rounds + 2):
            play(number, last=number == args.rounds + 1)
        write({"type": "end", "rounds": args.rounds + 2})
    return status


if __name__ == "__main__":
    sys.exit(main())
