"""A member of a gang: meets all others at rank 0, says so in a file, stays for a while, and prints the sum of
all ranks.

    python gang_program.py JOURNAL SECONDS [RANK THAT FAILS, IN THE FIRST ATTEMPT]
"""

import json
import os
import socket
import sys
import time

RANK, SIZE, ATTEMPT = (int(os.environ[f"GANG_{name}"]) for name in ("RANK", "SIZE", "ATTEMPT"))
WITHIN_S = 60.0


def first() -> int:
    """Wait for all others, add up their ranks, and tell them."""
    with socket.create_server((os.environ["GANG_ADDRESS"], int(os.environ["GANG_PORT"]))) as listening:
        listening.settimeout(WITHIN_S)
        others = [listening.accept()[0] for _ in range(SIZE - 1)]
        total = sum(int.from_bytes(each.recv(4), "big") for each in others)
        for each in others:
            each.sendall(total.to_bytes(4, "big"))
            each.close()
    return total


def other() -> int:
    until = time.monotonic() + WITHIN_S
    while True:
        try:
            at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            with socket.create_connection(at, WITHIN_S) as connected:
                connected.sendall(RANK.to_bytes(4, "big"))
                return int.from_bytes(connected.recv(4), "big")
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def note(word: str) -> None:
    entry = {"at": time.monotonic(), "word": word, "gang": os.environ["GANG_ID"], "rank": RANK}
    with open(sys.argv[1], "a") as journal:
        journal.write(json.dumps({**entry, "attempt": ATTEMPT, "pid": os.getpid()}) + "\n")


note("began")
total = first() if RANK == 0 else other()
note("met")
time.sleep(float(sys.argv[2]))
if len(sys.argv) > 3 and int(sys.argv[3]) == RANK and ATTEMPT == 1:
    sys.exit("rank fails once")
note("ends")
sys.stdout.write(f"{total}\n")
