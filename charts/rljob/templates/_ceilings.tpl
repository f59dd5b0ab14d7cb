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

{{/* Most accelerators of a job. */}}
{{- define "rljob.ceilings.jobs" -}}
{{- $most := int .Values.settings.ceilings.accelerators -}}
variables:
  - name: accelerators
    expression: >-
      (object.spec.workerGroups.map(g, has(g.accelerator) && has(g.accelerator.profile) && g.accelerator.profile != 'cpu'
      ? (has(g.replicas) ? g.replicas : 1) * (has(g.accelerator.count) ? g.accelerator.count : 1) : 0)
      + (has(object.spec.services) ? object.spec.services.map(s, has(s.workerGroup) && has(s.workerGroup.accelerator)
      && has(s.workerGroup.accelerator.profile) && s.workerGroup.accelerator.profile != 'cpu'
      ? (has(s.autoscaling) ? s.autoscaling.maxReplicas : (has(s.workerGroup.replicas) ? s.workerGroup.replicas : 1))
      * (has(s.workerGroup.accelerator.count) ? s.workerGroup.accelerator.count : 1) : 0) : [])).sum()
validations:
  - expression: variables.accelerators <= {{ $most }}
    messageExpression: string(variables.accelerators) + ' accelerators, and a job may have {{ $most }} (accelerators)'
{{- end }}

{{/* What pods may be like; nothing where there is no such ceiling. */}}
{{- define "rljob.ceilings.pods" -}}
{{- with .Values.settings.ceilings }}
{{- $rules := include "rljob.ceilings.rules" . }}
{{- if trim $rules -}}
variables:
  - name: containers
    expression: "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
  - name: hostPaths
    expression: "has(object.spec.volumes) ? object.spec.volumes.filter(v, has(v.hostPath)).map(v, v.hostPath.path) : []"
validations:
  {{- $rules | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rljob.ceilings.rules" -}}
{{- if not (eq .podSecurity "Privileged") }}
{{- include "rljob.ceilings.baseline" . }}
{{- end }}
{{- if eq .podSecurity "Restricted" }}
{{- include "rljob.ceilings.restricted" . }}
{{- end }}
{{- if not .hostNetwork }}
- expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"
  message: "hostNetwork: true, which no pod may have (hostNetwork)"
{{- end }}
{{- if not .privileged }}
- expression: {{ include "rljob.ceilings.unprivileged" . | quote }}
  message: "a container is privileged, which none may be (privileged)"
{{- end }}
{{- if not (kindIs "invalid" .hostPaths) }}
- expression: >-
    variables.hostPaths.all(path, [{{ range $i, $each := .hostPaths }}{{ if $i }}, {{ end }}'{{ trimSuffix "/" $each }}/'{{ end }}].exists(folder, (path + '/').startsWith(folder)))
  messageExpression: >-
    'host paths ' + variables.hostPaths.join(', ') + ': allowed are {{ join ", " .hostPaths }} (hostPaths)'
{{- end }}
{{- if not (kindIs "invalid" .images) }}
- expression: >-
    variables.containers.all(c, [{{ include "rljob.ceilings.list" .images }}].exists(name, c.image.startsWith(name)))
  messageExpression: >-
    'images ' + variables.containers.map(c, c.image).join(', ') + ': allowed are {{ join ", " .images }} (images)'
{{- end }}
{{- if .imageDigests }}
- expression: "variables.containers.all(c, c.image.matches('^[^@]+@sha256:[0-9a-f]{64}$'))"
  messageExpression: >-
    'images ' + variables.containers.map(c, c.image).join(', ') + ': not all are named by digest, NAME@sha256:… (imageDigests)'
{{- end }}
{{- if not (kindIs "invalid" .serviceAccounts) }}
- expression: >-
    (has(object.spec.serviceAccountName) ? object.spec.serviceAccountName : 'default') in [{{ include "rljob.ceilings.list" .serviceAccounts }}]
  message: "service accounts: allowed are {{ join ", " .serviceAccounts }} (serviceAccounts)"
{{- end }}
{{- if not (kindIs "invalid" .priorityClasses) }}
- expression: >-
    !has(object.spec.priorityClassName) || object.spec.priorityClassName in [{{ include "rljob.ceilings.list" .priorityClasses }}]
  message: "priority classes: allowed are {{ join ", " .priorityClasses }} (priorityClasses)"
{{- end }}
{{- end }}

{{- define "rljob.ceilings.list" -}}
{{- range $i, $each := . }}{{ if $i }}, {{ end }}'{{ $each }}'{{ end }}
{{- end }}

{{- define "rljob.ceilings.unprivileged" -}}
variables.containers.all(c, !has(c.securityContext) || !has(c.securityContext.privileged) || !c.securityContext.privileged)
{{- end }}

{{/* As `_baseline` and `_restricted` in rljob_operator/manifests/pod/security.py. */}}
{{- define "rljob.ceilings.baseline" }}
- expression: >-
    !(has(object.spec.hostNetwork) && object.spec.hostNetwork) && !(has(object.spec.hostPID) && object.spec.hostPID)
    && !(has(object.spec.hostIPC) && object.spec.hostIPC)
  message: "podSecurity: {{ .podSecurity }} forbids hostNetwork, hostPID and hostIPC"
- expression: variables.hostPaths.size() == 0
  messageExpression: "'podSecurity: {{ .podSecurity }} forbids the host paths ' + variables.hostPaths.join(', ')"
- expression: {{ include "rljob.ceilings.unprivileged" . | quote }}
  message: "podSecurity: {{ .podSecurity }} forbids privileged containers"
- expression: >-
    variables.containers.all(c, !has(c.securityContext) || !has(c.securityContext.capabilities)
    || !has(c.securityContext.capabilities.add) || c.securityContext.capabilities.add.all(each, each in [{{ if eq .podSecurity "Restricted" }}
    'NET_BIND_SERVICE'{{ else }}
    'AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', 'KILL', 'MKNOD', 'NET_BIND_SERVICE', 'SETFCAP', 'SETGID',
    'SETPCAP', 'SETUID', 'SYS_CHROOT'{{ end }}]))
  message: "podSecurity: {{ .podSecurity }} forbids a capability that a container adds"
- expression: "variables.containers.all(c, !has(c.ports) || c.ports.all(p, !has(p.hostPort) || p.hostPort == 0))"
  message: "podSecurity: {{ .podSecurity }} forbids ports of the node (hostPort)"
{{- end }}

{{- define "rljob.ceilings.restricted" }}
- expression: >-
    !has(object.spec.volumes) || object.spec.volumes.all(v, has(v.configMap) || has(v.csi) || has(v.downwardAPI)
    || has(v.emptyDir) || has(v.ephemeral) || has(v.image) || has(v.persistentVolumeClaim) || has(v.projected) || has(v.secret))
  message: "podSecurity: Restricted forbids a kind of volume"
- expression: >-
    variables.containers.all(c, has(c.securityContext) && has(c.securityContext.allowPrivilegeEscalation)
    && !c.securityContext.allowPrivilegeEscalation && has(c.securityContext.capabilities)
    && has(c.securityContext.capabilities.drop) && 'ALL' in c.securityContext.capabilities.drop)
  message: "podSecurity: Restricted demands allowPrivilegeEscalation: false and that ALL capabilities are dropped"
- expression: >-
    variables.containers.all(c, has(c.securityContext) && has(c.securityContext.runAsNonRoot)
    ? c.securityContext.runAsNonRoot
    : has(object.spec.securityContext) && has(object.spec.securityContext.runAsNonRoot) && object.spec.securityContext.runAsNonRoot)
  message: "podSecurity: Restricted demands runAsNonRoot: true"
- expression: >-
    (!has(object.spec.securityContext) || !has(object.spec.securityContext.runAsUser) || object.spec.securityContext.runAsUser != 0)
    && variables.containers.all(c, !has(c.securityContext) || !has(c.securityContext.runAsUser) || c.securityContext.runAsUser != 0)
  message: "podSecurity: Restricted forbids root (runAsUser: 0)"
- expression: >-
    variables.containers.all(c, has(c.securityContext) && has(c.securityContext.seccompProfile)
    ? c.securityContext.seccompProfile.type in ['RuntimeDefault', 'Localhost']
    : has(object.spec.securityContext) && has(object.spec.securityContext.seccompProfile)
    && object.spec.securityContext.seccompProfile.type in ['RuntimeDefault', 'Localhost'])
  message: "podSecurity: Restricted demands a seccomp profile"
{{- end }}
