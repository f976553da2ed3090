"""All I/O: each adapter is the only connection between the pure packages and one outside system."""
