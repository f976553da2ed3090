"""How workers are started and ended: processes here, a command, the replicas of a Deployment."""
