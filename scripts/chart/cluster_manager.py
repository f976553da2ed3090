"""The templates of the cluster manager, with the store in its pod or another."""

from scripts.chart.edits import after, around, block, put
from scripts.chart.template import PULL_SECRETS, Template, where

_REPLICAS = "  replicas: 1 # the store is in the pod\n"
_MANAGER_KEYS = "          secretName: gpu-orchestrator-cluster-manager\n"
_STORE_URL = """\
        {{- with .Values.clusterManager.store.urlSecret }}
        - name: REDIS_URL_FILE
          value: /run/secrets/store/url
        {{- end }}
        {{- range $name, $value := .Values.clusterManager.env }}
        - name: {{ $name }}
          value: {{ $value | quote }}
        {{- end }}
"""
_STORE_MOUNT = """\
        {{- if .Values.clusterManager.store.urlSecret }}
        - name: store
          mountPath: /run/secrets/store
          readOnly: true
        {{- end }}
"""
_STORE_VOLUMES = """\
      {{- if not (include "gpu-scheduler.keeps" .) }}
      - name: data
        emptyDir: {}
      {{- end }}
      {{- with .Values.clusterManager.store.urlSecret }}
      - name: store
        secret:
          secretName: {{ . }}
          defaultMode: 0440
      {{- end }}
"""
CLUSTER_MANAGER = ".Values.clusterManager.enabled"
TEMPLATES = (
    Template(
        "cluster-manager/cluster_manager.yaml",
        CLUSTER_MANAGER,
        (
            put(_REPLICAS, "  replicas: {{ .Values.clusterManager.replicas }}\n"),
            after(
                "      annotations:",
                "        {{- with .Values.clusterManager.podAnnotations }}\n"
                "        {{- toYaml . | nindent 8 }}\n        {{- end }}\n",
            ),
            after(
                "      serviceAccountName: gpu-orchestrator-cluster-manager",
                PULL_SECRETS + where("clusterManager"),
            ),
            block(
                "        resources:",
                "        {{- with .Values.clusterManager.resources }}\n        resources:\n"
                "          {{- toYaml . | nindent 10 }}\n        {{- end }}\n",
            ),
            after("        env:", _STORE_URL),
            after("        volumeMounts:", _STORE_MOUNT),
            put(_MANAGER_KEYS, "          secretName: {{ .Values.clusterManager.secretName }}\n"),
            after("      volumes:", _STORE_VOLUMES),
            around(
                "  volumeClaimTemplates:", '  {{- if include "gpu-scheduler.keeps" . }}\n', "  {{- end }}\n"
            ),
            put(
                "      accessModes: [ReadWriteOnce]\n",
                "      accessModes: [ReadWriteOnce]\n"
                "      {{- with .Values.clusterManager.persistence.storageClass }}\n"
                "      storageClassName: {{ . }}\n      {{- end }}\n",
            ),
            put("storage: 10Gi\n", "storage: {{ .Values.clusterManager.persistence.size }}\n"),
        ),
    ),
    Template("cluster-manager/network_policy.yaml", f"and {CLUSTER_MANAGER} .Values.networkPolicies.enabled"),
)
