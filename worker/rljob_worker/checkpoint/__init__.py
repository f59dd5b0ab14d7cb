"""Checkpoints: a directory per step, good if and only if its manifest is there and every file is as the manifest says.

    checkpoints/step-00000020-attempt-1/
        engines/train-actor/…          torch.distributed.checkpoint, sharded, reshardable
        state-train.json               stages with a memory, once per worker group
        version-actor-18-0.arrow       weights that steps in flight are drawn with (`rollout.maxStaleness`)
        done-train-0.json              files and checksums of one rank, written after its last byte
        manifest.json                  written last, by the lead; it *is* the commit

No step waits for one: every rank copies its part to host memory and writes it while the next steps run, one checkpoint
at a time, and the lead commits it once all parts are there and the step's metrics are written. Who leaves waits for it.

On a disk or in an object store (`rljob_worker.storage`), and an old attempt on a cut-off node cannot commit: the lead
writes the manifest as a draft, checks that the run still belongs to its attempt, and publishes the draft. A new attempt
claims the run and then withdraws the drafts of others, so the last of these steps fails from there on. On a disk a
draft is a file and is published by a rename; in a store it is the taken place of the manifest, and publishing is a put
on the condition that the place is as it was taken.
"""
