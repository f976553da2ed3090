"""How many files and connections this process may have open: the soft limit is often 1,024, the hard one far
more."""

import resource


def raise_limit() -> int:
    """Raise the soft limit to the hard limit; return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # some systems refuse "unlimited"
            return soft
    return hard if hard != resource.RLIM_INFINITY else MANY


MANY = 1 << 20
