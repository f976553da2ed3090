"""The command `gpu-orchestrator`: one subcommand per app. The only room that imports apps."""
