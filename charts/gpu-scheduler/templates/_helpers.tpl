{{- define "gpu-scheduler.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest | quote }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Namespaces that are left alone by what changes pods. */ -}}
{{- define "gpu-scheduler.exempt" -}}
{{ concat (list "kube-system" "kube-public" "kube-node-lease") .Values.webhook.excludeNamespaces | uniq | toJson }}
{{- end -}}

{{- /* The authority of certificates that are made outside of the cluster. The others are filled in by who makes them. */ -}}
{{- define "gpu-scheduler.caBundle" -}}
{{- with .Values.webhook.caBundle -}}
{{- if contains "-----BEGIN" . }}{{ b64enc . }}{{ else }}{{ . | replace "\n" "" }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* Whether something fills in pods that ask for GPUs. */ -}}
{{- define "gpu-scheduler.fills" -}}
{{- if or .Values.webhook.enabled .Values.mutatingPolicy.enabled }}yes{{ end -}}
{{- end -}}

{{- /* Whether the cluster manager keeps its store on a volume of its own. */ -}}
{{- define "gpu-scheduler.keeps" -}}
{{- with .Values.clusterManager }}{{ if and .persistence.enabled (not .store.urlSecret) }}yes{{ end }}{{ end -}}
{{- end -}}

{{- /* Settings of a process: what follows from other values, and over it what `settings` says. Not `merge`, which takes
       `false` and 0 for missing. */ -}}
{{- define "gpu-scheduler.settings" -}}
{{- $all := first . -}}
{{- range $name, $value := last . }}{{ $_ := set $all $name $value }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{- define "gpu-scheduler.schedulerSettings" -}}
{{- $fills := include "gpu-scheduler.fills" . -}}
{{- $all := dict "guardedAnnotations" .Values.policies.enabled -}}
{{- $_ := set $all "requireDeviceEnv" (ternary "Refuse" "Warn" (not (empty $fills))) -}}
{{- $_ := set $all "requireCapacity" (ternary "Refuse" "Ignore" (not (empty $fills))) -}}
{{- include "gpu-scheduler.settings" (list $all .Values.scheduler.settings) -}}
{{- end -}}

{{- define "gpu-scheduler.webhookSettings" -}}
{{- $made := ternary "self-made" "files" (eq .Values.webhook.certificates "self-made") -}}
{{- $all := dict "mps" .Values.agent.mps.enabled "certificates" $made -}}
{{- include "gpu-scheduler.settings" (list $all .Values.webhook.settings) -}}
{{- end -}}

{{- define "gpu-scheduler.agentSettings" -}}
{{- $all := dict "mps" .Values.agent.mps.enabled "lock" .Values.scheduler.settings.lock -}}
{{- with .Values.agent.simulate }}{{ $_ := set $all "simulate" . }}{{ end -}}
{{- include "gpu-scheduler.settings" (list $all .Values.agent.settings) -}}
{{- end -}}

{{- define "gpu-scheduler.agentResources" -}}
{{- $resources := deepCopy .Values.agent.resources -}}
{{- if .Values.agent.mps.enabled -}}
{{- $limits := deepCopy (default (dict) $resources.limits) -}}
{{- $_ := set $limits "memory" .Values.agent.mps.memoryLimit -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- if $resources }}{{ toYaml $resources }}{{ end -}}
{{- end -}}

{{- /* Whether this release installs a custom resource: it does not take over one that somebody else manages. */ -}}
{{- define "gpu-scheduler.crd" -}}
{{- $root := first . -}}
{{- if $root.Values.crds.install -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (last .) -}}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $found -}}
{{- $space := dig "metadata" "annotations" "meta.helm.sh/release-namespace" "" $found -}}
{{- if or (not $found) (and (eq $owner $root.Release.Name) (eq $space $root.Release.Namespace)) }}yes{{ end -}}
{{- end -}}
{{- end -}}
