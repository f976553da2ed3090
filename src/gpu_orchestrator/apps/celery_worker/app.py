"""The Celery app of workers, flower and `celery inspect`, configured as the manager is: by the environment,
`.env`, or what a server on this machine left in its data directory.
"""

from celery import Celery

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.broker import config
from gpu_orchestrator.adapters.broker.address import OF_SETTINGS, broker_of
from gpu_orchestrator.apps.celery_worker import tasks
from gpu_orchestrator.apps.celery_worker.lifecycle import Lifecycle


def build() -> Celery:
    app = Celery("gpu_orchestrator")
    app.conf.update(config.of(broker_of(settings.load(only=OF_SETTINGS))))
    tasks.add_to(app)
    Lifecycle().connect()
    return app
