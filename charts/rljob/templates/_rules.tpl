{{/* Rights within a namespace: over jobs and over the objects that are made for them. */}}
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
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [secrets] # the token of a job; get also tells whether what a variable names is there. No list, no watch.
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims, namespaces] # is the storage bound, which pods does the namespace admit
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.networkPolicy.jobs }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
{{- end }}
{{- with .Values.integrations }}
{{- if .podMonitors }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch, delete]
{{- end }}
{{- if .kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- if .volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if .coscheduling }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- if .native }}
- apiGroups: [scheduling.k8s.io]
  resources: [workloads, podgroups]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- end }}
{{- end }}

{{/* Rights that no namespace can give. Without them the operator does without: nodes are not looked at. */}}
{{- define "rljob.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes] # is the node of a pod that does not end dead
  verbs: [get, list]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses] # does a claim wait for its first pod
  verbs: [get]
{{- if .Values.integrations.kueue }}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors] # where admitted pods may run
  verbs: [get]
{{- end }}
{{- end }}
