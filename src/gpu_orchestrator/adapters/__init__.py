"""IO and nothing else: each adapter is the only connection between the pure rooms and one outside system."""
