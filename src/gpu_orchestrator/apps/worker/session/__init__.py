"""The session with the manager: connection, lease, report of devices."""
