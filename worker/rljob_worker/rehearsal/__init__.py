"""The rehearsal: everything that can be known to go wrong before torch is imported, found at once.

    rehearse(spec, folder, …)     what the job asks for: first rows, tokenizer, files of the model, the user's functions
    tool_findings(plan, …)    what its workers need beside torch: a compiler
    machine_findings(plan, …) what a machine has for it: accelerators, memory, disk

`rljob validate` does the first, the launcher of a pod the first two, `rljob run` all. What cannot be looked at here is
told.
"""
