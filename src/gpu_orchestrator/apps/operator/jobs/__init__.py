"""The Jobs that run workloads: names, manifests, pod templates and their checks."""
