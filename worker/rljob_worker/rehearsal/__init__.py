"""The rehearsal: everything that can be known to go wrong before torch is imported, found at once.

    rehearse(spec, folder, …)     what the job asks for: first rows, tokenizer, files of the model, the user's functions
    machine_findings(plan, …) what a machine has for it: accelerators, memory, disk

`rljob validate` does the first, `rljob run` and the launcher of a pod both. What cannot be looked at here is told.
"""
