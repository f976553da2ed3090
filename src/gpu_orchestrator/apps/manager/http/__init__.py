"""Requests from clients: the gate, the routes, the guards in front of them."""
