"""The GPUs of this machine: which there are, their state, and how a process gets to see some of them.

`gpu.py` is the interface of every source; `nvml.py` asks NVIDIA's driver, `simulated.py` simulates devices.
"""
