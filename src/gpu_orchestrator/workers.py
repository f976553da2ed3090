"""The app of a Celery fleet: `celery -A gpu_orchestrator.workers worker`, `… inspect active`, `… flower`."""

from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.celery_worker.app import build

try:
    app = build()
except BadSettings as error:
    raise SystemExit(f"gpu_orchestrator.workers: {error}") from error
