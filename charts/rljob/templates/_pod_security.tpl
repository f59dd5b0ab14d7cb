{{/*
The Pod Security Standards as rules of a policy, check by check as in rljob_operator/manifests/pod_security. Takes a
dict: level, minor, and known, which is files/ceilings.yaml.
*/}}
{{- define "rljob.podSecurity.variables" -}}
- name: containers
  expression: >-
    object.spec.?initContainers.orValue([]) + object.spec.containers + object.spec.?ephemeralContainers.orValue([])
- name: volumes
  expression: object.spec.?volumes.orValue([])
- name: annotations
  expression: object.metadata.?annotations.orValue({})
- name: securityContexts
  expression: >-
    [object.spec.?securityContext.orValue({})] + variables.containers.map(c, c.?securityContext.orValue({}))
- name: isWindows
  expression: object.spec.?os.?name.orValue('') == 'windows'
- name: hasOwnUsers
  expression: object.spec.?hostUsers.orValue(true) == false
{{- end }}

{{- define "rljob.podSecurity.baseline" }}
{{- $forbids := printf "podSecurity: %s forbids" .level }}
{{- $relaxed := and (ge .minor 35) (eq .level "Baseline") }}
- expression: >-
    !object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false) && !object.spec.?hostIPC.orValue(false)
  message: "{{ $forbids }} hostNetwork, hostPID and hostIPC"
- expression: variables.volumes.all(v, !has(v.hostPath))
  messageExpression: >-
    '{{ $forbids }} the host paths ' + variables.volumes.filter(v, has(v.hostPath)).map(v, v.hostPath.path).join(', ')
- expression: variables.containers.all(c, !c.?securityContext.?privileged.orValue(false))
  message: "{{ $forbids }} privileged containers"
- expression: >-
    variables.containers.all(c, c.?securityContext.?capabilities.?add.orValue([]).all(each, each in [{{ include "rljob.ceilings.list" .known.capabilities }}]))
  message: "{{ $forbids }} a capability that a container adds"
- expression: variables.containers.all(c, c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0))
  message: "{{ $forbids }} ports of the node (hostPort)"
{{- if ge .minor 34 }}
- expression: >-
    variables.containers.all(c, [{{ range .known.probes }}c.?{{ . }}, {{ end }}{{ range $i, $hook := .known.hooks }}{{ if $i }}, {{ end }}c.?lifecycle.?{{ $hook }}{{ end }}]
    .all(h, h.?httpGet.?host.orValue('') == '' && h.?tcpSocket.?host.orValue('') == ''))
  message: "{{ $forbids }} the host of a probe or lifecycle hook"
{{- end }}
- expression: >-
    variables.securityContexts.all(s, s.?appArmorProfile.?type.orValue('RuntimeDefault') in [{{ include "rljob.ceilings.list" .known.profiles }}])
    && variables.annotations.all(k, !k.startsWith('container.apparmor.security.beta.kubernetes.io/')
    || variables.annotations[k] in ['', 'runtime/default'] || variables.annotations[k].startsWith('localhost/'))
  message: "{{ $forbids }} an AppArmor profile"
- expression: >-
    variables.securityContexts.all(s, s.?seLinuxOptions.?type.orValue('') in [{{ include "rljob.ceilings.since" (dict "of" .known.seLinuxTypes "minor" .minor) }}]
    && s.?seLinuxOptions.?user.orValue('') == '' && s.?seLinuxOptions.?role.orValue('') == '')
  message: "{{ $forbids }} SELinux options"
- expression: >-
    {{ if $relaxed }}variables.hasOwnUsers || {{ end }}variables.containers.all(c, c.?securityContext.?procMount.orValue('Default') == 'Default')
  message: "{{ $forbids }} an unmasked /proc (procMount)"
- expression: >-
    variables.securityContexts.all(s, s.?seccompProfile.?type.orValue('RuntimeDefault') in [{{ include "rljob.ceilings.list" .known.profiles }}])
  message: "{{ $forbids }} a seccomp profile"
- expression: >-
    object.spec.?securityContext.?sysctls.orValue([]).all(each, each.name in [{{ include "rljob.ceilings.since" (dict "of" .known.sysctls "minor" .minor) }}])
  message: "{{ $forbids }} a kernel parameter (sysctls)"
- expression: variables.securityContexts.all(s, !s.?windowsOptions.?hostProcess.orValue(false))
  message: "{{ $forbids }} processes of the host (hostProcess)"
{{- end }}

{{- define "rljob.podSecurity.restricted" }}
{{- $demands := "podSecurity: Restricted demands" }}
{{- $users := ternary "variables.hasOwnUsers || " "" (ge .minor 35) }}
- expression: variables.volumes.all(v, v.exists(kind, kind in [{{ include "rljob.ceilings.list" .known.volumes }}]))
  message: "podSecurity: Restricted forbids a kind of volume"
- expression: >-
    variables.isWindows || variables.containers.all(c, c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false)
  message: "{{ $demands }} allowPrivilegeEscalation: false"
- expression: >-
    variables.isWindows || variables.containers.all(c, 'ALL' in c.?securityContext.?capabilities.?drop.orValue([])
    && c.?securityContext.?capabilities.?add.orValue([]).all(each, each == 'NET_BIND_SERVICE'))
  message: "{{ $demands }} that ALL capabilities are dropped, and none but NET_BIND_SERVICE added"
- expression: >-
    {{ $users }}(object.spec.?securityContext.?runAsNonRoot.orValue(true) && variables.containers.all(c,
    c.?securityContext.?runAsNonRoot.orValue(object.spec.?securityContext.?runAsNonRoot.orValue(false))))
  message: "{{ $demands }} runAsNonRoot: true"
- expression: >-
    {{ $users }}variables.securityContexts.all(s, s.?runAsUser.orValue(1) != 0)
  message: "podSecurity: Restricted forbids root (runAsUser: 0)"
- expression: >-
    variables.isWindows || object.spec.?securityContext.?seccompProfile.hasValue()
    || variables.containers.all(c, c.?securityContext.?seccompProfile.hasValue())
  message: "{{ $demands }} a seccomp profile"
{{- end }}

{{/* What is allowed since a minor version, up to this one. */}}
{{- define "rljob.ceilings.since" -}}
{{- $minor := .minor -}}
{{- $names := list -}}
{{- range .of }}{{ if le (int .since) $minor }}{{ $names = concat $names .names }}{{ end }}{{ end -}}
{{- include "rljob.ceilings.list" $names -}}
{{- end }}
