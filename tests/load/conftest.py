"""pytest skips the locust file, which has the name that locust users expect; `make load` runs it."""

collect_ignore = ["test_api_endpoints.py"]
