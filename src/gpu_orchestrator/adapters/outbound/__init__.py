"""Requests to addresses that users name. `requests` brings a whole HTTP client: import it where used."""
