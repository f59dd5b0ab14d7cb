"""First process of a pod: starts one worker per accelerator, watches them, and speaks for them. Never imports torch."""
