"""The GPUs of this machine: which there are, how they are now, how a process is shown some of them.

`gpu.py` says what every source offers; `nvml.py` asks NVIDIA's driver, `simulated.py` plays others.
"""
