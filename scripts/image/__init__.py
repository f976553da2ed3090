"""The image without a daemon: the steps of the Dockerfile, on a base of Debian packages, as an OCI layout.

    dockerfile.py   the text of the Dockerfile  ->  stages and their steps (pure)
    plan.py         steps and the files they read  ->  keys under which results are kept
    packages.py     which Debian packages, of which version
    base.py         Debian packages  ->  the folder that takes the place of the Dockerfile's BASE
    perform.py      one step: files are copied, a command runs in a root folder of its own
    build.py        all steps, of which only those whose inputs changed are performed
    layer.py        a folder  ->  a layer as tar: sorted, without times and names of users
    oci.py          layers and configuration  ->  an OCI layout in one tar file

`make docker-build` uses it where there is neither docker nor podman.
tests/scenarios/kube/test_real_release.py runs what it makes on a real node; decision 0022 has the reasons.
"""
