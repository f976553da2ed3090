"""Alerts for Prometheus and dashboards for Grafana, made from the metric names in the code.

    catalog.py      every metric of every component, with its labels, as its registry has it
    alerts.py       the alerts, as PromQL over these metrics  ->  config/monitoring/prometheus_rule.yaml
    dashboards.py   a panel for each metric                   ->  config/monitoring/dashboards/*.json

`make monitoring` writes all files. tests/scripts/test_monitoring.py parses every expression and compares its
names with the catalog; the scenarios compare the catalog with what each component shows at `/metrics`.
"""
