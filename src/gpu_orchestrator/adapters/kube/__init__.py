"""The one door to the API server: configuration, client, watch, election, events and the work queue."""
