"""What a plan costs in time and bytes: of a mesh, of a step, over each edge."""
