"""The writes that bind a pod: device leases, claim, pod status, binding."""
