"""`python -m gpu_orchestrator.adapters.gpus.hold MIB`: take memory of the first visible device and keep it.

A foreign process on the device, for tests and demonstrations. Prints `held`; ends when its input is closed.
"""

import sys

from gpu_orchestrator.adapters.gpus import memory


def main() -> None:
    block = memory.visible().allocate(0, int(sys.argv[1]))
    block.fill(0xA5A5A5A5)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()
    block.free()


if __name__ == "__main__":
    main()
