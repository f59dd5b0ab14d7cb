"""The weights that vLLM generates with.

    reloaded_weights   giving it a policy
    recorded_copies    the same past its loaders, where they only copy
    kept_slice         what a rank keeps of a tensor, as vLLM's loaders look at one
    layouts            what its reload leaves as it was
    reload_check       whether it computes with the weights that it was given

Only `reloaded_weights` and `layouts` need vLLM to be installed.
"""
