"""The models beside a job: a pod of our own for each, or a RayService of KubeRay."""
