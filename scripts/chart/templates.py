"""Which manifest of config becomes which template of the chart, and what its values change there.

Names stay as they are: policies, roles and flow schemas trust ServiceAccounts by name, so a cluster has one
installation, and the release may have any name. What an object has by default is written in config; a test
compares it with the defaults in values.yaml.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

from collections.abc import Iterator
from pathlib import Path

from scripts.chart import cluster_manager
from scripts.chart.edits import Edit, NotThere, after, around, block, only_if, put
from scripts.chart.template import NAMESPACE, PULL_SECRETS, Template, where

SELF_MADE = 'eq .Values.webhook.certificates "self-made"'
CERT_MANAGER = 'eq .Values.webhook.certificates "cert-manager"'
AUTOSCALED = ".Values.webhook.autoscaling.enabled"


def _pods(values: str, *, settings: str = "", resources: str = "") -> tuple[Edit, ...]:
    """What the values of a component say about its pods: how many, where, with what."""
    of = f".Values.{values}"
    checksum = f"        checksum/settings: {{{{ {settings} | sha256sum | quote }}}}\n" if settings else ""
    limits, dot = (f'include "{resources}" .', ".") if resources else (f"{of}.resources", "toYaml .")
    return (
        after(
            "      annotations:",
            f"{checksum}        {{{{- with {of}.podAnnotations }}}}\n"
            "        {{- toYaml . | nindent 8 }}\n        {{- end }}\n",
        ),
        after("      priorityClassName: gpu-orchestrator-controllers", PULL_SECRETS),
        block(
            "        resources:",
            f"        {{{{- with {limits} }}}}\n        resources:\n"
            f"          {{{{- {dot} | nindent 10 }}}}\n        {{{{- end }}}}\n",
        ),
        after(
            "        - --health-probe-bind-address=:8081",
            f"        {{{{- with {of}.verbosity }}}}\n        - --v={{{{ . }}}}\n        {{{{- end }}}}\n",
        ),
    )


def _placed(values: str) -> Edit:
    """Where the pods of a Deployment may run, which config leaves open."""
    return after("      priorityClassName: gpu-orchestrator-controllers", where(values))


def _replicas(values: str, why: str) -> Edit:
    return put(f"  replicas: 2 # {why}", f"  replicas: {{{{ .Values.{values}.replicas }}}} # {why}")


def _settings(component: str, include: str) -> Edit:
    return block("  settings.yaml: |", f"  settings.yaml: |\n    {{{{- {include} | nindent 4 }}}}\n")


OPERATOR = ".Values.operator.enabled"
SCHEDULER = ".Values.scheduler.enabled"
WEBHOOK = ".Values.webhook.enabled"
AGENT = ".Values.agent.enabled"
FLOWS = "(.Values.flowSchemas.create)"
SCHEDULER_SETTINGS = 'include "gpu-scheduler.schedulerSettings" .'
WEBHOOK_SETTINGS = 'include "gpu-scheduler.webhookSettings" .'
AGENT_SETTINGS = 'include "gpu-scheduler.agentSettings" .'
ACCOUNT = "{{ .Values.serviceAccountName }}"
_SUBJECT = "- kind: ServiceAccount\n  name: gpu-scheduler\n"
_FLOW_SUBJECT = "      serviceAccount:\n        name: gpu-scheduler\n"
_EXEMPT = "[kube-system, kube-public, kube-node-lease]"


def _account(text: str, times: int = 1) -> Edit:
    return put(text, text.replace("gpu-scheduler", ACCOUNT), times=times)


OPERATOR_TEMPLATES = (
    Template(
        "manager/manager.yaml",
        OPERATOR,
        (
            _replicas("operator", "one works, one stands by with warm caches"),
            *_pods("operator"),
            _placed("operator"),
            after(
                "        - --leader-election-namespace=$(POD_NAMESPACE)",
                '        {{- if ne .Values.operator.defaultPath "plain" }}\n'
                "        - --default-path={{ .Values.operator.defaultPath }}\n        {{- end }}\n"
                '        {{- if ne .Values.operator.onNoCapacity "Retry" }}\n'
                "        - --on-no-capacity={{ .Values.operator.onNoCapacity }}\n        {{- end }}\n",
            ),
        ),
    ),
    Template("manager/flow_schema.yaml", f"and {OPERATOR} {FLOWS}"),
    Template("rbac/service_account.yaml", OPERATOR),
    Template("rbac/role.yaml", OPERATOR),
    Template("rbac/role_binding.yaml", OPERATOR),
)

SCHEDULER_TEMPLATES = (
    Template(
        "scheduler/scheduler.yaml",
        SCHEDULER,
        (
            _replicas("scheduler", "one works, one stands by with warm copies"),
            *_pods("scheduler", settings=SCHEDULER_SETTINGS),
            _placed("scheduler"),
            _account("      serviceAccountName: gpu-scheduler\n"),
        ),
    ),
    Template("scheduler/settings.yaml", SCHEDULER, (_settings("scheduler", SCHEDULER_SETTINGS),)),
    Template("scheduler/flow_schema.yaml", f"and {SCHEDULER} {FLOWS}", (_account(_FLOW_SUBJECT),)),
    Template("scheduler/service_account.yaml", SCHEDULER, (_account("  name: gpu-scheduler\n"),)),
    Template(
        "scheduler/role.yaml",
        SCHEDULER,
        (
            put(
                "[gpu-scheduler.gpu.scheduling]",
                "[{{ .Values.scheduler.settings.schedulerName }}.gpu.scheduling]",
            ),
        ),
    ),
    Template("scheduler/role_binding.yaml", SCHEDULER, (_account(_SUBJECT, 3),)),
    Template(
        "scheduler-podgroups/role.yaml",
        f"and {SCHEDULER} .Values.scheduler.podGroups",
        (_account(_SUBJECT),),
    ),
)

WEBHOOK_TEMPLATES = (
    Template(
        "webhook/webhook.yaml",
        WEBHOOK,
        (
            put(
                "  replicas: 2 # both work\n",
                f"  {{{{- if not {AUTOSCALED} }}}}\n"
                "  replicas: {{ .Values.webhook.replicas }} # all work\n  {{- end }}\n",
            ),
            *_pods("webhook", settings=WEBHOOK_SETTINGS),
            _placed("webhook"),
            after(
                "        - --bind-address=:8443",
                f"        {{{{- if not ({SELF_MADE}) }}}}\n        - --certificates=files\n"
                "        - --tls-cert-file=/etc/gpu-scheduler-webhook-cert/tls.crt\n"
                "        - --tls-key-file=/etc/gpu-scheduler-webhook-cert/tls.key\n        {{- end }}\n",
            ),
            after(
                "        runAsGroup: 65532",
                f"        {{{{- if not ({SELF_MADE}) }}}}\n"
                "        fsGroup: 65532 # the key of the certificate can be read by this group alone\n"
                "        {{- end }}\n",
            ),
            after(
                "        volumeMounts:",
                f"        {{{{- if not ({SELF_MADE}) }}}}\n        - name: cert\n"
                "          mountPath: /etc/gpu-scheduler-webhook-cert\n          readOnly: true\n"
                "        {{- end }}\n",
            ),
            after(
                "      volumes:",
                f"      {{{{- if not ({SELF_MADE}) }}}}\n      - name: cert\n        secret:\n"
                "          secretName: {{ .Values.webhook.certificateSecret }}\n          defaultMode: 0440\n"
                "      {{- end }}\n",
            ),
        ),
    ),
    Template("webhook/settings.yaml", WEBHOOK, (_settings("webhook", WEBHOOK_SETTINGS),)),
    Template("webhook/service_account.yaml", WEBHOOK),
    Template("webhook/role.yaml", WEBHOOK),
    Template("webhook/role_binding.yaml", WEBHOOK),
    Template(
        "webhook-autoscaling/autoscaler.yaml",
        f"and {WEBHOOK} {AUTOSCALED}",
        (
            put("minReplicas: 2\n", "minReplicas: {{ .Values.webhook.autoscaling.minReplicas }}\n"),
            put("maxReplicas: 6\n", "maxReplicas: {{ .Values.webhook.autoscaling.maxReplicas }}\n"),
            put(
                "averageUtilization: 80\n",
                "averageUtilization: {{ .Values.webhook.autoscaling.targetCPUUtilizationPercentage }}\n",
            ),
        ),
    ),
    Template("webhook/certificates.yaml", f"and {WEBHOOK} ({SELF_MADE})"),
    Template(
        "webhook-cert-manager/certificate.yaml",
        f"and {WEBHOOK} ({CERT_MANAGER})",
        (
            put(
                "  secretName: gpu-scheduler-webhook-cert\n",
                "  secretName: {{ .Values.webhook.certificateSecret }}\n",
            ),
        ),
    ),
)

_CA_BUNDLE = (
    '  {{- with include "gpu-scheduler.caBundle" . }}\n    caBundle: {{ . }}\n    {{- end }}\n'.replace(
        "  {{- with", "    {{- with"
    )
)
_INJECTED = after(
    "  name: gpu-scheduler-webhook",
    f"  {{{{- if {CERT_MANAGER} }}}}\n  annotations:\n"
    f"    cert-manager.io/inject-ca-from: {NAMESPACE}/gpu-scheduler-webhook\n  {{{{- end }}}}\n",
)

WEBHOOK_CONFIGURATIONS = (
    Template(
        "webhook/mutating.yaml",
        WEBHOOK,
        (
            _INJECTED,
            put("  clientConfig:\n", f"  clientConfig:\n{_CA_BUNDLE}", times=2),
            put(_EXEMPT, '{{ include "gpu-scheduler.exempt" . }}'),
        ),
    ),
    Template(
        "webhook/validating.yaml",
        WEBHOOK,
        (
            _INJECTED,
            put("  clientConfig:\n", f"  clientConfig:\n{_CA_BUNDLE}"),
            put(
                "  matchPolicy: Equivalent\n",
                "  {{- with .Values.webhook.excludeNamespaces }}\n  namespaceSelector:\n"
                "    matchExpressions:\n    - key: kubernetes.io/metadata.name\n      operator: NotIn\n"
                "      values: {{ toJson . }}\n  {{- end }}\n  matchPolicy: Equivalent\n",
            ),
        ),
    ),
)

AGENT_TEMPLATES = (
    Template(
        "agent/agent.yaml",
        AGENT,
        (
            *_pods("agent", settings=AGENT_SETTINGS, resources="gpu-scheduler.agentResources"),
            put("      maxUnavailable: 10%\n", "      maxUnavailable: {{ .Values.agent.maxUnavailable }}\n"),
            block(
                "      tolerations:",
                "      {{- with .Values.agent.tolerations }}\n      tolerations:\n"
                "      {{- toYaml . | nindent 6 }}\n      {{- end }}\n",
            ),
            block(
                "      nodeSelector:",
                "      {{- with .Values.agent.nodeSelector }}\n      nodeSelector:\n"
                "        {{- toYaml . | nindent 8 }}\n      {{- end }}\n",
            ),
            around(
                "      affinity:",
                "      {{- with .Values.agent.affinity }}\n      affinity:\n"
                "        {{- toYaml . | nindent 8 }}\n      {{- else }}\n",
                "      {{- end }}\n",
            ),
            after(
                "        - --health-probe-bind-address=:8081",
                "        {{- if .Values.agent.mps.enabled }}\n        - --mps\n        {{- end }}\n",
            ),
            put(
                "          value: utility\n",
                '          value: {{ ternary "utility,compute" "utility" .Values.agent.mps.enabled }}\n',
            ),
            put(
                "            drop: [ALL]\n",
                "            drop: [ALL]\n            {{- if .Values.agent.mps.enabled }}\n"
                "            # the daemons run as the users of their clients, and remove what those leave\n"
                "            add: [SETUID, SETGID, DAC_OVERRIDE, FOWNER]\n            {{- end }}\n",
            ),
            after(
                "        volumeMounts:",
                "        {{- if .Values.agent.mps.enabled }}\n        - name: mps\n"
                "          mountPath: /run/gpu-mps\n        {{- end }}\n"
                "        {{- if .Values.agent.simulate }}\n        - name: simulated\n"
                "          mountPath: /run/gpu-orchestrator\n        {{- end }}\n",
            ),
            after(
                "      volumes:",
                "      {{- if .Values.agent.mps.enabled }}\n      - name: mps\n        hostPath:\n"
                "          path: /run/gpu-mps\n          type: DirectoryOrCreate\n      {{- end }}\n"
                "      {{- if .Values.agent.simulate }}\n      - name: simulated\n"
                "        emptyDir: {}\n      {{- end }}\n",
            ),
        ),
    ),
    Template("agent/settings.yaml", AGENT, (_settings("agent", AGENT_SETTINGS),)),
    Template("agent/flow_schema.yaml", f"and {AGENT} {FLOWS}"),
    Template("agent/service_account.yaml", AGENT),
    Template("agent/role.yaml", AGENT),
    Template("agent/role_binding.yaml", AGENT),
    Template("agent-mps/role.yaml", f"and {AGENT} .Values.agent.mps.enabled"),
)

_EXEMPT_LIST = "        values:\n        - kube-system\n        - kube-public\n        - kube-node-lease\n"


def _exempt_all(text: str) -> str:
    """Leave the namespaces out that an administrator exempts, wherever ours are left out."""
    if _EXEMPT_LIST not in text:
        raise NotThere(f"{_EXEMPT_LIST!r} was to be there")
    return text.replace(_EXEMPT_LIST, '        values: {{ include "gpu-scheduler.exempt" . }}\n')


_ACCOUNT_OF = f"request.userInfo.username.replace('system:serviceaccount:{NAMESPACE}:', '')"

POLICY_TEMPLATES = (
    *(
        Template(f"policy/{name}.yaml", ".Values.policies.enabled")
        for name in ("capacity", "claimed_pods", "written_by_us")
    ),
    Template(
        "policy/components.yaml",
        ".Values.policies.enabled",
        (
            # A leader's Lease has the name of its scheduler, which the policy takes for that of its account.
            put(
                f"      {_ACCOUNT_OF}\n",
                "      {{- if ne .Values.serviceAccountName .Values.scheduler.settings.schedulerName }}\n"
                f"      request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:{ACCOUNT}' ?\n"
                "      '{{ .Values.scheduler.settings.schedulerName }}' :\n      {{- end }}\n"
                f"      {_ACCOUNT_OF}\n",
            ),
        ),
    ),
    Template("mutating-policy/filling.yaml", ".Values.mutatingPolicy.enabled", (_exempt_all,)),
)

_MORE_LABELS = after(
    "  labels:",
    "    {{- with .Values.monitoring.labels }}\n    {{- toYaml . | nindent 4 }}\n    {{- end }}\n",
)

MONITORING_TEMPLATES = (
    Template(
        "monitoring/service_monitor.yaml",
        ".Values.monitoring.serviceMonitor.enabled",
        (
            _MORE_LABELS,
            put("interval: 30s\n", "interval: {{ .Values.monitoring.serviceMonitor.interval }}\n"),
        ),
    ),
    Template(
        "monitoring/prometheus_rule.yaml",
        ".Values.monitoring.prometheusRule.enabled",
        (
            _MORE_LABELS,
            # An alert about a component that is not installed would never end.
            *(
                around(
                    f"  - name: gpu-orchestrator-{each}",
                    f"  {{{{- if .Values.{each}.enabled }}}}\n",
                    "  {{- end }}\n",
                )
                for each in ("operator", "scheduler", "webhook", "agent")
            ),
        ),
    ),
)

OTHER_TEMPLATES = (
    Template("priority/priority_classes.yaml", ".Values.priorityClasses.create"),
    Template("users/aggregated_roles.yaml", ".Values.rbac.aggregateRoles"),
    Template(
        "network/network_policies.yaml",
        ".Values.networkPolicies.enabled",
        (only_if(WEBHOOK, "NetworkPolicy/gpu-scheduler-webhook"),),
    ),
)

TEMPLATES = (
    *cluster_manager.TEMPLATES,
    *OPERATOR_TEMPLATES,
    *SCHEDULER_TEMPLATES,
    *WEBHOOK_TEMPLATES,
    *WEBHOOK_CONFIGURATIONS,
    *AGENT_TEMPLATES,
    *POLICY_TEMPLATES,
    *MONITORING_TEMPLATES,
    *OTHER_TEMPLATES,
)


def files(config: Path) -> Iterator[tuple[str, str]]:
    """Yield the path in the chart and the text of each generated template."""
    for each in TEMPLATES:
        yield f"templates/{each.source}", each.text(config)
    yield "templates/crds.yaml", crds(config)


CRDS_HEAD = """\
# Made by `make charts` from config/crd. The lines with braces are for Helm; for kubectl they are comments:
#   kubectl apply --server-side -f charts/gpu-scheduler/templates/crds.yaml
# Helm keeps the definitions when the release is uninstalled: with them all claims and workloads would go.
"""


def crds(config: Path) -> str:
    """Return all custom resources as one file, which kubectl can apply as well."""
    parts = [CRDS_HEAD]
    for path in sorted((config / "crd").glob("gpu*.yaml")):
        text = "".join(
            line for line in path.read_text().splitlines(keepends=True) if not line.startswith(("#", "---"))
        )
        name = f"{path.stem}.{_group(text)}"
        kept = put(
            f"  name: {name}\n", f"  name: {name}\n  annotations:\n    helm.sh/resource-policy: keep\n"
        )
        wanted = f'include "gpu-scheduler.crd" (list . "{name}")'
        parts.append(f"# {{{{- if {wanted} }}}}\n---\n{kept(text)}# {{{{- end }}}}\n")
    return "".join(parts)


def _group(text: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith("  group: "))
