"""The GPUs of this machine: the list, their links and state, and the environment that makes some visible to a
process.

`gpu.py` is the interface of every source; `find.py` chooses one. `nvml.py` reads NVIDIA's driver
(`nvml_calls`, `nvml_device`, `nvml_reading`, `nvml_links`, `xids`), `amd.py` AMD's (`amd_sysfs`, `amd_smi`),
`machine.py` joins both; `simulated.py` simulates devices that `described.py` reads. `fabric.py`, `pci.py`,
`sysfs.py` and `numbers.py` serve all. `cuda.py`, `memory.py` and `hold.py` are for processes that work on
devices.
"""
