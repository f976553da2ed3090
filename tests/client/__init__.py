"""The Python interface of the cluster manager."""
