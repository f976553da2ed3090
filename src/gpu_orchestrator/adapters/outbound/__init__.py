"""Requests to addresses that users name. `requests` loads a whole HTTP client: import it where it is used."""
