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
    reload_check       whether it computes with the weights that it was given
    engine             the engine

Only `library`, `starting`, `drawing`, `engine` and `weights` need vLLM to be installed.
"""
