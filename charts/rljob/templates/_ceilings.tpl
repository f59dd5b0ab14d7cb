{{/* A policy over pods of jobs or over jobs, and its binding: what its rules say is denied. */}}
{{- define "rljob.ceilings.policy" -}}
{{- $name := printf "%s-%s-%s" .root.Release.Namespace (include "rljob.fullname" .root) .of -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "rljob.labels" .root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    {{- if eq .of "pods" }}
    objectSelector:
      matchLabels:
        app.kubernetes.io/managed-by: rljob-operator
    {{- end }}
    {{- with .root.Values.watchNamespaces }}
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: In
          values:
            {{- toYaml . | nindent 12 }}
    {{- end }}
    resourceRules:
      - apiGroups: [{{ quote .group }}]
        apiVersions: [{{ .version }}]
        operations: [CREATE] # what is there already stays as it was admitted
        resources: [{{ .of }}]
      {{- if eq .of "pods" }}
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [UPDATE]
        resources: [pods/ephemeralcontainers] # containers that are added to a pod while it runs
      {{- end }}
  {{- .rules | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "rljob.labels" .root | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}

{{/* What jobs may ask for; nothing where there is no such ceiling. */}}
{{- define "rljob.ceilings.jobs" -}}
{{- $ceilings := .Values.settings.ceilings -}}
{{- $rules := include "rljob.ceilings.jobRules" . -}}
{{- if trim $rules -}}
variables:
  {{- if not (kindIs "invalid" $ceilings.accelerators) }}
  {{- include "rljob.devices.variables" $ceilings | nindent 2 }}
  - name: ofGroups
    expression: >-
      {{- $template := "g.?template.?spec.orValue({})" }}
      {{- $least := "int(g.?accelerator.?profile.orValue('cpu') != 'cpu' ? g.?accelerator.?count.orValue(1) : 0)" }}
      {{- include "rljob.devices.templated" (dict "spec" $template "own" "worker" "least" $least) | printf "object.spec.workerGroups.map(g, g.?replicas.orValue(1) * (%s)).sum()" | nindent 6 }}
  - name: ofServices
    expression: >-
      {{- $template = "s.?workerGroup.?template.?spec.orValue({})" }}
      {{- $copies := "(has(s.autoscaling) ? s.autoscaling.maxReplicas : s.?workerGroup.?replicas.orValue(1))" }}
      {{- $pods := ternary $copies "1" .Values.integrations.kuberay }}
      {{- $copies = ternary "1" $copies .Values.integrations.kuberay }}
      {{- $least = printf "int(s.?workerGroup.?accelerator.?profile.orValue('cpu') != 'cpu' ? %s * s.?workerGroup.?accelerator.?count.orValue(1) : 0)" $copies }}
      {{- include "rljob.devices.templated" (dict "spec" $template "own" "service" "least" $least) | printf "object.spec.?services.orValue([]).map(s, %s * (%s)).sum()" $pods | nindent 6 }}
  - name: accelerators
    expression: variables.ofGroups + variables.ofServices
  {{- end }}
  - name: provider
    expression: object.spec.?scheduling.?provider.orValue('Auto')
  - name: queue
    expression: >-
      object.metadata.?labels[?'kueue.x-k8s.io/queue-name'].orValue(object.spec.?scheduling.?queue.orValue('{{ $ceilings.queues.default }}'))
validations:
  {{- $rules | nindent 2 }}
{{- end }}
{{- end }}

{{- define "rljob.ceilings.jobRules" -}}
{{- with .Values.settings.ceilings }}
{{- if not (kindIs "invalid" .accelerators) }}
- expression: variables.accelerators <= {{ int .accelerators }}
  messageExpression: string(variables.accelerators) + ' accelerators, and a job may have {{ int .accelerators }} (accelerators)'
{{- end }}
{{- if .queues.required }}
- expression: variables.provider in ['Auto', 'Kueue']
  messageExpression: >-
    'scheduling.provider ' + variables.provider + ', and every job waits in a queue of Kueue: write Auto (queues.required)'
- expression: variables.queue != ''
  message: "no queue, and every job waits in one: name it in the label kueue.x-k8s.io/queue-name (queues.required)"
{{- end }}
{{- if not (kindIs "invalid" .queues.names) }}
- expression: >-
    !(variables.provider in ['Auto', 'Kueue']) || variables.queue in ['', {{ include "rljob.ceilings.list" (append .queues.names .queues.default) }}]
  messageExpression: >-
    'queue ' + variables.queue + ': {{ include "rljob.ceilings.allowed" .queues.names }} (queues.names)'
{{- end }}
{{- end }}
{{- end }}

{{/* What pods may be like; nothing where there is no such ceiling. */}}
{{- define "rljob.ceilings.pods" -}}
{{- $rules := include "rljob.ceilings.rules" . }}
{{- if trim $rules -}}
variables:
  {{- include "rljob.podSecurity.variables" . | nindent 2 }}
  {{- include "rljob.ceilings.variables" . | nindent 2 }}
validations:
  {{- $rules | nindent 2 }}
  {{- include "rljob.ceilings.fields" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "rljob.ceilings.variables" -}}
- name: hostPaths
  expression: variables.volumes.filter(v, has(v.hostPath)).map(v, v.hostPath.path)
- name: images
  expression: >-
    variables.containers.map(c, c.image) + variables.volumes.filter(v, has(v.image)).map(v, v.image.?reference.orValue(''))
- name: job
  expression: object.metadata.?labels[?'rljob.dev/job'].orValue('')
{{- with .Values.settings.ceilings }}
{{- if not (kindIs "invalid" .accelerators) }}
{{ include "rljob.devices.variables" . }}
- name: accelerators
  expression: >-
    {{- $main := printf "object.spec.containers.map(c, %s).sum()" (include "rljob.devices.asked" "c") }}
    {{- include "rljob.devices.pod" (dict "spec" "object.spec" "main" $main) | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rljob.ceilings.rules" -}}
{{- $known := .Files.Get "files/ceilings.yaml" | fromYaml }}
{{- $gang := .Values.settings.pods.gang }}
{{- with .Values.settings.ceilings }}
{{- $standard := dict "level" .podSecurity "minor" (trimPrefix "v1." .podSecurityVersion | int) "known" $known }}
{{- if not (eq .podSecurity "Privileged") }}
{{- include "rljob.podSecurity.baseline" $standard }}
{{- end }}
{{- if eq .podSecurity "Restricted" }}
{{- include "rljob.podSecurity.restricted" $standard }}
{{- end }}
{{- if not .hostNetwork }}
- expression: "!object.spec.?hostNetwork.orValue(false)"
  message: "hostNetwork: true, which no pod may have (hostNetwork)"
{{- end }}
{{- if not .privileged }}
- expression: variables.containers.all(c, !c.?securityContext.?privileged.orValue(false))
  message: "a container is privileged, which none may be (privileged)"
{{- end }}
{{- if not .apiTokens }}
- expression: "!object.spec.?automountServiceAccountToken.orValue(true)"
  message: "automountServiceAccountToken: true, and no pod may have a token (apiTokens)"
- expression: variables.volumes.all(v, v.?projected.?sources.orValue([]).all(s, !has(s.serviceAccountToken)))
  message: "serviceAccountToken in a volume, and no pod may have a token (apiTokens)"
{{- end }}
{{- if not (kindIs "invalid" .hostPaths) }}
- expression: >-
    variables.hostPaths.all(path, [{{ range $i, $each := .hostPaths }}{{ if $i }}, {{ end }}'{{ trimSuffix "/" $each }}/'{{ end }}].exists(folder, (path + '/').startsWith(folder)))
  messageExpression: >-
    'host paths ' + variables.hostPaths.join(', ') + ': {{ include "rljob.ceilings.allowed" .hostPaths }} (hostPaths)'
{{- end }}
{{- if not (kindIs "invalid" .images) }}
- expression: >-
    variables.images.all(image, [{{ include "rljob.ceilings.list" .images }}].exists(name, image.startsWith(name)))
  messageExpression: >-
    'images ' + variables.images.join(', ') + ': {{ include "rljob.ceilings.allowed" .images }} (images)'
{{- end }}
{{- if .imageDigests }}
- expression: "variables.images.all(image, image.matches('^[^@]+@sha256:[0-9a-f]{64}$'))"
  messageExpression: >-
    'images ' + variables.images.join(', ') + ': not all are named by digest, NAME@sha256:… (imageDigests)'
{{- end }}
{{- if not (kindIs "invalid" .serviceAccounts) }}
- expression: >-
    object.spec.?serviceAccountName.orValue('default') in [{{ include "rljob.ceilings.list" .serviceAccounts }}]
  message: "service accounts: {{ include "rljob.ceilings.allowed" .serviceAccounts }} (serviceAccounts)"
{{- end }}
{{- if not (kindIs "invalid" .priorityClasses) }}
- expression: >-
    !has(object.spec.priorityClassName) || object.spec.priorityClassName in [{{ include "rljob.ceilings.list" .priorityClasses }}]
  message: "priority classes: {{ include "rljob.ceilings.allowed" .priorityClasses }} (priorityClasses)"
{{- end }}
{{- if not (kindIs "invalid" .secrets) }}
{{- include "rljob.ceilings.secrets" . }}
{{- end }}
{{- if not (kindIs "invalid" .tolerations) }}
- expression: >-
    object.spec.?tolerations.orValue([]).all(t, t.?key.orValue('') in [{{ include "rljob.ceilings.list" (concat .tolerations $known.failingNodes) }}])
  message: "tolerations: {{ include "rljob.ceilings.allowed" .tolerations }} (tolerations)"
{{- end }}
{{- if not (kindIs "invalid" .runtimeClasses) }}
- expression: >-
    !has(object.spec.runtimeClassName) || object.spec.runtimeClassName in [{{ include "rljob.ceilings.list" .runtimeClasses }}]
  message: "runtime classes: {{ include "rljob.ceilings.allowed" .runtimeClasses }} (runtimeClasses)"
{{- end }}
{{- if not (kindIs "invalid" .schedulers) }}
{{- $schedulers := concat .schedulers (list "default-scheduler" $gang.volcanoScheduler $gang.coschedulingScheduler) }}
- expression: >-
    object.spec.?schedulerName.orValue('default-scheduler') in [{{ include "rljob.ceilings.list" $schedulers }}]
  message: "schedulers: {{ include "rljob.ceilings.allowed" $schedulers }} (schedulers)"
{{- end }}
{{- if not (kindIs "invalid" .accelerators) }}
- expression: variables.accelerators <= {{ int .accelerators }}
  messageExpression: string(variables.accelerators) + ' accelerators in a pod, and a job may have {{ int .accelerators }} (accelerators)'
- expression: object.spec.?resourceClaims.orValue([]).size() == 0
  message: "resource claims, whose devices cannot be counted (accelerators)"
{{- end }}
{{- end }}
{{- end }}

{{/* Kinds of volumes name a Secret in one of four ways, containers in two. */}}
{{- define "rljob.ceilings.secrets" }}
{{- $listed := include "rljob.ceilings.list" .secrets }}
{{- $message := printf "Secrets: %s (secrets)" (include "rljob.ceilings.allowed" .secrets) }}
- expression: >-
    variables.volumes.all(v, v.all(kind, kind == 'name'
    || ({{ include "rljob.ceilings.secret" (dict "name" "v[kind].?secretName" "listed" $listed) }}
    && {{ include "rljob.ceilings.secret" (dict "name" "v[kind].?secretRef.?name" "listed" $listed) }}
    && {{ include "rljob.ceilings.secret" (dict "name" "v[kind].?nodePublishSecretRef.?name" "listed" $listed) }}
    && v[kind].?sources.orValue([]).all(source, {{ include "rljob.ceilings.secret" (dict "name" "source.?secret.?name" "listed" $listed) }}))))
  message: {{ $message | quote }}
- expression: >-
    variables.containers.all(c,
    c.?env.orValue([]).all(e, {{ include "rljob.ceilings.secret" (dict "name" "e.?valueFrom.?secretKeyRef.?name" "listed" $listed) }})
    && c.?envFrom.orValue([]).all(e, {{ include "rljob.ceilings.secret" (dict "name" "e.?secretRef.?name" "listed" $listed) }}))
  message: {{ $message | quote }}
{{- end }}

{{/* Whether a Secret, if one is named, is listed, or made for the job by the operator or for its Ray by KubeRay. */}}
{{- define "rljob.ceilings.secret" -}}
[{{ .name }}.orValue('')].all(n, n in ['', variables.job + '-token', object.metadata.?labels[?'ray.io/cluster'].orValue(''){{ with .listed }}, {{ . }}{{ end }}] {{ "" -}}
|| (n.startsWith(variables.job + '-tls-a') && n.substring(size(variables.job) + 6).matches('^[0-9]+$')))
{{- end }}

{{/* The fields that pods may have at all. */}}
{{- define "rljob.ceilings.fields" -}}
{{- $fields := (.Files.Get "files/ceilings.yaml" | fromYaml).fields }}
{{- $extra := .Values.settings.ceilings.extraFields }}
{{- range $place, $owners := dict "pod" "[object.spec]" "securityContext" "[object.spec.?securityContext.orValue({})]" "containers" "variables.containers" "containers.securityContext" "variables.containers.map(c, c.?securityContext.orValue({}))" "volumes" "variables.volumes" }}
{{- $prefix := ternary "" (printf "%s." $place) (eq $place "pod") }}
{{- $names := get $fields $place }}
{{- range $extra }}
{{- if and (hasPrefix $prefix .) (not (contains "." (trimPrefix $prefix .))) }}{{ $names = append $names (trimPrefix $prefix .) }}{{ end }}
{{- end }}
- expression: >-
    {{ $owners }}.all(owner, owner.all(field, field in [{{ include "rljob.ceilings.list" $names }}]))
  messageExpression: >-
    {{ $owners }}.map(owner, owner.filter(field, !(field in [{{ include "rljob.ceilings.list" $names }}])).map(field, '{{ $prefix }}' + field).join(' ')).join(' ')
    + ': fields that pods may not have here (extraFields)'
{{- end }}
{{- end }}

{{- define "rljob.ceilings.list" -}}
{{- range $i, $each := . }}{{ if $i }}, {{ end }}'{{ $each }}'{{ end }}
{{- end }}

{{- define "rljob.ceilings.allowed" -}}
{{ if . }}allowed are {{ join ", " . }}{{ else }}none is allowed{{ end }}
{{- end }}
