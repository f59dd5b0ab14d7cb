"""The rehearsal: everything that can be known to go wrong before torch is imported, found at once.

    rehearse(spec, folder, …)     what the job asks for: first rows, tokenizer, files of the model, the user's functions
    tool_findings(plan, …)    what its workers need besides torch: a compiler, packages
    findings_here(plan, …)    that, and what this machine has for it: accelerators, memory, disk

`rljob run` refuses what any of them finds, the launcher of a pod what the first two do. `rljob validate` refuses what
the first finds, and reports the rest: a job may be meant for another machine. What cannot be looked at is reported.
"""
