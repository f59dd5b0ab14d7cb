"""vLLM as a rollout engine, in the worker's own process.

    settings           what decides how it starts              settings in, plain values out
    plan_settings      what a plan says of that
    sampling           what a request asks of the sampler      responses in, plain values out
    speculative_tokens which guessed tokens hold               tokens in, tokens out
    responses          what has been sampled                   tokens in, tables out
    process_state      what of the process starting it may not change
    library            importing it
    starting           building it
    drawing            our sampler in place of its own
    cache              clearing its memory
    library_requests   what it is asked, and the tokens that come back
    weights            giving it a policy
    engine             the engine

Only `library`, `starting`, `drawing`, `engine`, `library_requests` and modules of `weights` need vLLM to be installed.
"""
