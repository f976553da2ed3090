"""A real node for a cluster: kubelet, containerd and runc on this machine, in a mount namespace of their own.

    with cluster.real_node() as node:
        cluster.api.request("POST", ".../pods", {..., "spec": {**spec, **node.pin}})

In reading order:

- machine:    can this machine run one, and if not, why
- node:       RealNode: starts the parts, waits until the Node is Ready, ends them
- namespace:  the mounts that only the node sees; ended by the kernel with its last process
- cgroups, network:  what the kernel does not end by itself, named after the guard's mark (see watchdog.py)
- services:   what kube-proxy does, without changing this machine
- containerd, kubelet:  their configuration
- images, python_image:  container images, made from files of this machine
- runc:       the one on PATH, or Debian's package
"""
