"""The wire: the objects we read and write on the Kubernetes API, as slim typed values. Pure."""
