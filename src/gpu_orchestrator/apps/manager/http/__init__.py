"""HTTP and WebSocket: the gate, the guards of the routes, the routes, and their documentation."""
