"""The session with the server: connection, lease, report of devices."""
