"""What tasks do, one file for each task type; imported by runners only, never by the agent.

A handler is an entry point of the group `gpu_orchestrator.handlers`: its name is the task type, its object a
function `handle(task) -> result`. Any installed package can bring more.
"""
