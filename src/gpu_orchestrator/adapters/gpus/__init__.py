"""The GPUs of this machine: the list, their state, and the environment that makes some visible to a process.

`gpu.py` is the interface of every source; `nvml.py` reads NVIDIA's driver, `simulated.py` simulates devices.
"""
