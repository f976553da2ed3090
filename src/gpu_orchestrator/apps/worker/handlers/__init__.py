"""Handlers, one file for each task type. Only runners import them, never the agent.

A handler is an entry point of the group `gpu_orchestrator.handlers`: its name is the task type, its object a
function `handle(task) -> result`. Any installed package can add more.
"""
