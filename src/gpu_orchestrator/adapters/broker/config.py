"""The settings of our Celery apps, in the manager and in the workers."""

from typing import Any

from gpu_orchestrator.adapters.broker.address import Broker

PREFIX = "gpu-orchestrator-celery:"
"""Before every key and channel in the broker: it may be the manager's own store, and a user of the broker
may be confined to these (`~gpu-orchestrator-celery:*`)."""
RESULTS_S = 900
VISIBLE_S = 86_400
"""After this a broker sends a ticket again that nobody has acknowledged: it would be dropped as redeemed."""
CONNECT_S, ANSWER_S = 2.0, 10.0


def of(broker: Broker) -> dict[str, Any]:
    transport = {
        "global_keyprefix": PREFIX,
        "visibility_timeout": VISIBLE_S,
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": ANSWER_S,
    }
    own = transport if broker.url.startswith(("redis", "sentinel")) else {}
    return {
        "broker_url": broker.url,
        "result_backend": broker.results,
        "broker_transport_options": own,
        "result_backend_transport_options": {"global_keyprefix": PREFIX},
        **({"broker_use_ssl": broker.tls, "redis_backend_use_ssl": broker.tls} if broker.tls else {}),
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "result_expires": RESULTS_S,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_track_started": True,
        "task_send_sent_event": True,
        "worker_send_task_events": True,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_enable_soft_shutdown_on_idle": False,
        "worker_proc_alive_timeout": 60.0,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_hijack_root_logger": True,
        "enable_utc": True,
    }
