"""A Celery worker that serves the cluster manager: `celery -A gpu_orchestrator.workers worker`.

Celery's main process has our agent as its child, which is the worker that the manager knows; Celery's pool
processes take tickets from the worker's queue, present them to the agent, and wait (decision 0021).

  app            the Celery app: its broker, and its tasks
  tasks          `inference`, which presents a ticket, and the management tasks
  lifecycle      what happens as Celery's processes start and end
  agent_process  the agent as a child of Celery's main process
  channels       keeps Celery's main process alive when a broker goes away and comes back
  visit          a visit at the agent's desk, over a socket of this machine
"""
