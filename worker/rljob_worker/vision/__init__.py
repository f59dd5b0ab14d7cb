"""Pictures of prompts: how they travel, how they are opened, and the patches that a model computes with."""
