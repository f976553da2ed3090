"""The alerts, each with its reason in one sentence; docs/runbook.md says what to do about each.

critical    somebody should look now: workloads fail, or hold a GPU that is not theirs
warning     somebody should look today
info        worth knowing; usually about users, not about us
"""

from dataclasses import dataclass

import yaml

from scripts.monitoring.catalog import COMPONENTS

MANAGER = 'job=~".*gpu-(orchestrator|scheduler).*"'
"""The cluster manager's metrics have plain names: only the name of the scrape job tells them from others'."""

HEAD = """\
# Made by `make monitoring` from scripts/monitoring/alerts.py; docs/runbook.md says what to do about each.
# For the Prometheus operator. Without it, `spec` is a rule file of Prometheus as it is.
"""


@dataclass(frozen=True, slots=True)
class Alert:
    component: str
    name: str
    expr: str
    lasts: str
    severity: str
    summary: str

    @property
    def rule(self) -> dict[str, object]:
        annotations = {"summary": self.summary, "runbook": f"docs/runbook.md#{self.name.lower()}"}
        return {
            "alert": self.name,
            "expr": self.expr,
            **({"for": self.lasts} if self.lasts else {}),
            "labels": {"severity": self.severity, "component": self.component},
            "annotations": annotations,
        }


def _p99(histogram: str, *, by: str = "le", within: str = "10m", only: str = "") -> str:
    series = f"{histogram}_bucket{{{only}}}" if only else f"{histogram}_bucket"
    return f"histogram_quantile(0.99, sum by ({by}) (rate({series}[{within}])))"


ALERTS = (
    Alert(
        "operator",
        "GpuOperatorAbsent",
        "absent(warp_gpuworkload_phase)",
        "5m",
        "critical",
        "No operator leads: new GPUWorkloads get no Job, and the status of the others stands still.",
    ),
    Alert(
        "operator",
        "GpuWorkloadsFail",
        'sum by (reason) (increase(warp_gpuworkload_failed_total{reason!="NoCapacity"}[30m])) > 3',
        "",
        "warning",
        "{{ $value | humanize }} tries of GPUWorkloads failed in 30 minutes: {{ $labels.reason }}.",
    ),
    Alert(
        "operator",
        "GpuWorkloadsWait",
        'sum(warp_gpuworkload_phase{phase="Pending"}) > 0',
        "1h",
        "info",
        "For an hour there have been GPUWorkloads without a place.",
    ),
    Alert(
        "operator",
        "GpuOperatorSlow",
        f"{_p99('warp_gpuworkload_reconcile_duration_seconds')} > 5",
        "10m",
        "warning",
        "One reconcile pass in a hundred takes {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "scheduler",
        "GpuSchedulerAbsent",
        "absent(gpu_scheduler_pending_pods)",
        "5m",
        "critical",
        "No gpu-scheduler runs: pods with claims stay pending.",
    ),
    Alert(
        "scheduler",
        "GpuSchedulerStands",
        'max(gpu_scheduler_pending_pods{state="active"}) > 0'
        " and sum(rate(gpu_scheduler_scheduling_duration_seconds_count[10m])) == 0",
        "10m",
        "critical",
        "{{ $value }} pods could be decided, and for ten minutes none has been.",
    ),
    Alert(
        "scheduler",
        "GpuDeviceConflict",
        "increase(gpu_scheduler_conflicts_total[15m]) > 0",
        "",
        "critical",
        "The sweep found a device with two holders, or a pod whose annotation and leases disagree.",
    ),
    Alert(
        "scheduler",
        "GpuSchedulerErrors",
        "sum by (part) (increase(gpu_scheduler_errors_total[15m])) > 0",
        "",
        "warning",
        "The part {{ $labels.part }} of the gpu-scheduler met an error that it does not know.",
    ),
    Alert(
        "scheduler",
        "GpuBindsFail",
        'sum(rate(gpu_scheduler_scheduling_duration_seconds_count{result="failed"}[15m]))'
        " / sum(rate(gpu_scheduler_scheduling_duration_seconds_count[15m])) > 0.2",
        "15m",
        "warning",
        "{{ $value | humanizePercentage }} of the decisions could not be carried out.",
    ),
    Alert(
        "scheduler",
        "GpuSchedulerSlow",
        f"{_p99('gpu_scheduler_scheduling_duration_seconds')} > 5",
        "10m",
        "warning",
        "From a decision to the bind one pod in a hundred takes {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "scheduler",
        "GpuDevicesUnhealthy",
        'max(gpu_scheduler_devices{state="unhealthy"}) > 0',
        "10m",
        "warning",
        "{{ $value }} devices are reported unhealthy and given to no pod.",
    ),
    Alert(
        "scheduler",
        "GpuPodsOnUnhealthyDevices",
        'sum by (action) (increase(gpu_scheduler_unhealthy_pods_total{action=~"blocked|failed"}[15m])) > 0',
        "",
        "warning",
        "A pod has an unhealthy device and could not be evicted ({{ $labels.action }}).",
    ),
    Alert(
        "scheduler",
        "GpuLeasesLeaked",
        "increase(gpu_scheduler_leaked_leases_total[1h]) > 0",
        "",
        "info",
        "The sweep removed {{ $value | humanize }} device leases that no pod held any more.",
    ),
    Alert(
        "scheduler",
        "GpuPodsWait",
        'sum(gpu_scheduler_pending_pods{state=~"parked|held back"}) > 0',
        "1h",
        "info",
        "For an hour there have been pods with claims that fit nowhere.",
    ),
    Alert(
        "scheduler",
        "GpuQueueProblem",
        "max(gpu_scheduler_queue_problems) > 0",
        "10m",
        "warning",
        "{{ $value }} GpuQueues make no sense and admit no pod.",
    ),
    Alert(
        "webhook",
        "GpuWebhookAbsent",
        "absent(gpu_webhook_claim_reads_total)",
        "5m",
        "critical",
        "No webhook runs: pods that ask for GPUs are refused by the policies.",
    ),
    Alert(
        "webhook",
        "GpuWebhookErrors",
        'sum by (path, result) (increase(gpu_webhook_requests_total{result=~"error|refused"}[15m])) > 0',
        "",
        "warning",
        "The webhook could not answer a review at {{ $labels.path }} ({{ $labels.result }}).",
    ),
    Alert(
        "webhook",
        "GpuWebhookSlow",
        f"{_p99('gpu_webhook_request_duration_seconds', by='path, le')} > 1",
        "10m",
        "warning",
        "One review in a hundred takes {{ $value | humanizeDuration }}; the API server waits five seconds.",
    ),
    Alert(
        "webhook",
        "GpuWebhookCertificateExpires",
        "gpu_webhook_certificate_expiry_timestamp_seconds > 0"
        " and gpu_webhook_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        "1h",
        "critical",
        "The webhook's certificate expires in less than 14 days and should have been replaced long ago.",
    ),
    Alert(
        "webhook",
        "GpuWebhookConnectionsClosed",
        "sum by (reason) (increase(gpu_webhook_connections_closed_total[15m])) > 20",
        "",
        "warning",
        "In 15 minutes the webhook closed {{ $value | humanize }} connections: {{ $labels.reason }}.",
    ),
    Alert(
        "agent",
        "GpuAgentAbsent",
        "absent(gpu_agent_devices)",
        "10m",
        "warning",
        "No agent runs: nobody sees which devices are healthy and who uses them.",
    ),
    Alert(
        "agent",
        "GpuMismatch",
        "sum by (instance) (increase(gpu_agent_mismatch_total[15m])) > 0",
        "",
        "critical",
        "The agent at {{ $labels.instance }} found a pod on a device that it was not given.",
    ),
    Alert(
        "agent",
        "GpuUnhealthy",
        "gpu_agent_healthy == 0",
        "1m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} ({{ $labels.model }}) is unhealthy.",
    ),
    Alert(
        "agent",
        "GpuXid",
        "gpu_agent_xid > 0",
        "",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} reported XID {{ $value }}.",
    ),
    Alert(
        "agent",
        "GpuMemoryErrors",
        "increase(gpu_agent_ecc_uncorrected_total[1h]) > 0",
        "",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} had memory errors that could not be corrected.",
    ),
    Alert(
        "agent",
        "GpuHot",
        "gpu_agent_temperature_celsius > 90",
        "5m",
        "warning",
        "GPU {{ $labels.gpu }} of {{ $labels.node }} is at {{ $value }} °C; at 95 °C nothing goes there.",
    ),
    Alert(
        "agent",
        "GpuAgentErrors",
        "sum by (instance, what) (increase(gpu_agent_errors_total[15m])) > 3",
        "",
        "warning",
        "The agent at {{ $labels.instance }} fails at: {{ $labels.what }}.",
    ),
    Alert(
        "agent",
        "GpuAgentSlow",
        f"{_p99('gpu_agent_scan_duration_seconds', by='instance, le')} > 5",
        "10m",
        "warning",
        "A look at the devices of {{ $labels.instance }} takes {{ $value | humanizeDuration }}.",
    ),
    Alert(
        "manager",
        "ManagerAbsent",
        f"absent(leader_terms_total{{{MANAGER}}})",
        "2m",
        "critical",
        "No cluster manager answers.",
    ),
    Alert(
        "manager",
        "ManagerWithoutLeader",
        f"sum by (job) (leader{{{MANAGER}}}) < 1",
        "1m",
        "critical",
        "No process leads: tasks are accepted, and none is started.",
    ),
    Alert(
        "manager",
        "ManagerSeveralLeaders",
        f"sum by (job) (leader{{{MANAGER}}}) > 1",
        "5m",
        "warning",
        "{{ $value }} processes believe that they lead; the store lets one of them write.",
    ),
    Alert(
        "manager",
        "ManagerErrors",
        f'sum by (route) (increase(http_requests_total{{{MANAGER},status="500"}}[15m])) > 0',
        "",
        "warning",
        "{{ $labels.route }} answered 500: a defect, with a traceback in the log.",
    ),
    Alert(
        "manager",
        "TaskWorkersLost",
        f"sum by (job) (increase(lease_expirations_total{{{MANAGER}}}[10m])) > 0",
        "",
        "warning",
        "{{ $value | humanize }} workers were not heard of and were set offline; their tasks run again.",
    ),
    Alert(
        "manager",
        "TaskWorkersSilent",
        f"sum by (job) (increase(reaper_pauses_total{{{MANAGER}}}[10m])) > 0",
        "",
        "warning",
        "Most workers went silent at once, which suggests the network or the manager's own machine.",
    ),
    Alert(
        "manager",
        "TasksWithoutWorkers",
        f"sum by (job) (queue_depth{{{MANAGER}}}) > 0 and sum by (job) (workers_connected{{{MANAGER}}}) == 0",
        "5m",
        "warning",
        "{{ $value }} tasks wait, and no worker is connected.",
    ),
    Alert(
        "manager",
        "TasksDie",
        f'sum by (job) (increase(tasks_total{{{MANAGER},status="dead"}}[15m])) > 0',
        "",
        "warning",
        "{{ $value | humanize }} tasks went to the dead letters in 15 minutes.",
    ),
    Alert(
        "manager",
        "TasksStartLate",
        f"{_p99('task_dispatch_seconds', by='job, le', within='30m', only=MANAGER)} > 300",
        "30m",
        "info",
        "One task in a hundred waits {{ $value | humanizeDuration }} for its devices.",
    ),
    Alert(
        "manager",
        "TaskGpuFault",
        f'gpu_alert{{{MANAGER},kind=~"xid|ecc|problem"}} == 1',
        "",
        "warning",
        "Device {{ $labels.device }} of worker {{ $labels.worker }}: {{ $labels.kind }}.",
    ),
    Alert(
        "manager",
        "TaskGpuFull",
        f'gpu_alert{{{MANAGER},kind=~"temperature|memory"}} == 1',
        "15m",
        "info",
        "Device {{ $labels.device }} of worker {{ $labels.worker }} is at its limit of {{ $labels.kind }}.",
    ),
    Alert(
        "manager",
        "CallbacksGivenUp",
        f'sum by (job) (increase(callbacks_total{{{MANAGER},outcome="given up"}}[1h])) > 0',
        "",
        "warning",
        "{{ $value | humanize }} callbacks were given up after four hours of tries.",
    ),
    Alert(
        "manager",
        "QueueRefusals",
        f'sum by (owner) (rate(requests_refused_total{{{MANAGER},limit="queue"}}[5m])) > 0',
        "15m",
        "info",
        "{{ $labels.owner }} submits more than fits into the queue and ignores the refusals.",
    ),
    Alert(
        "manager",
        "ManagerStoreFull",
        f'sum by (limit) (rate(requests_refused_total{{{MANAGER},limit=~"store|disk"}}[5m])) > 0',
        "5m",
        "critical",
        "New tasks are refused because the {{ $labels.limit }} is full.",
    ),
    Alert(
        "manager",
        "TasksForgottenEarly",
        f'sum by (why) (increase(tasks_forgotten_total{{{MANAGER},why=~"store|results"}}[15m])) > 0',
        "",
        "warning",
        "Ended tasks are forgotten before their time: the {{ $labels.why }} is nearly full.",
    ),
    Alert(
        "manager",
        "AuditEntriesDropped",
        f"sum by (why) (increase(audit_entries_dropped_total{{{MANAGER}}}[15m])) > 0",
        "",
        "warning",
        "Audit entries were not written ({{ $labels.why }}).",
    ),
)


def prometheus_rule() -> str:
    """Return the PrometheusRule as YAML."""
    groups = [
        {
            "name": f"gpu-orchestrator-{component}",
            "rules": [each.rule for each in ALERTS if each.component == component],
        }
        for component in COMPONENTS
    ]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "gpu-orchestrator",
            "namespace": "gpu-orchestrator-system",
            "labels": {"app.kubernetes.io/name": "gpu-orchestrator"},
        },
        "spec": {"groups": groups},
    }
    return HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
