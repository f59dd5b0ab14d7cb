"""The only room that speaks to the cluster: six verbs, typed errors, a cache of children."""
