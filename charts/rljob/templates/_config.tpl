{{/* The operator's settings: values.settings, and what other values say. */}}
{{- define "rljob.config" -}}
{{- $settings := deepCopy .Values.settings }}
{{- $_ := set $settings "namespaces" .Values.watchNamespaces }}
{{- $_ := set $settings "profiles" .Values.acceleratorProfiles }}
{{- $_ := set $settings "probePort" 8080 }}
{{- $_ := set $settings "metricsPort" 9402 }}
{{- $_ := set $settings.lease "name" (include "rljob.fullname" .) }}
{{- $_ := set $settings.lease "namespace" .Release.Namespace }}
{{- $_ := set $settings.pods "images" (include "rljob.config.images" . | fromYaml) }}
{{- $_ := set $settings.pods "monitoring" (pick .Values.metrics.podMonitor "labels" "interval") }}
{{- $_ := set $settings.pods "networkPolicy" (include "rljob.config.networkPolicy" . | fromYaml) }}
{{- $_ := set $settings.pods.gang "native" .Values.integrations.native }}
{{- $_ := set $settings.pods "rayServices" .Values.integrations.kuberay }}
{{- toYaml $settings }}
{{- end }}

{{- define "rljob.config.images" -}}
worker: {{ include "rljob.image" (dict "root" . "image" .Values.images.worker) }}
workerCpu: {{ include "rljob.image" (dict "root" . "image" .Values.images.workerCpu) }}
workerVllm: {{ include "rljob.image" (dict "root" . "image" .Values.images.workerVllm) }}
workerVllmCpu: {{ include "rljob.image" (dict "root" . "image" .Values.images.workerVllmCpu) }}
dataBuffer: {{ include "rljob.image" (dict "root" . "image" .Values.images.dataBuffer) }}
serve: {{ include "rljob.image" (dict "root" . "image" .Values.images.serve) }}
serveCuda: {{ include "rljob.image" (dict "root" . "image" .Values.images.serveCuda) }}
pullPolicy: {{ .Values.images.pullPolicy }}
pullSecrets: {{ include "rljob.pullSecrets" . }}
{{- end }}

{{/* The operator pulls progress from pods, so it is among those who may read their metrics. */}}
{{- define "rljob.config.networkPolicy" -}}
enabled: {{ .Values.networkPolicy.jobs }}
metricsFrom:
  - namespaceSelector:
      matchLabels:
        kubernetes.io/metadata.name: {{ .Release.Namespace }}
    podSelector:
      matchLabels:
        {{- include "rljob.selectorLabels" . | nindent 8 }}
  {{- with .Values.networkPolicy.scrapers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
kubeRayFrom:
  {{- toYaml .Values.networkPolicy.kuberay | nindent 2 }}
{{- end }}
