"""`gpu-orchestrator devices`: what GPUs this machine has, how they are connected, and what is wrong with
them."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpu_orchestrator.cli import output
from gpu_orchestrator.cli.options import AsJson

if TYPE_CHECKING:
    from gpu_orchestrator.cli.device_rows import Seen

NOTHING = (
    "No GPU found on this machine. Looked for:",
    "To try things without one, describe some: --simulate 4xL4:24GiB, or --devices-file FILE.",
)


def devices(
    *,
    topology: bool = False,
    json_: AsJson = False,
    simulate: Annotated[str, Parameter(metavar="GPUS")] = "",
    devices_file: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    simulation: Annotated[Path | None, Parameter(metavar="DIR")] = None,
) -> None:
    """Show the GPUs of this machine: their state, memory, islands and bandwidth. Needs no server.

    Parameters
    ----------
    topology
        Show how every pair of GPUs is connected, as `nvidia-smi topo -m` does.
    simulate
        Simulate GPUs instead of reading the machine's: `4`, or `4xL4:24GiB,2xH200:141GiB`.
    devices_file
        A JSON file that describes GPUs to simulate, with links, MIG instances and network adapters.
    simulation
        The folder in which simulated GPUs are kept, to see those that a worker has; by default a new one.
    """
    from gpu_orchestrator.cli import device_rows

    with tempfile.TemporaryDirectory(prefix="gpu-orchestrator-devices-") as folder:
        try:
            seen = _read(simulate, simulation or Path(folder), devices_file)
        except (ValueError, OSError) as error:
            output.fail(error, code=2)
    if json_:
        return output.show_json(device_rows.as_json(seen))
    if not seen.devices:
        first, last = NOTHING
        return output.say(first, *(f"  {note}" for note in seen.notes), last)
    output.show_table(*(device_rows.matrix(seen) if topology else device_rows.table(seen)))
    if topology:
        output.say("", *device_rows.legend(seen))
    if adapters := device_rows.fabric(seen):
        output.say("", f"network: {adapters}")
    for note in seen.notes:
        output.note(note)
    return None


def _read(simulate: str, folder: Path, devices_file: Path | None) -> "Seen":
    from gpu_orchestrator.adapters.gpus.find import find
    from gpu_orchestrator.cli.device_rows import Seen

    gpus = find(simulate, folder, devices_file=devices_file)
    try:
        listed = gpus.devices()
        return Seen(listed, gpus.readings(), gpus.links(), gpus.fabric(), gpus.notes())
    finally:
        gpus.close()
