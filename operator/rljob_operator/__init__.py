"""The Kubernetes side of rljob: turns an RLJob into pods and keeps them as the job says."""
