"""IO and nothing else: each adapter is the one door between the pure rooms and one thing outside."""
