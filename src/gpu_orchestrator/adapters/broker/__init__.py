"""Celery's broker: where it is, how our Celery apps are configured, and how tickets are published.

  address    the URLs of broker and result backend, from the settings or from the store's address
  config     the settings of our Celery apps: JSON alone, acknowledged late, one ticket at a time
  queues     the queue of a worker
  publisher  sends tickets from a thread of its own, so that a slow broker delays nobody

Only these modules and `apps/celery_worker` import Celery, which is an extra: `gpu-orchestrator[celery]`.
"""
