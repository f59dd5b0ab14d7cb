{{/*
Rights within a namespace: over jobs and over the objects that are made for them. Garbage collection deletes what a job
owns, so only pods, finished jobs and places in queues are deleted by name.
*/}}
{{- define "rljob.rules" -}}
- apiGroups: [rljob.dev]
  resources: [rljobs]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [rljob.dev]
  resources: [rljobs/status]
  verbs: [patch]
- apiGroups: [rljob.dev]
  resources: [rljobs/finalizers] # to own objects with blockOwnerDeletion where that is checked
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, create, patch, delete] # list, delete: plans and rank tables of attempts that are over
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [secrets] # token and certificates of a job; get also tells whether what a variable names is there. No list, no watch.
  verbs: [{{ if .Values.rbac.readSecrets }}get, {{ end }}create]
- apiGroups: [""]
  resources: [persistentvolumeclaims, namespaces] # is the storage bound, which pods does the namespace admit
  verbs: [get]
- apiGroups: [""]
  resources: [resourcequotas] # does a gang fit, before its first pod is made
  verbs: [list]
- apiGroups: [apps]
  resources: [deployments] # pods of agents; delete: a suspended job gives their places back
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.networkPolicy.jobs }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch]
{{- end }}
{{- with .Values.integrations }}
{{- if .podMonitors }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch]
{{- end }}
{{- if .kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete] # delete: a suspended job leaves its queue
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- if .kuberay }}
- apiGroups: [ray.io]
  resources: [rayservices]
  verbs: [get, list, watch, create, delete] # delete: a job that is suspended gives its models' pods back
{{- end }}
{{- if .volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, create, patch, delete]
{{- end }}
{{- if .coscheduling }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch, delete]
{{- end }}
{{- if .native }}
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [get, create, patch, delete]
{{- end }}
{{- end }}
{{- end }}

{{/* What no namespace holds. Without these rights the operator does without. */}}
{{- define "rljob.clusterRules" -}}
- apiGroups: [storage.k8s.io]
  resources: [storageclasses] # does a claim wait for its first pod
  verbs: [get]
{{- if .Values.integrations.kueue }}
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses] # what a queued job's class is worth
  verbs: [get]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloadpriorityclasses, resourceflavors] # the same, and where admitted pods may run
  verbs: [get]
{{- end }}
{{- end }}
