"""Decoder layers of Megatron-core (https://arxiv.org/abs/1909.08053) in models of transformers.

A model is transformers' own except for its decoder layers: embedding, rotary positions, last norm and last layer stay
what they are, and so does all that an engine asks of a model. What Megatron-core computes are the layers and their
collectives: one matrix for queries, keys and values, one for gate and up, tensor parallelism with sequence parallelism.
What is ours of them: attention over packed rows, the names, and sharding over data parallel ranks, which is FSDP2's as
in all models: optimizer states lie in parts and weights are gathered once for a step, as Megatron's distributed
optimizer does it, in checkpoints that any layout reads.

    library  imports Megatron-core, where it is installed
    layers   puts its layers into a model           layer  one of them           config  their settings
    names    what checkpoints call their parameters        cpu  what they lack on CPUs; no GPU imports it
    families which models they compute rightly
"""
