"""How long tests wait for an expected state. Far more than it takes, so that a busy machine fails no test."""

PATIENCE_S = 60.0
