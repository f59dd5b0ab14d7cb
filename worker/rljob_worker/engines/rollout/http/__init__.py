"""A rollout engine whose model is in a server: SGLang's or vLLM's routes, with tokens in and tokens out."""
