"""The Helm chart's generated files, made from config/ and values.yaml, so that nothing is written twice.

    templates.py    which file of config becomes which template, and what values change in it
    template.py     one template: a manifest, when it is part of a release, and its edits
    cluster_manager.py  the templates of the cluster manager
    edits.py        small changes of a manifest's text; each fails if it does not find what it changes
    values.py       the keys of values.yaml with their comments
    schema.py       values.yaml and the settings of the processes  ->  values.schema.json
    readme.py       values.yaml  ->  the table in the chart's README

`make charts` writes all files. tests/scripts/test_chart.py runs it again and compares;
tests/scenarios/kube/test_chart.py compares what the chart renders with what kustomize makes of config.
"""
