{{/* Which extended resources are not accelerators, as variables of a policy. */}}
{{- define "rljob.devices.variables" -}}
{{- $names := list -}}{{- $domains := list -}}
{{- range .notAccelerators }}{{ if hasSuffix "/" . }}{{ $domains = append $domains . }}{{ else }}{{ $names = append $names . }}{{ end }}{{ end -}}
- name: otherDevices
  expression: "[{{ include "rljob.ceilings.list" $names }}]"
- name: otherDomains
  expression: "[{{ include "rljob.ceilings.list" $domains }}]"
{{- end }}

{{/* Accelerators that a container asks for, whose expression this takes: the API server wants limits of them. */}}
{{- define "rljob.devices.asked" -}}
{{ . }}.?resources.?limits.orValue({}).map(r, r.contains('/') && !r.contains('kubernetes.io/') && !(r in variables.otherDevices) {{ "" -}}
&& !variables.otherDomains.exists(d, r.startsWith(d)), quantity(string({{ . }}.resources.limits[r])).asInteger()).sum()
{{- end }}

{{/*
Accelerators of a pod, as an expression: `spec` is one for its spec, `main` for what its containers ask for together.
Init containers run one after the other, beside the sidecars among them.
*/}}
{{- define "rljob.devices.pod" -}}
{{- $asked := include "rljob.devices.asked" "c" -}}
{{- $init := printf "%s.?initContainers.orValue([])" .spec -}}
[{{ $init }}.map(c, c.?restartPolicy.orValue('') == 'Always', {{ $asked }}).sum() {{ "" -}}
+ ([{{ .main }}] + {{ $init }}.map(c, c.?restartPolicy.orValue('') != 'Always', {{ $asked }})).max(), {{ "" -}}
{{ include "rljob.devices.asked" .spec }}].max()
{{- end }}

{{/*
Accelerators of a pod with the template `spec`, whose container `own` asks for `least` where the template does not say
otherwise. The larger of both counts: which resource a profile has is not known here.
*/}}
{{- define "rljob.devices.templated" -}}
{{- $asked := include "rljob.devices.asked" "c" -}}
{{- $containers := printf "%s.?containers.orValue([])" .spec -}}
{{- $main := printf "[%s, %s.map(c, c.name == '%s', %s).sum()].max() + %s.map(c, c.name != '%s', %s).sum()" .least $containers .own $asked $containers .own $asked -}}
{{ include "rljob.devices.pod" (dict "spec" .spec "main" $main) }}
{{- end }}
