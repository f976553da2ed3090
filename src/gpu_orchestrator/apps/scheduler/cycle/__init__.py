"""What pods ask for, and what the engine decides: from watch events to actions."""
