"""The scheduling cycle: from watch events through the engine's decisions to actions."""
