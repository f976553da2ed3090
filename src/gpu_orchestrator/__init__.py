"""Gets every GPU workload onto exactly the right GPUs, and can prove it."""

__version__ = "0.1.0"
