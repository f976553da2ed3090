"""What the kubelet of this node says over its own sockets."""
