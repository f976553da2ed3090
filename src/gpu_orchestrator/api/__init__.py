"""The objects we read and write on the Kubernetes API and between our processes, as slim typed values.
Pure."""
