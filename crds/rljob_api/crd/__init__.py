"""The CustomResourceDefinition of RLJob, made from the types: `python -m rljob_api.crd`."""
